"""The sites of linear models."""

from tests.parties.conftest import certificates, kits

__all__ = ["certificates", "kits"]
