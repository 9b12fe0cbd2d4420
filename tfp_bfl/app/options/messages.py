"""Options of the compression of clients' messages."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

import tfp_bfl as bfl
from tfp_bfl.app.options import choices
from tfp_bfl.app.options.fields import Options, option
from tfp_bfl.errors import InvalidArgument, shown


def _as_text(value: object) -> Any:
    """Return a sequence of names as text with commas, and anything else as it is."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


class Compressed(Options):
    compressor: Annotated[str | None, BeforeValidator(_as_text)] = option(
        None,
        "Compression of the clients' messages: quantiser:LEVELS, sparsifier:SHARE, largest:SHARE, or "
        "none, which only counts bits; of qlsd also one for each client, separated by commas.",
        names=choices.COMPRESSORS,
    )
    per_tensor: bool = option(False, "Compress each tensor of the model separately.")

    def check(self, config: object) -> None:
        super().check(config)
        self.require("compressor", "the compressor", "per_tensor")
        for compressor in self.compressors():
            self.check_bias(bfl.compression.parse_compressor(compressor))

    def compressors(self) -> list[str]:
        """Return the names of the compressors."""
        if self.compressor is not None and "," in self.compressor:
            raise InvalidArgument(
                f"compressor is {shown(self.compressor)}, but only qlsd takes one for each client: give one for all."
            )
        return [] if self.compressor is None else [self.compressor]

    def check_bias(self, compressor: Any) -> None:
        if not compressor.unbiased:
            raise InvalidArgument(
                f"compressor is {compressor.name!r}, which is biased, and so would the chain be: give one such as "
                "quantiser:16."
            )


class WithErrorMemory(Compressed):
    error_memory: bool = option(
        False, "Add the compression error of earlier messages to the next message (error feedback)."
    )

    def check(self, config: object) -> None:
        super().check(config)
        self.require("compressor", "the compressor", "error_memory")

    def check_bias(self, compressor: Any) -> None:
        if not compressor.unbiased and not self.error_memory:
            raise InvalidArgument(
                f"compressor is {compressor.name!r}, which leaves the same values out for good: give error_memory, or "
                "one that is unbiased, such as sparsifier:0.1."
            )
