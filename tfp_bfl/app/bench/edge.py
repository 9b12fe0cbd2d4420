"""Registration with the core: the commands `bench` and `tune`."""

from tfp_bfl.app.bench.command import bench, tune

COMMANDS = (bench, tune)
