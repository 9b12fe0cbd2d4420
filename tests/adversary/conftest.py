"""The sites of linear models."""

from tests.sites.conftest import certificates, hospitals, kits

__all__ = ["certificates", "hospitals", "kits"]
