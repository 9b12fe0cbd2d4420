"""The rows of a cell: every way to predict from one training of the clients."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.fl_swag import controls
from experiments.fl_swag.config import CORRECTED, DEFAULT_FLOOR
from experiments.fl_swag.federation import Federation
from tfp_bfl.algorithms.swag.product import gaussian_product, with_random_effects
from tfp_bfl.evaluation import Evaluation
from tfp_bfl.posterior import LowRank, MeanField, marginals
from tfp_bfl.weights import ClientPosterior, ModelWeights, assign_weights, predictive_model, split_head

AT_ONCE = 500
SCORED_AT_ONCE = 2500  # Each batch draws the weights anew.


class Network(NamedTuple):
    """The weights that the clients' posteriors are over, and the examples to predict.

    Fields:
      model: the whole network, or its last layer.
      features: of the scored examples, those of the frozen layers in the second case: [N, ...].
      labels: [N].
      num_samples: weight samples of a prediction.
    """

    model: tf.keras.Model
    features: np.ndarray
    labels: np.ndarray
    num_samples: int


class Row(NamedTuple):
    """One way to predict.

    Fields:
      method: its name.
      floor: of the clients' variances, None where there are none.
      evaluation: on the scored examples.
      seconds: of pooling and predicting.
    """

    method: str
    floor: Any
    evaluation: Evaluation
    seconds: float


def network(data: Federation, last_layer: bool, num_samples: int) -> Network:
    """Return the network with its first weights; for the last layer alone, with the features of all scored examples."""
    model, features = data.model_fn(), data.features
    assign_weights(model, data.start)
    if last_layer:
        parts = split_head(model)
        batches = (features[i : i + AT_ONCE] for i in range(0, len(features), AT_ONCE))
        predict = tf.function(lambda x: parts.features(tf.image.convert_image_dtype(x, tf.float32), training=False))
        model, features = parts.head, np.concatenate([predict(tf.constant(x)).numpy() for x in batches])
    return Network(model, features, data.labels, num_samples)


def drawn(q: Any) -> ModelWeights:
    """Return weights with the posterior q, from which predictions take samples."""
    return ModelWeights(q, (), MeanField((), ()))


def fixed(weights: Any) -> ModelWeights:
    """Return one set of weights, without a posterior."""
    return ModelWeights(MeanField((), ()), weights, MeanField((), ()))


def evaluate(net: Network, weights: ModelWeights) -> Evaluation:
    """Score the mean prediction of samples from a posterior, or the prediction with point weights."""
    model, options = (
        predictive_model(net.model, weights),
        {"num_samples": net.num_samples, "batch_size": SCORED_AT_ONCE},
    )
    return bfl.evaluation.evaluate(model, net.features, net.labels, **options)


def mixture(evaluations: Sequence[Evaluation], shares: np.ndarray, labels: np.ndarray) -> Evaluation:
    """Return the mean of several models' predictions by shares [K]; what they differ by is epistemic.

    p = sum_k r_k p_k,   aleatoric = sum_k r_k aleatoric_k,   epistemic = sum_k r_k (epistemic_k + |p_k - p|^2)
    mutual information = H(p) - sum_k r_k (H(p_k) - mutual information_k)
    """
    average = lambda values: np.tensordot(shares, np.stack(values), 1)
    p = average([e.probabilities for e in evaluations]).astype(np.float32)
    apart = average([np.sum((e.probabilities - p) ** 2, -1) for e in evaluations])
    aleatoric = average([e.aleatoric for e in evaluations])
    epistemic = average([e.epistemic for e in evaluations]) + apart
    of_one = bfl.evaluation.decompose(p[np.newaxis])
    metrics = {
        "accuracy": bfl.evaluation.accuracy(p, labels),
        "test_nll": bfl.evaluation.negative_log_likelihood(p, labels),
        "ece": bfl.evaluation.expected_calibration_error(p, labels),
        "brier": bfl.evaluation.brier_score(p, labels),
        "aleatoric": aleatoric.mean(),
        "epistemic": epistemic.mean(),
    }
    entropy = of_one.entropy.numpy()
    information = entropy - average([e.entropy - e.mutual_information for e in evaluations])
    return Evaluation(
        {k: float(v) for k, v in metrics.items()}, p, entropy, aleatoric, epistemic, np.maximum(information, 0)
    )


def posteriors_of(clients: ClientPosterior) -> list[LowRank]:
    """Return the clients' posteriors, each by itself."""
    pick = lambda k: tf.nest.map_structure(lambda x: tf.constant(x[k]), clients.posterior)
    return [pick(k) for k in range(len(clients.client))]


def floored(q: LowRank, floor: float) -> LowRank:
    """Return the posterior that min_variance = floor would have given, from one of a lower floor."""
    return q._replace(diagonal=tf.nest.map_structure(lambda a: tf.maximum(a, floor / 2), q.diagonal))


