"""Registration with the core: the commands about many runs, and runs with several seeds."""

from tfp_bfl.bench.command import bench, list_runs, report, run_many, sweep_runs, tune

COMMANDS = (sweep_runs, bench, tune, list_runs, report)
__all__ = ["COMMANDS", "run_many"]
