"""The options of `compose`, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, TypedDict, Union

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
    robust: Optional[str]
    compressor: Optional[Union[str, Compressor]]
    per_tensor: bool
    error_memory: bool
    augmentation: Optional[Union[str, Augmentation]]
    privacy: Optional[Privacy]
    secure_sums: Optional[float]
    element_spec: Optional[ClientExamples]
    seed: int
    max_magnitude: float
    max_change_norm: Optional[float]
    max_weight_ratio: Optional[float]
    min_examples: int
    burn_in_rounds: int
    thinning: Optional[Thinning]
    notices: Sequence[str]
