"""A client without TensorFlow or this library: logistic regression in NumPy on a third of the breast cancer data.

It trains by gradient descent from the server's means, and sends its weights with variances from the curvature at them:
1 / (prior precision + diagonal of the information of its rows, scaled to the rows of all clients).
"""

import numpy as np
import nvflare.client as flare
from nvflare.client import FLModel
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

NUM_CLIENTS, NUM_TRAIN, PRIOR_PRECISION = 3, 450, 1.0


def rows(number):
    """Return features [n, 30] and labels [n] of a client; those of the test data for number None."""
    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    chosen = order[NUM_TRAIN:] if number is None else order[:NUM_TRAIN][number::NUM_CLIENTS]
    return StandardScaler().fit_transform(features)[chosen], labels[chosen]


def train(arrays, features, labels, steps=20, rate=0.5):
    """Return means and variances of a client that starts from the server's means."""
    design = np.column_stack([features, np.ones(len(labels))])
    mean = np.append(arrays["mean/weights"], arrays["mean/bias"])
    for _ in range(steps):
        error = 1 / (1 + np.exp(-design @ mean)) - labels
        mean = mean - rate * (design.T @ error / len(labels) + PRIOR_PRECISION * mean / NUM_TRAIN)
    p = 1 / (1 + np.exp(-design @ mean))
    information = NUM_TRAIN / len(labels) * ((p * (1 - p)) @ design**2)
    variance = 1 / (PRIOR_PRECISION + information)
    kinds = {"mean": mean, "variance": variance}
    return {f"{kind}/{name}": x[part] for kind, x in kinds.items() for name, part in PARTS.items()}


PARTS = {"weights": slice(0, 30), "bias": 30}

if __name__ == "__main__":
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2]) - 1
    features, labels = rows(number)
    while flare.is_running():
        message = flare.receive()
        answer = train(message.params, features, labels)
        flare.send(FLModel(params=answer, meta={"num_examples": len(labels)}))
