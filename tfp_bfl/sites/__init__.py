"""Federations of sites with separate hosts: descriptions of data, client work of a site, and secure aggregation.

Names are imported when they are first used: `tfp_bfl.sites.deployment` offers commands without TensorFlow.
"""

from typing import TYPE_CHECKING

from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.sites.arrays import from_arrays, to_arrays
    from tfp_bfl.sites.masks import KEY_BYTES
    from tfp_bfl.sites.party import Party, PartyEngine, Transport, simulate_parties
    from tfp_bfl.sites.schema import agree, check_description, describe, doubts, fitted
    from tfp_bfl.sites.sealed import SealedEngine, SealedParty

export_later(__name__)

__all__ = [
    "KEY_BYTES",
    "Party",
    "PartyEngine",
    "SealedEngine",
    "SealedParty",
    "Transport",
    "agree",
    "check_description",
    "describe",
    "doubts",
    "fitted",
    "from_arrays",
    "simulate_parties",
    "to_arrays",
]
