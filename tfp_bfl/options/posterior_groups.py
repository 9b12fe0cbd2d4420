"""Groups of options of rounds that are draws of a posterior, of chains across clients, and of personal models."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.options import choices
from tfp_bfl.options.group import Count, CountOrZero, Group, Positive, PositiveOrZero, Share, fields_of, option


class BurnIn(Group):
    """Rounds before the first sample."""

    burn_in_rounds: CountOrZero | None = option(
        None, "Number of burn-in rounds before samples are collected; half of the rounds by default."
    )

    def check(self, config: Any) -> None:
        if self.burn_in_rounds is not None and self.burn_in_rounds >= config.rounds:
            raise InvalidArgument(
                f"burn_in_rounds is {self.burn_in_rounds}, but must be below the number of rounds, {config.rounds}: "
                "those after it are the samples."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        burn_in = config.rounds // 2 if self.burn_in_rounds is None else self.burn_in_rounds
        return {**given, "burn_in_rounds": burn_in}


class Shrinkage(Group):
    """Clients of FedPA."""

    shrinkage: PositiveOrZero = option(
        0.1, "Shrinkage rho of the samples' covariance, which is the identity for rho = 0."
    )


class RoundSamples(Group):
    """Rounds are draws of the posterior."""

    step_size: Positive = option(1e-6, "Step size eta; the noise of each step has variance 2 eta.")
    max_samples: Count = option(20, "Maximum number of samples, from the last rounds, in predictions.", argument=None)

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        return {**given, "max_samples": self.max_samples}


class Chain(Group):
    """A round is a step, or several, of a Langevin chain."""

    keep_every: Count = option(1, "Number of rounds between collected samples.", argument=None)

    def check(self, config: Any) -> None:
        if config.prior_stddev == "fan_in":
            raise InvalidArgument(
                f"The prior of {config.algorithm} is N(0, prior_stddev^2) for all weights: give a number, not 'fan_in'."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        thinning = bfl.federated.Thinning(given["burn_in_rounds"], self.keep_every, given["max_samples"])
        others = {name: x for name, x in given.items() if name not in ("burn_in_rounds", "max_samples")}
        return {**others, "prior_stddev": config.prior_stddev, "thinning": thinning}


def _by_client(value: object) -> list[str]:
    """Return the entries of an option with one for each client: a sequence, or text with commas."""
    entries = value if isinstance(value, (list, tuple)) else str(value).split(",")
    return [str(entry).strip() for entry in entries]


def _probabilities(value: object) -> float | str:
    """Return one probability as a float, several as text with commas."""
    entries = _by_client(value)
    for entry in entries:
        try:
            fits = 0 < float(entry) <= 1
        except ValueError:
            fits = False
        if not fits:
            raise InvalidArgument(f"participation is {shown(value)}, but must be probabilities above 0 and at most 1.")
    return float(entries[0]) if len(entries) == 1 else ",".join(entries)


def are_all(config: Any) -> bool:
    """Return whether all clients are in each round, as far as the configuration states it."""
    return config.cohort_size is None or (config.partition != "given" and config.cohort_size >= config.clients)


class Gradients(Group):
    """Clients send compressed gradients."""

    estimator: str = option(
        "anchored",
        "Gradient estimator of the clients: plain (QLSD), fixed_point or anchored (QLSD++).",
        names=choices.ESTIMATORS,
    )
    participation: Annotated[float | str, BeforeValidator(_probabilities)] = option(
        1.0,
        "Probability that a client takes part in a round, independently of the others; or one for each client, "
        "separated by commas, such as 0.5,0.75,1.",
    )
    forgetful: bool = option(False, "Do not keep a memory of sent gradients on the clients.", argument=None)
    refresh_every: Count = option(100, "Number of rounds between anchors.")
    potential_curvature: Positive | Literal["estimate"] | None = option(
        None,
        "Largest curvature L of the potential, for a check of the step size before the first round: a number, or "
        "estimate for a warning by the curvature at the weights of the untrained model.",
        argument="curvature",
    )

    def check(self, config: Any) -> None:
        if self.estimator == "fixed_point":
            raise InvalidArgument(
                "estimator 'fixed_point' is at a mode, which training.find_mode finds in a program: use 'anchored'."
            )
        for name in ("forgetful", "refresh_every"):
            if self.estimator == "plain" and getattr(self, name) != fields_of(Gradients)[name].default:
                raise InvalidArgument(
                    f"{name} is of the estimator 'anchored', and 'plain' has neither memories nor anchors: leave it "
                    "out, or take 'anchored'."
                )
        if self.potential_curvature is not None and not (are_all(config) and not config.dropout):
            raise InvalidArgument(
                "potential_curvature checks the step size for rounds with all clients, and cohorts and clients that "
                "drop out lower the bound: leave out either it, or cohort_size and dropout; participation may stay."
            )
        for name in ("participation", "compressor"):
            number = len(_by_client(getattr(config, name)))
            # Data that name clients state their number.
            if number > 1 and config.partition != "given" and number != config.clients:
                raise InvalidArgument(
                    f"{name} has {number} entries, but there are {config.clients} clients: give one entry for each "
                    "client, or one for all of them."
                )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        compressors, shares = _by_client(config.compressor), [float(p) for p in _by_client(self.participation)]
        by_client = {
            "compressor": compressors if len(compressors) > 1 else compressors[0],
            "participation": shares if len(shares) > 1 else shares[0],
        }
        # XLA can't count bits, whose number follows from values.
        return {**given, **by_client, "memory": not self.forgetful, "count_bits": config.engine != "compiled"}


class LocalChain(Group):
    """Clients take several steps of a chain in a round."""

    local_steps: Count = option(5, "Number of steps of each client's chain in a round.")


class Coupling(Group):
    """Chains of the clients are coupled to the server's weights."""

    coupling: Positive = option(0.01, "Variance rho of the clients' weights about the server's.")

    def check(self, config: Any) -> None:
        if config.step_size >= 2 * self.coupling:
            raise InvalidArgument(
                f"step_size is {config.step_size:g}, but must be below 2 coupling, {2 * self.coupling:g}: clients "
                "diverge from there."
            )


