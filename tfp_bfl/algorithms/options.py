"""The options of `compose`, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tfp_bfl.compression import Compressor
    from tfp_bfl.data import ClientExamples
    from tfp_bfl.data.augmentation import Augmentation
    from tfp_bfl.federated import Thinning
    from tfp_bfl.privacy import Privacy


class ComposeOptions(TypedDict, total=False):
    """The keyword arguments of `compose`: its own, and those of `federated.build_process`."""

    weighting: str
    robust: str | None
    compressor: str | Compressor | None
    per_tensor: bool
    error_memory: bool
    augmentation: str | Augmentation | None
    privacy: Privacy | None
    secure_sums: float | None
    element_spec: ClientExamples | None
    seed: int
    max_magnitude: float
    max_change_norm: float | None
    max_weight_ratio: float | None
    min_examples: int
    burn_in_rounds: int
    thinning: Thinning | None
    notices: Sequence[str]
