"""Checks of the names of clients that leave a server's state, or join it."""

from __future__ import annotations

from collections.abc import Collection

from tfp_bfl.errors import InvalidArgument


def check_leaving(client: str, present: Collection[str]) -> None:
    """Raise InvalidArgument where there is no client of this name."""
    if client not in present:
        known = ", ".join(map(repr, present)) or "none"
        raise InvalidArgument(f"There is no client {client!r}: the clients are {known}.")


def check_joining(client: str, others: Collection[str], present: Collection[str], replace: bool) -> None:
    """Raise InvalidArgument where the others have no such client, or one is present that shall not be replaced."""
    if client not in others:
        known = ", ".join(map(repr, others)) or "none"
        raise InvalidArgument(f"There is no client {client!r} to take: the others are {known}.")
    if client in present and not replace:
        raise InvalidArgument(f"There is a client {client!r} already: ask to replace it, or leave it out.")