class Surrogates(Group):
    """Gaussians stand for absent clients."""

    surrogate_steps: Count = option(
        100, "Number of L-BFGS steps that fit the Gaussian of each client before the first round.", argument=None
    )

    def fitted(
        self, config: Any, model_fn: Any, clients: Callable[[], Any], likelihood: dict[str, Any]
    ) -> dict[str, Any]:
        held = clients()
        if held is None:
            raise InvalidArgument(
                "fsgld fits a Gaussian to the data of each client before the first round, and sites do not send data: "
                "choose another algorithm, such as qlsd."
            )
        given = {"prior_stddev": config.prior_stddev, "max_steps": self.surrogate_steps, **likelihood}
        return {"surrogates": bfl.algorithms.chains.local_langevin.fit_surrogates(model_fn, held, **given)}


class Adaptation(Group):
    """Clients are scored by models that are their own."""

    kl_weight: PositiveOrZero = option(1.0, "Factor beta of the KL term; kind flipout learns with less, such as 0.05.")
    client_noise: str = option(
        "own",
        "Noise of the models that `evaluate_clients` scores: the client's own, none, or another client's.",
        argument=None,
        names=choices.EVALUATION_NOISES,
    )

    def check(self, config: Any) -> None:
        if self.client_noise != "own" and not config.evaluate_clients:
            raise InvalidArgument("client_noise is of the scores of single clients: give evaluate_clients too.")
        if self.client_noise != "another":
            return
        common = ("common_variances", "constant_variances")
        if not config.is_personal or (config.has("variances") and config.variances in common):
            raise InvalidArgument(
                "client_noise is 'another', but all clients of this run have the same noise: use p_fed_bayes, or "
                "meta_vd with variances 'hypernetwork' or 'free_variances'."
            )
        if config.unseen_clients or config.clients < 2:
            raise InvalidArgument(
                "client_noise 'another' exchanges the noise of clients that train: give at least two of them, and no "
                "unseen_clients."
            )


class MetaLearner(Group):
    """Gradients of meta-learning."""

    learner: str = option("plain", "Gradient of the clients' steps (see `tfp-bfl list`).", names=choices.LEARNERS)
    inner_rate: Positive = option(0.02, "Learning rate of adaptation.")
    clip_norm: Positive = option(5.0, "Clipping norm of a gradient over all weights.")
    difference: Positive = option(
        1e-4, "Finite difference of the weights for the second derivatives of hessian_free_maml."
    )
    kl_reduction: str = option(
        "sum", "Reduction of the KL term over the weights: sum, as in the ELBO, or mean.", names=choices.KL_REDUCTIONS
    )


class OwnVariances(Group):
    """Dropout of the clients' own, from the server."""

    variances: str = option(
        "hypernetwork", "Source of the clients' variances (see `tfp-bfl list`).", names=choices.PERSONAL_VARIANCES
    )
    embedding_size: Count | None = option(
        None,
        "Size of the hypernetwork's embedding of a client; 1 + clients / 4 by default.",
        argument="variance_options.embedding_size",
    )
    variance_range: str = option(
        "smooth",
        "Restriction of logits to their range: smooth, or clamped as published.",
        argument="variance_options.ranged",
        names=choices.VARIANCE_RANGES,
    )
    initial_rate: Share | None = option(
        None,
        "Dropout rate at the start, relative to the weights of each layer, in the place of --initial-stddev.",
        argument="variance_options.initial_rate",
    )
    logit_rate: PositiveOrZero | None = option(
        None,
        "Learning rate of the clients for the logits of the variances; by default that of the weights.",
    )
    variational_initializer: str = option(
        "he_normal",
        "Distribution of the initial means of the layers with variational dropout; uniform as in the authors' program.",
        argument=None,
        names=choices.INITIALIZERS,
    )
    uncapped: bool = option(
        False,
        "Do not bound the rates of the variances' parameters by the clients' change, as published.",
        argument=None,
    )
    absent_decay: bool = option(
        False, "Decay the embeddings of clients outside the round too.", argument="server_options.absent_decay"
    )
    pruning_threshold: Share | None = option(
        None,
        "Dropout rate above which weights are pruned from messages; no pruning by default.",
        argument="threshold",
    )

    def check(self, config: Any) -> None:
        if config.initial_stddev is not None and config.parametrization == "log_alpha":
            raise InvalidArgument(
                "initial_stddev is a standard deviation, and log_alpha has noise relative to the weights: give "
                "initial_rate, a dropout rate."
            )
        if config.initial_stddev is not None and self.initial_rate is not None:
            raise InvalidArgument("initial_stddev and initial_rate both say where the noise starts: give one of them.")
        if self.variational_initializer != "he_normal" and config.model not in choices.MODELS.entries:
            raise InvalidArgument(
                "variational_initializer is of the built-in models, and this one is user-supplied: leave it out."
            )

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        variances = {**given["variance_options"], "parametrization": config.parametrization}
        if config.initial_stddev is not None:
            variances["middle"] = 2 * math.log(config.initial_stddev)
        return {
            **given,
            "num_clients": config.clients,
            "variance_options": variances,
            "server_options": {**given["server_options"], "capped": not self.uncapped},
        }
