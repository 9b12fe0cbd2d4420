"""Point weights by many rounds, and posteriors from how the clients' weights differ.

Each recipe is a client work, a rule and a server step, which `compose` puts together.
FedOpt and FedProx (Reddi et al. 2021; Li et al. 2020), FedAG (Thorgeirsson & Gauterin 2020), FedBE (Chen & Chao 2021),
FedPA (Al-Shedivat et al. 2021), SGLD and FedKP (Johansson & Gullbrandson 2022).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Callable, Optional

import tensorflow as tf

from tfp_bfl import clients, federated, rules, servers
from tfp_bfl import weighting as weightings
from tfp_bfl.errors import InvalidArgument, lookup, shown

ModelFn = Callable[[], tf.keras.Model]
PROCESS_OPTIONS = ("weighting", "element_spec", "seed", "max_change_norm", "min_examples")
LOCAL_TRAINING: dict[str, Any] = {
    "local_epochs": 5,
    "learning_rate": 1e-2,
    "optimizer_fn": lambda: tf.keras.optimizers.SGD(momentum=0.9),
}
SIMPLE_WEIGHTINGS = {name: weightings.WEIGHTINGS[name] for name in ("equal", "train_size")}


def compose(
    model_fn: ModelFn,
    client_work: Any,
    rule: Any,
    server_step: Any,
    *,
    weighting: str = "train_size",
    **process_options: Any,
) -> federated.BayesianProcess:
    """A process of a client work, a rule and a server step of this family, which fit each other in any combination.

    Two server steps take what one rule gives: `servers.keep_gaussian` that of `rules.client_gaussian`, `servers.distil`
    that of `rules.stacked`.

    Args:
      model_fn: builds a Keras model that returns logits.
      client_work: such as `clients.variational(model_fn, ...)` or `clients.posterior_averaging(model_fn, ...)`.
      rule: over `ModelWeights`, such as `rules.whole_model(rules.naive_weighted_average())` or
        `rules.kernel_posterior()`.
      server_step: of `tfp_bfl.servers`.
      weighting: "equal" or "train_size".
      **process_options: of `federated.build_process`: element_spec, seed, max_change_norm, min_examples, and the
        burn_in_rounds of the parts, so that `simulate` can refuse a run of no more rounds.

    Raises:
      InvalidArgument: there is no such weighting, or a part is none or does not fit the others.
    """
    rule = rules.gathered(rule) if isinstance(rule, rules.GatherRule) else rule
    rules.check_rule(rule)
    if not callable(client_work):
        raise InvalidArgument(
            f"client_work must be a function, as clients.variational(...) gives, not {client_work!r}."
        )
    if not isinstance(server_step, servers.ServerStep):
        raise InvalidArgument(f"server_step must be a ServerStep, such as servers.replace(), not {server_step!r}.")
    return federated.build_process(
        model_fn,
        client_work=client_work,
        weigh=lookup(SIMPLE_WEIGHTINGS, weighting, "weighting"),
        rule=rule,
        server_step=server_step,
        **process_options,
    )


def fed_opt(model_fn: ModelFn, *, server_optimizer: Optional[Any] = None, **options: Any) -> federated.BayesianProcess:
    """FedOpt: local training, the mean of the clients, the server's optimizer; without one, federated averaging.

    w <- optimizer(w, sum_k b_k (w - w_k))

    Without a server optimizer this is `variational` with the naive weighted average on a model of point weights.

    Args:
      model_fn: builds a Keras model that returns logits.
      server_optimizer: of `federated.server_optimizer`, or any of `tff.learning.optimizers`; None for SGD of rate 1.
      **options: of `compose` (weighting, element_spec, seed, max_change_norm) and of `clients.variational`
        (local_epochs, batch_size, learning_rate, optimizer_fn, proximal).

    Source: Reddi et al. 2021 (arXiv:2003.00295), algorithm 1; McMahan et al. 2017.
    """
    work, process = _split(options)
    return compose(model_fn, clients.variational(model_fn, **work), _mean(), _step(server_optimizer), **process)


def fed_prox(
    model_fn: ModelFn, *, proximal: float = 0.01, server_optimizer: Optional[Any] = None, **options: Any
) -> federated.BayesianProcess:
    """FedProx: `fed_opt` whose clients' loss has mu / 2 ||w - w_server||^2 besides.

    Args:
      proximal: mu.
      others: as `fed_opt`.

    Source: Li et al. 2020 (arXiv:1812.06127), eq. 2.
    """
    return fed_opt(model_fn, server_optimizer=server_optimizer, proximal=proximal, **options)


def fed_ag(model_fn: ModelFn, *, server_optimizer: Optional[Any] = None, **options: Any) -> federated.BayesianProcess:
    """FedAG: `fed_opt` that predicts with draws from the Gaussian of the clients' weights.

    q(w) = N(mean, sum_k b_k (w_k - mean)^2)

    Args:
      model_fn: as `fed_opt`, without variational layers.
      others: as `fed_opt`.

    Source: Thorgeirsson & Gauterin 2020, algorithm 3.
    """
    work, process = _split(options)
    step = servers.keep_gaussian(_step(server_optimizer))
    return compose(model_fn, clients.variational(model_fn, **work), rules.client_gaussian(), step, **process)


def fed_be(
    model_fn: ModelFn,
    features: Any,
    *,
    ensemble: Optional[dict[str, Any]] = None,
    server_optimizer: Optional[Any] = None,
    **options: Any,
) -> federated.BayesianProcess:
    """FedBE: an ensemble drawn from the clients' distribution teaches the server's model on unlabelled data.

    Args:
      model_fn: as `fed_opt`, without variational layers.
      features: the server's unlabelled examples [U, ...].
      ensemble: options of `servers.distil`: distribution, num_models, concentration, temperature, num_epochs,
        batch_size, learning_rate.
      server_optimizer: as `fed_opt`, of the student's change.
      **options: as `fed_opt`; weighting has no effect, as all clients count alike.

    Source: Chen & Chao 2021 (arXiv:2009.01974), algorithm 2.
    """
    work, process = _split(options)
    own = _known(servers.distil, ensemble, "the ensemble", ("model_fn", "features", "server_step"))
    step = servers.distil(model_fn, features, server_step=_step(server_optimizer), **own)
    return compose(model_fn, clients.variational(model_fn, **work), rules.stacked(), step, **process)


def fed_pa(model_fn: ModelFn, *, server_optimizer: Optional[Any] = None, **options: Any) -> federated.BayesianProcess:
    """FedPA: clients sample from their posteriors and send the step to the product's mode, Sigma_k^-1 (w - mean_k).

    Args:
      server_optimizer: as `fed_opt`; its rate must be lower, the larger the shrinkage (`clients.posterior_delta`).
      **options: of `compose` and `clients.posterior_averaging` (shrinkage, burn_in_rounds, local_burn_in_epochs,
        steps_per_sample, local_epochs, batch_size, learning_rate, optimizer_fn).

    Source: Al-Shedivat et al. 2021 (arXiv:2010.05273), algorithm 1.
    """
    work, process = _split(options)
    local = clients.posterior_averaging(model_fn, **work)
    burn_in = work.get("burn_in_rounds", 0)
    return compose(model_fn, local, _mean(), _step(server_optimizer), burn_in_rounds=burn_in, **process)


def fed_kp(
    model_fn: ModelFn,
    *,
    start: str = "mean",
    kernel_options: Optional[dict[str, Any]] = None,
    server_optimizer: Optional[Any] = None,
    **options: Any,
) -> federated.BayesianProcess:
    """FedKP: `fed_opt` with the mode of a kernel density over the clients' values in the place of their mean.

    The server's optimizer takes w - mode as it takes w - mean in `fed_opt`.

    Args:
      start: "mean" shifts the clients' mean to its mode (FedKP); "clients" shifts each client's value and averages
        (clustered FedKP).
      kernel_options: of `rules.kernel_posterior`: kernel, bandwidth, scale, max_iterations, weighting.
      others: as `fed_opt`.

    Source: Johansson & Gullbrandson 2022, algorithms 9 and 10.
    """
    work, process = _split(options)
    rule = _kernel(start, kernel_options)
    return compose(model_fn, clients.variational(model_fn, **work), rule, _step(server_optimizer), **process)


def fed_kppa(
    model_fn: ModelFn,
    *,
    start: str = "clients",
    kernel_options: Optional[dict[str, Any]] = None,
    server_optimizer: Optional[Any] = None,
    **options: Any,
) -> federated.BayesianProcess:
    """FedKPPA: FedPA's clients with clustered FedKP's server.

    Args:
      start, kernel_options: as `fed_kp`.
      server_optimizer, options: as `fed_pa`.

    Source: Johansson & Gullbrandson 2022, FedKPPA.
    """
    work, process = _split(options)
    rule = _kernel(start, kernel_options)
    local = clients.posterior_averaging(model_fn, **work)
    burn_in = work.get("burn_in_rounds", 0)
    return compose(model_fn, local, rule, _step(server_optimizer), burn_in_rounds=burn_in, **process)


def fed_sgld(
    model_fn: ModelFn,
    *,
    step_size: float = 1e-6,
    burn_in_rounds: int = 0,
    max_samples: int = 20,
    server_optimizer: Optional[Any] = None,
    **options: Any,
) -> federated.BayesianProcess:
    """Federated SGLD: `fed_opt` with noise N(0, 2 eta) after each round, whose rounds are samples of the posterior.

    Args:
      step_size, burn_in_rounds, max_samples: of `servers.langevin`.
      others: as `fed_ag`.

    Source: Welling & Teh 2011; Johansson & Gullbrandson 2022.
    """
    work, process = _split(options)
    step = servers.langevin(_step(server_optimizer), step_size, burn_in_rounds, max_samples)
    local = clients.variational(model_fn, **work)
    return compose(model_fn, local, _mean(), step, burn_in_rounds=burn_in_rounds, **process)


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the clients, with this family's defaults, and of the process."""
    process = {name: options[name] for name in PROCESS_OPTIONS if name in options}
    return {**LOCAL_TRAINING, **{name: x for name, x in options.items() if name not in process}}, process


def _known(function: Callable[..., Any], options: Any, what: str, own: tuple[str, ...]) -> dict[str, Any]:
    """The options for a function, all of which it must have, but for its `own` that a recipe gives it."""
    if options is not None and not isinstance(options, Mapping):
        raise InvalidArgument(f"The options of {what} are {shown(options)}, but must be a dictionary.")
    names = [name for name in inspect.signature(function).parameters if name not in own]
    for name in options or {}:
        lookup(dict.fromkeys(names), name, f"option of {what}")
    return dict(options or {})


def _kernel(start: str, options: Any) -> Any:
    return rules.kernel_posterior(start, **_known(rules.kernel_posterior, options, "the kernel", ("start",)))


def _mean() -> Any:
    return rules.whole_model(rules.naive_weighted_average())


def _step(server_optimizer: Optional[Any]) -> Any:
    return servers.replace() if server_optimizer is None else servers.optimize(server_optimizer)
