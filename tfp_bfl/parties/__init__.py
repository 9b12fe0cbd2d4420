"""Federations of sites with separate hosts: descriptions of data, client work of a site, and secure aggregation.

Names are imported when they are first used: `tfp_bfl.parties.deployment` offers commands without TensorFlow.
"""

from typing import TYPE_CHECKING

from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.parties.arrays import from_arrays, to_arrays
    from tfp_bfl.parties.comparison import doubts
    from tfp_bfl.parties.masks import KEY_BYTES
    from tfp_bfl.parties.party import Party, PartyEngine, Transport, simulate_parties
    from tfp_bfl.parties.schema import agree, check_description, describe, fitted
    from tfp_bfl.parties.sealed import SealedEngine, SealedParty

export_later(
    __name__,
    {
        **dict.fromkeys(("from_arrays", "to_arrays"), "tfp_bfl.parties.arrays"),
        "KEY_BYTES": "tfp_bfl.parties.masks",
        "doubts": "tfp_bfl.parties.comparison",
        **dict.fromkeys(("Party", "PartyEngine", "Transport", "simulate_parties"), "tfp_bfl.parties.party"),
        **dict.fromkeys(("agree", "check_description", "describe", "fitted"), "tfp_bfl.parties.schema"),
        **dict.fromkeys(("SealedEngine", "SealedParty"), "tfp_bfl.parties.sealed"),
    },
)

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
