"""Scores of each client's personal model at the end of a run, before and after a step on the client's data."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Optional

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options import class_weights
from tfp_bfl.app.options.config import RunConfig

NAME = "clients.jsonl"
# Of a client's training examples, to adapt to.
EXAMPLES = 64


def everybody(clients: bfl.data.Clients, unseen: Optional[bfl.data.Clients]) -> bfl.data.Clients:
    """Return the training clients followed by the held-out clients."""
    return clients if unseen is None else bfl.data.Clients(clients.source, (*clients.indices, *unseen.indices))


def shards(config: RunConfig, test: bfl.data.Source, clients: bfl.data.Clients) -> Optional[bfl.data.Clients]:
    """Return the test data, each class shared out as the clients hold it in training; None where nobody asked for
    scores.

    Raises:
      InvalidArgument: the test data are too few for the clients.
    """
    return test.partition(bfl.data.like(clients), seed=config.seed) if config.evaluate_clients else None


def score(
    config: RunConfig,
    process: bfl.federated.BayesianProcess,
    result: bfl.federated.SimulationResult,
    clients: bfl.data.Clients,
    shards: bfl.data.Clients,
    trained: bfl.data.Clients,
    **prediction: Any,
) -> list[bfl.federated.ClientScores]:
    """Evaluate every client before and after one adaptation step at the inner rate.

    The class counts of the clients that `trained` give balanced class weights.
    """
    evaluate = lambda model, *examples: bfl.evaluation.evaluate(model, *examples, **prediction).metrics
    return bfl.federated.evaluate_clients(
        process,
        result,
        clients,
        shards,
        evaluate,
        adaptation=one_step(config, process, trained),
        most_examples=EXAMPLES,
        seed=config.seed,
        noise=config.client_noise,
    )


def one_step(config: RunConfig, process: bfl.federated.BayesianProcess, trained: bfl.data.Clients) -> Any:
    """Return the client work of one adaptation step at the inner rate, with the augmentation of training and by its
    loss, that of the examples of the step: a sum of KL terms is divided by their number. Learned variances too adapt
    at this rate. The KL term of p_fed_bayes is to the common posterior and left out.
    """
    of_loss: Any = {"kl_weight": 0.0}
    if config.algorithm != "p_fed_bayes":
        of_loss = {name: getattr(config, name) for name in ("kl_weight", "kl_reduction")}
    if config.class_weight:
        of_loss |= class_weights.likelihood(config.class_weight, lambda: trained, {})
    work = bfl.clients.meta_learning(
        process.model_fn,
        local_epochs=1,
        batch_size=EXAMPLES,
        learning_rate=config.inner_rate,
        clip_norm=config.clip_norm,
        **of_loss,
        logit_rate=0.0 if getattr(config, "variances", None) == "constant_variances" else None,
    )
    return work if config.augmentation is None else bfl.clients.augmented(work, config.augmentation)


def summarise(scores: list[bfl.federated.ClientScores], number: int) -> dict[str, float]:
    """Return the clients' mean accuracy and the least one, before and after the step; of those from
    `number` on apart.
    """
    summary = {}
    for group, part in {"client": scores[:number], "unseen_client": scores[number:]}.items():
        for when, adapted in {"": False, "adapted_": True}.items() if part else ():
            of_all = bfl.federated.summarise_clients(part, adapted=adapted)
            summary[f"{when}{group}_accuracy"] = of_all["uniform"]
            summary[f"{when}{group}_accuracy_least"] = of_all["least"]
    return summary


def write(folder: pathlib.Path, scores: list[bfl.federated.ClientScores]) -> None:
    """Write the scores to the folder, as one line of JSON for each client."""
    lines = "".join(json.dumps(each._asdict()) + "\n" for each in scores)
    (folder / NAME).write_text(lines, encoding="utf-8")