def without_halves(q: LowRank) -> MeanField:
    """Return SWAG-Diagonal: the variances of the iterates, of which `q` holds half, without the low-rank part."""
    return MeanField(q.mean, tf.nest.map_structure(lambda a: 2 * a, q.diagonal))


def last_weights(q: LowRank, num_collected: int) -> tuple[tf.Tensor, ...]:
    """Return the final weights of the client's training, if collected: its mean plus its last column.

    The last column is theta_n - mean_n, the mean after n collections; `posterior_of` divided it by sqrt(2 (K - 1)).
    """
    held = tf.nest.flatten(q.deviations)[0].shape[0]
    row, scale = (num_collected - 1) % held, np.sqrt(2 * (min(num_collected, held) - 1))
    return tf.nest.map_structure(lambda m, u: m + tf.cast(scale, u.dtype) * u[row], q.mean, q.deviations)


def average(weights: Sequence[Any], shares: np.ndarray) -> Any:
    """Return sum_k r_k w_k, leaf by leaf."""
    return tf.nest.map_structure(lambda *w: tf.tensordot(tf.constant(shares, w[0].dtype), tf.stack(w), 1), *weights)


def products(posteriors: Sequence[LowRank], known: Sequence[LowRank], floor: float) -> Iterator[tuple[str, Any]]:
    """Return the products by name, each as a function to call; `known` with what the clients' data leave open."""
    own = [floored(q, floor) for q in posteriors]
    yield "FL-SWAG", lambda: gaussian_product(own)
    yield "FL-SWAG, diagonal", lambda: gaussian_product(own, diagonal_only=True)
    yield "FL-SWAG, diagonal, random effects", lambda: gaussian_product(with_random_effects([*map(marginals, own)]))
    yield "FL-SWAG, diagonal without halves", lambda: gaussian_product([without_halves(q) for q in own])
    if floor == DEFAULT_FLOOR:
        yield "FL-SWAG, curvature alone", lambda: gaussian_product(known, diagonal_only=True)
        yield CORRECTED, lambda: gaussian_product(with_random_effects([*map(marginals, known)]))


def unchanged(net: Network) -> Row:
    """Score the initial weights of the clients."""
    started = time.perf_counter()
    evaluation = evaluate(net, fixed(tuple(map(tf.identity, net.model.trainable_variables))))
    return Row("weights at the start", None, evaluation, time.perf_counter() - started)


def rows(
    net: Network,
    clients: ClientPosterior,
    floors: Sequence[float],
    num_collected: int,
    alone: bool,
    held: controls.Held,
    known: Sequence[LowRank],
) -> Iterator[Row]:
    """Return every row: products, averages of weights, the controls without SWAG; if `alone`, also each client, and
    averages of their predictions, by posteriors of the first floor.
    """
    posteriors = posteriors_of(clients)
    sizes = np.asarray(clients.num_examples, np.float64)
    shares = {"": np.full(len(sizes), 1 / len(sizes)), "w": sizes / sizes.sum()}

    def timed(method: str, floor: Any, make: Any) -> Row:
        started = time.perf_counter()
        evaluation = make()
        return Row(method, floor, evaluation, time.perf_counter() - started)

    for floor in floors:
        for name, product in products(posteriors, known, floor):
            yield timed(name, floor, lambda product=product: evaluate(net, drawn(product())))
    ends = [last_weights(q, num_collected) for q in posteriors]
    for prefix, share in shares.items():
        yield timed(f"{prefix}FedAvg", None, lambda share=share: evaluate(net, fixed(average(ends, share))))
    # Without any posterior: what the clients' iterates are about.
    centers = [q.mean for q in posteriors]
    yield timed("mean of SWAG means", None, lambda: evaluate(net, fixed(average(centers, shares[""]))))
    mean = average(ends, shares[""])
    at = functools.partial(controls.temperature, held, mean)
    one = lambda: mixture([controls.scaled(evaluate(net, fixed(mean)), at())], np.ones(1), net.labels)
    yield timed("FedAvg, one temperature", None, one)
    for name, q in controls.posteriors(held, ends, mean):
        yield timed(name, None, lambda q=q: evaluate(net, drawn(q)))
    if not alone:
        return
    for floor in floors[:1]:
        single = [
            timed(f"client {k}", floor, lambda q=q, floor=floor: evaluate(net, drawn(floored(q, floor))))
            for k, q in enumerate(posteriors)
        ]
        yield from single
        # By its score on the test set, which no server has: whether it is that client which spoils the average.
        lowest = int(np.argmin([row.evaluation.metrics["accuracy"] for row in single]))
        others = ends[:lowest] + ends[lowest + 1 :]
        rest = average(others, np.full(len(others), 1 / len(others)))
        yield timed("FedAvg without the lowest client", None, lambda rest=rest: evaluate(net, fixed(rest)))
        for prefix, share in shares.items():
            make = lambda single=single, share=share: mixture([row.evaluation for row in single], share, net.labels)
            row = timed(f"{prefix}BayAvg", floor, make)
            yield row._replace(seconds=row.seconds + sum(one.seconds for one in single))
