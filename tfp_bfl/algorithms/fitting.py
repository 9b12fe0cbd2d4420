"""Rules made fit for a process: checked against client work and server step, robust, private or summed."""

from typing import Any, cast

from tfp_bfl import rules
from tfp_bfl import weighting as weightings
from tfp_bfl.contracts import (
    CHANGE,
    CLIENT_POSTERIOR,
    CURVATURE,
    EXTENDED,
    GAUSSIAN,
    GRADIENT,
    SCALED_GRADIENT,
    SITE_CHANGE,
    STACK,
    TOTAL,
    WEIGHTS,
    AnyRule,
    ClientWork,
    ModelRule,
    ServerStep,
    stack_of,
    total_of,
)
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.privacy import Privacy
from tfp_bfl.weights.kinds import Given, Sent

_GRADIENTS = total_of(GRADIENT), total_of(SCALED_GRADIENT)
# Who gives and who takes what, as an error advises.
_RULES = {
    **dict.fromkeys((WEIGHTS, EXTENDED), "a rule such as 'naive_weighted_average'"),
    GAUSSIAN: "rules.client_gaussian()",
    stack_of(WEIGHTS): "rules.stacked()",
    stack_of(CLIENT_POSTERIOR): "swag.work.swag(...) with rules.stacked()",
    stack_of(CURVATURE): "laplace.work.laplace(...) with rules.stacked()",
    **dict.fromkeys(_GRADIENTS, "chains.work.stochastic_gradient(...) with rules.total()"),
    total_of(CHANGE): "chains.local_langevin.coupled_langevin(...) with rules.total()",
    total_of(SITE_CHANGE): "factors.laplace_work.laplace_factors(...) with rules.total()",
}
_STEPS = {
    WEIGHTS: "servers.replace()",
    GAUSSIAN: "servers.keep_gaussian()",
    stack_of(WEIGHTS): "averaging.step.distil(...)",
    stack_of(CLIENT_POSTERIOR): "swag.step.online_product(...)",
    stack_of(CURVATURE): "laplace.step.laplace(...)",
    **dict.fromkeys(_GRADIENTS, "chains.step.descend(...)"),
    total_of(CHANGE): "chains.step.couple(...) or chains.step.follow()",
    total_of(SITE_CHANGE): "factors.step.laplace_dual(...)",
}


def check_fit(work: ClientWork[Sent], rule: ModelRule[Sent, Given], step: ServerStep[Given]) -> None:
    """Raise InvalidArgument where the rule does not take what clients send, extra statistics too, or does not give what
    the step takes.
    """
    if not isinstance(step, ServerStep):
        raise InvalidArgument(f"server_step must be a ServerStep, such as servers.replace(), not {shown(step)}.")
    if rule.takes not in (None, work.sends):
        raise InvalidArgument(
            f"The clients send a {work.sends}, but the rule {rule.name!r} takes {rule.takes}: use rules.stacked(), or "
            "other client work, such as clients.variational(...)."
        )
    given = {STACK: stack_of, TOTAL: total_of}.get(rule.gives, lambda what: rule.gives)(work.sends)
    extended = step.takes == EXTENDED
    if given != (WEIGHTS if extended else step.takes):
        use, instead = _RULES.get(step.takes, f"a rule that gives {step.takes}"), _STEPS.get(given)
        raise InvalidArgument(
            f"The server step {step.name!r} takes {step.takes}, which {use} gives, but the rule {rule.name!r} gives "
            f"{given}: use that{f', or {instead}' if instead else ''}."
        )
    if extended != (work.extra is not None):
        raise InvalidArgument(
            f"The server step {step.name!r} needs statistics beside the weights, and these clients send none: use it "
            "with the client work that its docstring names."
            if extended
            else f"The clients send statistics beside their weights, and the server step {step.name!r} takes none: use "
            "the step of their algorithm."
        )
    if work.extra is not None and (rule.gives != WEIGHTS or work.sends != WEIGHTS):
        raise InvalidArgument(
            f"Statistics beside the weights are pooled as point weights are, and the rule {rule.name!r} gives "
            f"{rule.gives}: use a rule such as 'naive_weighted_average'."
        )


