"""Compressors of messages, with the bytes that they take."""

from tfp_bfl.compression import variances as variances
from tfp_bfl.compression.by_client import by_client
from tfp_bfl.compression.compressors import (
    COMPRESSORS,
    Compressor,
    Quantised,
    by_tensor,
    largest,
    none,
    parse_compressor,
    quantiser,
    sparsifier,
)

__all__ = [
    "COMPRESSORS",
    "Compressor",
    "Quantised",
    "by_client",
    "by_tensor",
    "largest",
    "none",
    "parse_compressor",
    "quantiser",
    "sparsifier",
]
