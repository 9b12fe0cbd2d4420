"""Registration with the core: the commands `sweep`, `bench` and `tune`, and runs with several seeds."""

from tfp_bfl.bench.command import bench, run_many, sweep_runs, tune

COMMANDS = (sweep_runs, bench, tune)
__all__ = ["COMMANDS", "run_many"]
