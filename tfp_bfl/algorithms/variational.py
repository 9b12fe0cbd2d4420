"""Federated variational inference with an aggregation rule (Fischer et al. 2024, arXiv:2403.15263)."""

from typing import Unpack

from tfp_bfl import clients, federated, rules, servers
from tfp_bfl.algorithms.compose import Model, compose, passing_on, split_options
from tfp_bfl.algorithms.fitting import counts_alike
from tfp_bfl.algorithms.fixed_points import default_rule, notices_of
from tfp_bfl.algorithms.options import TrainingOptions
from tfp_bfl.contracts import AnyRule
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.servers.optimizers import ServerOptimizer
from tfp_bfl.training.inference import settings_for


@passing_on(clients.variational)
def variational(
    model_fn: Model,
    rule: AnyRule | None = None,
    weighting: str = "train_size",
    server_optimizer: ServerOptimizer | None = None,
    **options: Unpack[TrainingOptions],
) -> federated.BayesianProcess:
    """Fit the broadcast posterior on each client by the negative ELBO; pool the clients' posteriors by `rule`.

    A deterministic model makes this federated averaging, one with Monte Carlo dropout its Bayesian variant: they have
    point weights only, which every rule averages by weight.

    Args:
      model_fn: builds a Keras model that returns logits; or such a model.
      rule: of `tfp_bfl.rules`, or its name, such as "log_linear_pool". None for the rule under which the inference is
        stationary at the posterior: "mean_precision_average", or "log_linear_pool" with natural gradients
        (`algorithms.fixed_points`). The run warns of other pairs.
      weighting: as `compose`.
      server_optimizer: of `servers.server_optimizer`, for the means; None to take the pool. Variances are those of the
        pool. It rests where the pool is what the clients began with, at the same posterior as without it; at a rate
        that falls to zero (`training.cosine_decay` with last=0) the noise of its steps does too.
      **options: of `compose` and of `clients.variational`, with its defaults. `optimizer` is another name of
        optimizer_fn. kl is "product" for a rule for one shot unless it is given.

    Example:
      >>> model_fn = lambda: bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
      >>> process = bfl.algorithms.variational(model_fn, "log_linear_pool", local_epochs=5)
    """
    work, process = split_options(variational, options)
    settings = settings_for(
        **{name: work.get(name) for name in ("inference", "temperature", "kl")},
        likelihood=work.get("likelihood", "categorical"),
        update_prior=work.get("update_prior", False),
        example_privacy=bool(work.get("example_privacy")),
        one_shot=rule is not None and rules.whole_model(rule).traits.one_shot,
    )
    rule = default_rule(settings.inference) if rule is None else rule
    whole = rules.whole_model(rule)
    if server_optimizer is not None and (whole.traits.one_shot or work.get("update_prior")):
        pool = (
            f"the rule {whole.name!r} pools the result"
            if whole.traits.one_shot
            else "update_prior makes it the next prior"
        )
        raise InvalidArgument(
            f"server_optimizer goes elsewhere than to the pooled posterior, and {pool}: leave it out."
        )
    counted = "equal" if counts_alike(process.get("robust")) else weighting
    local = clients.variational(model_fn, **{**work, **settings._asdict(), "weighting": counted})
    notices: tuple[str, ...] = ()
    step = servers.optimize(server_optimizer)
    if not whole.traits.one_shot and not work.get("update_prior"):  # Its target moves with each round.
        notices = notices_of(model_fn, whole, work.get("optimizer_fn"), settings.inference)
    return compose(model_fn, local, rule, step, weighting=weighting, notices=notices, **process)