def check_compressible(
    rule: ModelRule[Sent, Given],
    weighting: str,
    robust: str | None,
    secure_sums: float | None,
    means: bool,
    variances: bool,
) -> None:
    """Raise InvalidArgument where the noise of a compressor, of means or of variances, would be a bias of the pool."""
    if not means and not variances:
        return
    if secure_sums is not None:
        raise InvalidArgument(
            "Under masks each number takes 8 bytes, whatever it is: leave out the compressor and variance_bits, or "
            "secure_sums."
        )
    what = f"the rule {rule.name!r} is not linear in the clients' means" if means and not rule.traits.linear else ""
    if variances and not rule.traits.averages:
        what = f"the rule {rule.name!r} averages neither precisions nor variances"
    if weighting in weightings.COMPARE_POSTERIORS:
        what = f"weighting by {weighting!r} follows from what they send"
    if robust is not None:
        what = f"the robust aggregator {robust!r} is not linear in it"
    if what:
        raise InvalidArgument(
            f"The noise of a compressor would be a bias, as {what}: use a rule such as 'log_linear_pool', weighted by "
            "'train_size', without a robust aggregator."
        )


def whole_rule(
    rule: AnyRule[Sent, Given], privacy: Privacy | None, weighting: str, robust: str | None
) -> ModelRule[Sent, Given]:
    """Return the rule over whole models, with privacy with clipping and noise (`rules.private`)."""
    if privacy is None:
        whole = cast(Any, rules.whole_model(rule))
        if getattr(whole, "randomise", None) is not None:
            raise InvalidArgument(
                "rules.private hides clients only if they are drawn by a secret and accounted for: give the plain rule "
                "and privacy=Privacy(...)."
            )
        return whole
    if not isinstance(privacy, Privacy):
        raise InvalidArgument(
            f"privacy must be a Privacy, such as privacy.Privacy(clip_norm=10, noise_multiplier=1, cohort_size=50), "
            f"not {shown(privacy)}."
        )
    how = {"weighting": (weighting, "equal"), "robust": (robust, None)}
    for name, (given, wanted) in how.items():
        if given != wanted:
            raise InvalidArgument(
                f"{name} is {given!r}, but privacy hides one client among others who count the same, clipped by its "
                f"own norm: use {name}={wanted!r}."
            )
    settings = privacy.checked()._asdict()
    del settings["delta"]
    return cast(Any, rules.private(cast(Any, rule), **settings))


def _summed(
    rule: ModelRule[Sent, Given], largest_weight: float | None, weighting: str, max_ratio: float | None
) -> ModelRule[Sent, Given]:
    if largest_weight is None:
        return rule
    if weighting in weightings.COMPARE_POSTERIORS:
        raise InvalidArgument(
            f"Weighting by {weighting!r} has no bound that is known beforehand, and secure sums need one: use 'equal' "
            "or 'train_size'."
        )
    if max_ratio is not None:
        raise InvalidArgument(
            "max_weight_ratio runs a round again with other weights, and under masks a round has one sum: leave it "
            f"out, as no client weighs more than secure_sums, {largest_weight:g}."
        )
    return cast(Any, rules.quantised(cast(Any, rule), max_weight=largest_weight))


def counts_alike(robust: str | None) -> bool:
    """Return whether all clients count the same under this robust aggregator, whatever the weighting."""
    return isinstance(robust, str) and not robust.startswith("clip")  # What is no name is refused later.


def defended_rule(
    whole: ModelRule[Sent, Given],
    work: ClientWork[Sent],
    weighting: str,
    robust: str | None,
    max_ratio: float | None,
    secure_sums: float | None,
) -> ModelRule[Sent, Given]:
    """Return the rule with a robust aggregator, with weights that follow from all clients, or over whole numbers;
    `max_ratio` is of a weight to the median one.
    """
    if robust is None:
        defended: Any = whole
    else:
        make = rules.parse_robust(robust)
        if work.sends != WEIGHTS:
            raise InvalidArgument(
                f"The robust aggregator {robust!r} is of a model's weights, but the clients send a {work.sends}: "
                "leave it out."
            )
        defended = make(cast(Any, whole))
    if weighting in weightings.STACKED_WEIGHTINGS:
        if isinstance(defended, rules.GatherRule):
            raise InvalidArgument(
                f"The robust aggregator {robust!r} counts all clients the same, so that weighting by {weighting!r} "
                "can't serve it: use 'equal', or the robust aggregator clip."
            )
        weigh = weightings.STACKED_WEIGHTINGS[weighting]
        cap = lambda weights: weights if max_ratio is None else weightings.capped(weights, max_ratio)
        defended = rules.reweighted(defended, lambda stacked: cap(weigh(stacked.posterior)))
    return _summed(rules.whole_model(defended), secure_sums, weighting, max_ratio)
