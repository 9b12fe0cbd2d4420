"""A dataset: arrays of features and labels as a source, which partitions itself over clients."""

import numpy as np
from sklearn.datasets import load_wine

import tfp_bfl as bfl


def wine(split):
    """Return three cultivars of wine by 13 measurements; every fifth example is for the test."""
    table = load_wine()
    is_test = np.arange(len(table.target)) % 5 == 0
    train = table.data[~is_test]
    keep = is_test if split == "test" else ~is_test
    features = ((table.data - train.mean(0)) / train.std(0)).astype(np.float32)  # images would stay uint8
    labels = table.target.astype(np.int32)
    return bfl.data.Source("wine", split, features[keep], labels[keep], class_names=tuple(table.target_names))


if __name__ == "__main__":
    train = wine("train")
    print(train)
    clients = train.partition(bfl.data.dirichlet(num_clients=5, alpha=0.5), seed=0)
    print(clients.sizes)
