"""The options of the chains of `tfp_bfl.algorithms.langevin`, in which a round is a step or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options import choices
from tfp_bfl.app.options.fields import Count, Draws, Positive, Prior, option
from tfp_bfl.app.options.messages import Compressed
from tfp_bfl.errors import InvalidArgument, shown


def _by_client(value: object) -> list[str]:
    """Return the entries of an option with one for each client: a sequence, or text with commas."""
    entries = value if isinstance(value, (list, tuple)) else str(value).split(",")
    return [str(entry).strip() for entry in entries]


def _probabilities(value: object) -> float | str:
    """Return one probability as a float, several as text with commas.

    Raises:
      InvalidArgument: an entry is no number above 0 and at most 1.
    """
    entries = _by_client(value)
    for entry in entries:
        try:
            fits = 0 < float(entry) <= 1
        except ValueError:
            fits = False
        if not fits:
            raise InvalidArgument(f"participation is {shown(value)}, but must be probabilities above 0 and at most 1.")
    return float(entries[0]) if len(entries) == 1 else ",".join(entries)


Probabilities = Annotated[float | str, BeforeValidator(_probabilities)]


def _are_all(config: Any) -> bool:
    """Return whether all clients are in each round, as far as the configuration states it."""
    return config.cohort_size is None or (config.partition != "given" and config.cohort_size >= config.clients)


def check_even(config: Any) -> None:
    """Raise InvalidArgument for cohorts drawn unevenly, by which a chain of gradients would have another law."""
    if config.popularity is not None and not _are_all(config):
        raise InvalidArgument(
            "popularity draws clients unevenly, and the chain would be of another posterior: leave popularity out."
        )


class _Chain(Prior, Draws):
    # A round is one step: evaluations and checkpoints of each would take most of the time.
    defaults: ClassVar[dict[str, Any]] = {
        **{"kind": "deterministic", "rounds": 2000, "step_size": 1e-4, "prior_stddev": 1.0},
        **{"evaluate_every": 250, "checkpoint_every": 250, "keep_every": 25, "max_samples": 40},
    }

    of_recipe: ClassVar[tuple[str, ...]] = ("prior_stddev",)

    keep_every: Count = option(1, "Number of rounds between collected samples.", argument=None)

    def check(self, config: object) -> None:
        super().check(config)
        if self.prior_stddev == "fan_in":
            raise InvalidArgument(
                f"The prior of {self.recipe} is N(0, prior_stddev^2) for all weights: give a number, not 'fan_in'."
            )

    def arguments(self, config: object, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        given = super().arguments(config, unlabelled)
        thinning = bfl.federated.Thinning(given.pop("burn_in_rounds"), self.keep_every, self.max_samples)
        return {**given, "prior_stddev": self.prior_stddev, "thinning": thinning}


class QLSD(_Chain, Compressed):
    recipe: ClassVar[str] = "qlsd"
    summary: ClassVar[str] = "a Langevin chain of the server's, of which clients send compressed gradients"
    defaults: ClassVar[dict[str, Any]] = {**_Chain.defaults, "compressor": "quantiser:256"}

    estimator: str = option(
        "anchored",
        "Gradient estimator of the clients: plain (QLSD), fixed_point or anchored (QLSD++).",
        names=choices.ESTIMATORS,
    )
    participation: Probabilities = option(
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
        super().check(config)
        if self.estimator == "fixed_point":
            raise InvalidArgument(
                "estimator 'fixed_point' is at a mode, which clients.find_mode finds in a program: use 'anchored'."
            )
        for name in ("forgetful", "refresh_every"):
            if self.estimator == "plain" and getattr(self, name) != type(self).model_fields[name].default:
                raise InvalidArgument(
                    f"{name} is of the estimator 'anchored', and 'plain' has neither memories nor anchors: leave it "
                    "out, or take 'anchored'."
                )
        check_even(config)
        if self.potential_curvature is not None and not (_are_all(config) and not config.dropout):
            raise InvalidArgument(
                "potential_curvature checks the step size for rounds with all clients, and cohorts and clients that "
                "drop out lower the bound: leave out either it, or cohort_size and dropout; participation may stay."
            )
        for name in ("participation", "compressor"):
            number = len(_by_client(getattr(self, name)))
            # Data that name clients state their number.
            if number > 1 and config.partition != "given" and number != config.clients:
                raise InvalidArgument(
                    f"{name} has {number} entries, but there are {config.clients} clients: give one entry for each "
                    "client, or one for all of them."
                )

    def compressors(self) -> list[str]:
        return _by_client(self.compressor)

    def steps(self, num_examples: int) -> int:
        return 1

    def arguments(self, config: Any, unlabelled: Callable[[], Any]) -> dict[str, Any]:
        compressors, shares = self.compressors(), [float(p) for p in _by_client(self.participation)]
        by_client = {
            "compressor": compressors if len(compressors) > 1 else compressors[0],
            "participation": shares if len(shares) > 1 else shares[0],
        }
        given = super().arguments(config, unlabelled)
        # XLA can't count bits, whose number follows from values.
        return {**given, **by_client, "memory": not self.forgetful, "count_bits": config.engine != "compiled"}


class _LocalChain(_Chain):
    local_steps: Count = option(5, "Number of steps of each client's chain in a round.")

    def steps(self, num_examples: int) -> int:
        return self.local_steps


class DGSGLD(_LocalChain):
    recipe: ClassVar[str] = "dg_sgld"
    summary: ClassVar[str] = "each client runs a separate Langevin chain, coupled to the server's weights"

    coupling: Positive = option(0.01, "Variance rho of the clients' weights about the server's.")

    def check(self, config: object) -> None:
        super().check(config)
        if self.step_size >= 2 * self.coupling:
            raise InvalidArgument(
                f"step_size is {self.step_size:g}, but must be below 2 coupling, {2 * self.coupling:g}: clients "
                "diverge from there."
            )


class FSGLD(_LocalChain):
    recipe: ClassVar[str] = "fsgld"
    summary: ClassVar[str] = "one client a round runs the chain, with Gaussians in place of the other clients"
    defaults: ClassVar[dict[str, Any]] = {**_Chain.defaults, "local_steps": 16, "cohort_size": 1}

    surrogate_steps: Count = option(
        100, "Number of L-BFGS steps that fit the Gaussian of each client before the first round.", argument=None
    )

    def check(self, config: Any) -> None:
        super().check(config)
        if config.cohort_size != 1:
            raise InvalidArgument(
                f"cohort_size is {config.cohort_size}, but in fsgld one client runs the chain in each round: leave it "
                "out, or give 1."
            )
        check_even(config)

    def fitted(self, model_fn: Any, clients: Callable[[], Any], likelihood: dict[str, Any]) -> dict[str, Any]:
        held = clients()
        if held is None:
            raise InvalidArgument(
                "fsgld fits a Gaussian to the data of each client before the first round, and sites do not send data: "
                "choose another algorithm, such as qlsd."
            )
        given = {"prior_stddev": self.prior_stddev, "max_steps": self.surrogate_steps, **likelihood}
        return {"surrogates": bfl.clients.fit_surrogates(model_fn, held, **given)}
