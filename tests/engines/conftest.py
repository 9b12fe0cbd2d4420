"""The fixtures of rounds, for engines."""

from tests.federated.conftest import runtime, tff_runtime

__all__ = ["runtime", "tff_runtime"]
