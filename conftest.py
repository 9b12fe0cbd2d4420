"""Loads what holds for all tests, in `tests` and in `experiments/STUDY/tests`."""

pytest_plugins = ["tests.plugin"]
