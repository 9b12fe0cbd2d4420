import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BENCHMARKS))  # for work.py


def pytest_configure(config):
    config.option.benchmark_storage = (BENCHMARKS / "results" / "pieces").as_uri()


def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info.pop("node", None)  # the machine's name says nothing of its speed
