"""The fixtures of rounds, for parties."""

from tests.federated.conftest import runtime, tff_runtime

__all__ = ["runtime", "tff_runtime"]
