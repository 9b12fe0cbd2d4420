"""The sites of linear models."""

from tests.sites.conftest import certificates, kits

__all__ = ["certificates", "kits"]
