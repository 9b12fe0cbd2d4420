"""Exact heads of a frozen network from sums that add up over clients."""

from typing import Unpack

from tfp_bfl import federated
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.heads.posterior import HEADS, HeadSettings
from tfp_bfl.algorithms.heads.step import head as head_step
from tfp_bfl.algorithms.heads.sums import summed
from tfp_bfl.algorithms.heads.work import head_sums
from tfp_bfl.algorithms.laplace.posterior import PRIOR
from tfp_bfl.algorithms.laplace.recipe import SHARED
from tfp_bfl.algorithms.laplace.work import check_size, network_of
from tfp_bfl.algorithms.options import FrozenOptions
from tfp_bfl.errors import InvalidArgument, check_numbers, lookup


@passing_on(head_sums, SHARED, without=("gradients", "masked"), more=PRIOR)
def head(
    model_fn: Model,
    *,
    head: str = "gaussian",
    softmax_temperature: float | None = None,
    **options: Unpack[FrozenOptions],
) -> federated.BayesianProcess:
    """Build an exact head on the features of a frozen network, from sums that clients send once.

    N_c = sum_i [y_i = c],   M_c = sum_{i: y_i = c} x_i,   G = sum_i x_i x_i^T

    over the features x below the last dense layer. The result depends on the sums over all clients alone, and so not
    on how examples are partitioned. The first round must have all clients. The second fits the softmax temperature to
    rows that clients hold back; "softmax" takes a step in each further round.

    Args:
      model_fn: of a model that ends with a dense layer; the layers below are frozen.
      head: "gaussian": classes are Gaussians with a shared covariance and a normal-inverse-Wishart prior
        (`heads.classes`). "ridge": Bayesian ridge regression on one-hot labels, with a matrix-normal posterior
        (`heads.ridge`). "softmax": the mode of softmax regression by steps of a shared curvature with Anderson's
        acceleration, and Laplace's approximation with this curvature (`heads.softmax`).
      softmax_temperature: by which logits are divided; None for that of the held-back rows, under a prior at 1.
      prior_stddev: t of the prior of the weights, of "softmax" on standardised features; None for the maximum of the
        marginal likelihood.
      **options: of `compose`, secure_sums among them, and of `heads.work.head_sums`.

    Source: Fanì et al. 2024 (arXiv:2406.01116) and AFL (He et al. 2025, arXiv:2405.16240) for ridge regression from
    sums; Gelman et al. 2013, section 3.6; Boehning 1992.

    Example:
      >>> clients = bfl.data.load("breast_cancer").partition(bfl.data.label_skew(2, 1), seed=0)
      >>> network = bfl.models.linear("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.head(network, head="gaussian", element_spec=clients.element_spec)
      >>> result = bfl.simulate(process, clients, rounds=2, engine="local")
    """
    work, process = split_options(globals()["head"], options)
    prior_stddev, secure_sums = process.pop("prior_stddev", None), process.get("secure_sums")
    model_fn = network_of(model_fn)
    lookup(dict.fromkeys(HEADS), head, "head")
    given = {"prior_stddev": prior_stddev, "softmax_temperature": softmax_temperature}
    check_numbers(**{name: x for name, x in given.items() if x is not None})
    if head == "gaussian" and prior_stddev is not None:
        raise InvalidArgument("prior_stddev is of the heads ridge and softmax, and this is gaussian: leave it out.")
    is_noisy = work.get("sum_bits", 64) != 64
    if secure_sums is not None and is_noisy:
        raise InvalidArgument(
            "Under masks each number takes 8 bytes, whatever it is: leave out sum_bits or secure_sums."
        )
    privacy = work.get("example_privacy")
    if privacy is not None and head == "softmax":
        raise InvalidArgument(
            "The gradients of head softmax are not clipped, and would reveal examples: use head gaussian or ridge with "
            "example_privacy."
        )
    check_size(model_fn(), "An exact head")
    local = head_sums(model_fn, gradients=head == "softmax", masked=secure_sums is not None, **work)
    norm = None if privacy is None else privacy.clip_norm
    settings = HeadSettings(head, prior_stddev, softmax_temperature, is_noisy or privacy is not None, norm)
    step = head_step(settings, 1.0 if secure_sums is None else secure_sums)
    return compose(model_fn, local, summed(), step, weighting="train_size", **process)
