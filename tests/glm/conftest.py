"""The workers of TFF, for linear models."""

from tests.federated.conftest import tff_runtime

__all__ = ["tff_runtime"]
