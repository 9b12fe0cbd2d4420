"""Point weights by many rounds, and posteriors from how the clients' weights differ.

Each recipe is a client work, a rule and a server step, which `compose` puts together.
FedOpt and FedProx (Reddi et al. 2021; Li et al. 2020), FedAG (Thorgeirsson & Gauterin 2020), FedBE (Chen & Chao 2021),
FedPA (Al-Shedivat et al. 2021), SGLD and FedKP (Johansson & Gullbrandson 2022).

`model_fn` builds a Keras model that returns logits; or is such a model. `server_optimizer` is one of
`servers.server_optimizer`, or any of `tff.learning.optimizers`; None for SGD of rate 1. `**options` are those of
`compose` and of the client work: `clients.variational`, or `averaging.work.posterior_averaging` for FedPA and FedKPPA.
"""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from tfp_bfl import clients, federated, rules, servers
from tfp_bfl.algorithms.averaging.step import distil
from tfp_bfl.algorithms.averaging.work import posterior_averaging
from tfp_bfl.algorithms.chains.step import langevin
from tfp_bfl.algorithms.compose import Model, compose, known_options, passing_on, split_options
from tfp_bfl.algorithms.fixed_points import fixed_point_warning
from tfp_bfl.algorithms.kernel import kernel_posterior
from tfp_bfl.algorithms.options import SamplingOptions, WeighedOptions
from tfp_bfl.contracts import ServerStep
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.servers.optimizers import ServerOptimizer
from tfp_bfl.tensors import Array
from tfp_bfl.training.optimizers import DEFAULT_OPTIMIZER, optimizer_rate
from tfp_bfl.weights import ModelWeights

# The rate is constant if clients' iterates or rounds are samples.
SAMPLING_RATE = 0.03
MEAN = "naive_weighted_average"


