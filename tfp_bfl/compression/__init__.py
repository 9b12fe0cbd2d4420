"""Compressors of messages, with the bytes that they take."""

from tfp_bfl.compression import variances as variances
from tfp_bfl.compression.by_client import ChosenMessage, by_client
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
    "ChosenMessage",
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
