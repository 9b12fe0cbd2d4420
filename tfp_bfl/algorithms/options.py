"""The keywords that recipes pass on to `compose` and to their client work, for type checkers.

Each is here once, for all recipes of a kind. Which of them a recipe has, with defaults, its signature shows at run time
(`compose.passing_on`), and `compose.split_options` refuses the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from tfp_bfl.training.batches import Passes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tfp_bfl.compression import Compressor
    from tfp_bfl.data import ClientExamples
    from tfp_bfl.data.augmentation import Augmentation
    from tfp_bfl.federated import Thinning
    from tfp_bfl.privacy import Privacy
    from tfp_bfl.training.example_privacy import ExamplePrivacy
    from tfp_bfl.training.likelihoods import Likelihood
    from tfp_bfl.training.optimizers import Optimizer
    from tfp_bfl.training.potential import Mode
    from tfp_bfl.training.updates import Schedule


class Process(TypedDict, total=False):
    """Keywords of any process."""

    element_spec: ClientExamples | None
    seed: int
    min_examples: int


class Sending(Process, total=False):
    """Keywords of a process whose clients send weights."""

    robust: str | None
    compressor: str | Compressor | None
    per_tensor: bool
    error_memory: bool
    variance_bits: int | None
    augmentation: str | Augmentation | None
    privacy: Privacy | None
    secure_sums: float | None
    max_magnitude: float
    max_change_norm: float | None
    max_weight_ratio: float | None


class ComposeOptions(Sending, total=False):
    """The keyword arguments of `compose`: its own, and those of `federated.build_process`."""

    weighting: str
    thinning: Thinning | None
    notices: Sequence[str]


class TrainingOptions(Sending, Passes, total=False):
    """Keywords of recipes with clients that train; `optimizer` is another name of optimizer_fn."""

    learning_rate: Schedule | None
    optimizer_fn: Optimizer | None
    optimizer: Optimizer | None
    likelihood: str | Likelihood
    inference: str | None
    noise: str | None
    decay: float | None
    stddev_rate: float
    step_damping: float | None
    first_stddev: float | None
    keep_momentum: bool
    kl: str | None
    temperature: float | None
    update_prior: bool
    pretrained: bool
    proximal: float
    example_privacy: ExamplePrivacy | None
    logit_rate: Schedule | None
    inner_rate: float
    clip_norm: float
    difference: float
    kl_reduction: str
    kl_weight: Schedule
    shrinkage: float
    local_burn_in_epochs: int
    steps_per_sample: int | None


class WeighedOptions(TrainingOptions, total=False):
    """Keywords of recipes with clients that train and are weighed."""

    weighting: str


class SamplingOptions(WeighedOptions, total=False):
    """Keywords of recipes with clients that sample."""

    burn_in_rounds: int


class SwagOptions(Process, Passes, total=False):
    """Keywords of `fl_swag`."""

    burn_in_epochs: int | None
    collect_every: int | None
    min_variance: float
    learning_rate: float
    momentum: float
    weight_decay: float
    likelihood: str | Likelihood


class FrozenOptions(Process, total=False):
    """Keywords of `head`, `laplace` and `last_layer`: posteriors from sums over clients."""

    batch_size: int | float | None
    structure: str
    likelihood: str | Likelihood
    prior_stddev: float | None
    held_back: float
    sum_bits: int
    example_privacy: ExamplePrivacy | None
    secure_sums: float | None


class GradientOptions(Process, total=False):
    """Keywords of chains, whose clients send gradients."""

    batch_size: int | float | None
    likelihood: str | Likelihood
    local_steps: int
    per_tensor: bool
    participation: float | Sequence[float]
    fixed_point: Mode | None
    count_bits: bool