@passing_on(clients.variational)
def fed_opt(
    model_fn: Model, *, server_optimizer: ServerOptimizer | None = None, **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """FedOpt: local training, the mean of the clients, the server's optimizer; without one, federated averaging.

    w <- optimizer(w, sum_k b_k (w - w_k))

    Without a server optimizer this is `variational` with the naive weighted average on a model of point weights.

    Source: Reddi et al. 2021 (arXiv:2003.00295), algorithm 1; McMahan et al. 2017.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_opt(model_fn, learning_rate=0.1)
    """
    return _averaged(fed_opt, options, model_fn, MEAN, servers.optimize(server_optimizer))


@passing_on(clients.variational, proximal=0.01)
def fed_prox(
    model_fn: Model, *, server_optimizer: ServerOptimizer | None = None, **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """FedProx: `fed_opt` with the term mu / 2 ||w - w_server||^2 in the clients' loss, mu the option `proximal`.

    Source: Li et al. 2020 (arXiv:1812.06127), eq. 2.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_prox(model_fn, proximal=0.1)
    """
    given = {"proximal": 0.01, **options}
    return _averaged(fed_prox, given, model_fn, MEAN, servers.optimize(server_optimizer))


@passing_on(clients.variational)
def fed_ag(
    model_fn: Model, *, server_optimizer: ServerOptimizer | None = None, **options: Unpack[WeighedOptions]
) -> federated.BayesianProcess:
    """FedAG: `fed_opt` that predicts with draws from the Gaussian of the clients' weights.

    q(w) = N(mean, sum_k b_k (w_k - mean)^2)

    For models without variational layers. With the robust aggregator trimmed, mean and variance are of the clients that
    are left; median leaves too few.

    Source: Thorgeirsson & Gauterin 2020, algorithm 3.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_ag(model_fn, local_epochs=5)
    """
    step = servers.keep_gaussian(servers.optimize(server_optimizer))
    return _averaged(fed_ag, options, model_fn, rules.client_gaussian(), step)


@passing_on(clients.variational)
def fed_be(
    model_fn: Model,
    features: Array,
    *,
    ensemble: dict[str, object] | None = None,
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[WeighedOptions],
) -> federated.BayesianProcess:
    """FedBE: an ensemble drawn from the clients' distribution teaches the server's model on unlabelled data.

    For models without variational layers. Weighting has no effect, as all clients count alike, and clip is the one
    robust aggregator. The server's optimizer is of the student's change.

    Args:
      features: the server's unlabelled examples [U, ...].
      ensemble: options of `averaging.step.distil`: distribution, num_models, concentration, temperature, num_epochs,
        batch_size, learning_rate.

    Source: Chen & Chao 2021 (arXiv:2009.01974), algorithm 2.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_be(model_fn, np.zeros([64, 30], np.float32))  # without labels
    """
    likelihood = options.get("likelihood", "categorical")
    if isinstance(likelihood, str) and not likelihood.startswith(("categorical", "class_weighted")):
        raise InvalidArgument(
            f"likelihood is {likelihood!r}, but fed_be distils the probabilities of classes: leave it out, or use "
            "another algorithm for numbers."
        )
    own = known_options(distil, ensemble, "the ensemble", ("model_fn", "features", "server_step"))
    step = distil(model_fn, features, server_step=servers.optimize(server_optimizer), **own)
    return _averaged(fed_be, options, model_fn, rules.stacked(), step)


@passing_on(posterior_averaging, learning_rate=None)
def fed_pa(
    model_fn: Model, *, server_optimizer: ServerOptimizer | None = None, **options: Unpack[SamplingOptions]
) -> federated.BayesianProcess:
    """FedPA: clients sample from their posteriors and send the step to the product's mode, Sigma_k^-1 (w - mean_k).

    The rate of the server's optimizer must be lower, the larger the shrinkage (`averaging.work.posterior_delta`).

    Source: Al-Shedivat et al. 2021 (arXiv:2010.05273), algorithm 1.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_pa(model_fn, local_epochs=5)
    """
    return _sampled(fed_pa, options, model_fn, MEAN, server_optimizer)


@passing_on(clients.variational)
def fed_kp(
    model_fn: Model,
    *,
    start: str = "clients",
    kernel_options: dict[str, object] | None = None,
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[WeighedOptions],
) -> federated.BayesianProcess:
    """FedKP: `fed_opt` with the mode of a kernel density over the clients' values in the place of their mean.

    The server's optimizer takes w - mode as it takes w - mean in `fed_opt`. The weighting is of BatchNorm's statistics
    alone, unless kernel_options give one.

    Args:
      start: "clients" shifts each client's value and averages (clustered FedKP); "mean" shifts the clients' mean to its
        mode (FedKP), which lost to it in every setting of our study (experiments/kernel_posterior).
      kernel_options: of `algorithms.kernel.kernel_posterior`: kernel, bandwidth, scale, max_iterations, weighting.

    Source: Johansson & Gullbrandson 2022, algorithms 9 and 10.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_kp(model_fn, local_epochs=5)
    """
    rule, step = _kernel(start, kernel_options), servers.optimize(server_optimizer)
    own = {} if (kernel_options or {}).get("weighting") else {"weighting": "equal"}  # All values count alike.
    return _averaged(fed_kp, options, model_fn, rule, step, **own)


@passing_on(posterior_averaging, learning_rate=None)
def fed_kppa(
    model_fn: Model,
    *,
    start: str = "clients",
    kernel_options: dict[str, object] | None = None,
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[SamplingOptions],
) -> federated.BayesianProcess:
    """FedKPPA: FedPA's clients with clustered FedKP's server; arguments as of both.

    Source: Johansson & Gullbrandson 2022, FedKPPA.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_kppa(model_fn, local_epochs=5)
    """
    return _sampled(fed_kppa, options, model_fn, _kernel(start, kernel_options), server_optimizer)


@passing_on(clients.variational)
def fed_sgld(
    model_fn: Model,
    *,
    step_size: float = 1e-6,
    burn_in_rounds: int = 0,
    max_samples: int = 20,
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[WeighedOptions],
) -> federated.BayesianProcess:
    """Federated SGLD: `fed_opt` with noise N(0, 2 eta) after each round; the rounds are samples.

    They are of the posterior at a temperature of about T = eta (1 - momentum) N / (rate J), for N examples of all
    clients and J local steps. For models without variational layers.

    Args:
      step_size: eta. With the defaults the posterior itself (T = 1) needs an eta far larger than 1e-6, as published:
        that chain stays near a mode.
      burn_in_rounds: before the first sample; until then the present weights predict.
      max_samples: the last rounds, which predict together. `simulate` keeps and writes them.

    Source: Welling & Teh 2011; Johansson & Gullbrandson 2022.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("deterministic", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.fed_sgld(model_fn, local_epochs=5)
    """
    thinning = federated.check_thinning(federated.Thinning(burn_in_rounds, most=max_samples))
    step = langevin(servers.optimize(server_optimizer), step_size)
    work, process = _options(fed_sgld, _sampling(options))
    local = clients.variational(model_fn, **work)
    return compose(model_fn, local, MEAN, step, thinning=thinning, **process)


def _averaged(
    recipe: Callable[..., object],
    options: Mapping[str, object],
    model_fn: Model,
    rule: Any,
    step: ServerStep[Any],
    **own: Any,
) -> federated.BayesianProcess:
    """Return the process of a recipe with the clients of `clients.variational`; `own` options are theirs alone."""
    work, process = _options(recipe, options)
    return compose(model_fn, clients.variational(model_fn, **{**work, **own}), rule, step, **process)


def _sampled(
    recipe: Callable[..., object],
    options: Mapping[str, object],
    model_fn: Model,
    rule: Any,
    server_optimizer: ServerOptimizer | None,
) -> federated.BayesianProcess:
    """Return the process of a recipe with clients that sample (`averaging.work.posterior_averaging`)."""
    work, process = _options(recipe, _sampling(options))
    local, step = posterior_averaging(model_fn, **work), servers.optimize(server_optimizer)
    return compose(model_fn, local, rule, step, **process)


def _options(recipe: Callable[..., object], options: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    given, process = split_options(recipe, options)
    warning = fixed_point_warning(MEAN, given.get("optimizer_fn") or DEFAULT_OPTIMIZER)
    return given, {**process, "notices": (warning,) if warning else ()}


def _sampling(options: Mapping[str, object]) -> dict[str, Any]:
    """Return the options with one learning rate for all rounds, that of the optimizer if there is one."""
    optimizer: Any = options.get("optimizer", options.get("optimizer_fn"))
    rate = SAMPLING_RATE if optimizer is None else optimizer_rate(optimizer)
    return {"learning_rate": rate, **options}


def _kernel(start: str, options: object) -> rules.ModelGatherRule[ModelWeights, ModelWeights]:
    return kernel_posterior(start, **known_options(kernel_posterior, options, "the kernel", ("start",)))
