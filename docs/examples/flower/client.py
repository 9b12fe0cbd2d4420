"""Clients in PyTorch for `server.py`; lines that plain federated averaging does not have end in "# Bayes".

Three clients share the breast cancer data of scikit-learn. Each trains a network by SGD and sends its weights with the
diagonal of its Fisher information as precision. SGD is written out because torch.optim crashes in a process that has
imported TensorFlow, as the processes of Flower's simulation do where it is installed. Clients on hosts of their own
need no TensorFlow, and may use torch.optim.
"""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn

NUM_CLIENTS = 3
FEATURES, LABELS = load_breast_cancer(return_X_y=True)
FEATURES = torch.tensor(StandardScaler().fit_transform(FEATURES), dtype=torch.float32)
LABELS = torch.tensor(LABELS)
ORDER = torch.tensor(np.random.default_rng(0).permutation(len(LABELS)))
TRAIN, TEST = ORDER[:450], ORDER[450:]
PRIOR_PRECISION, TEMPERATURE = 10.0, 0.1  # Bayes


def make_model():
    """Return the network, with the same initial weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


def variances(model, features, labels):  # Bayes
    """Return 1 / (prior precision + diagonal of the Fisher information of all examples / temperature), by name."""
    total = {name: torch.full_like(w, PRIOR_PRECISION) for name, w in model.named_parameters()}  # Bayes
    for x, y in zip(features, labels):  # Bayes
        model.zero_grad()  # Bayes
        nn.functional.cross_entropy(model(x), y).backward()  # Bayes
        for name, w in model.named_parameters():  # Bayes
            total[name] += len(TRAIN) / len(labels) / TEMPERATURE * w.grad**2  # Bayes
    return {name: 1 / x for name, x in total.items()}  # Bayes


client_app = ClientApp()


@client_app.train()
def train(message, context):
    """Train from the server's means on, and return the client's means and variances."""
    number = int(context.node_config["partition-id"])
    features, labels = FEATURES[TRAIN[number::NUM_CLIENTS]], LABELS[TRAIN[number::NUM_CLIENTS]]
    model, arrays = make_model(), message.content["arrays"]
    model.load_state_dict({name: torch.tensor(arrays[f"mean/{name}"].numpy()) for name in model.state_dict()})  # Bayes
    torch.manual_seed(1000 * message.content["config"]["server-round"] + number)
    momentum = [torch.zeros_like(w) for w in model.parameters()]
    for _ in range(2):
        for batch in torch.randperm(len(labels)).split(32):
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(features[batch]), labels[batch])
            penalty = PRIOR_PRECISION * TEMPERATURE / 2 / len(TRAIN)  # Bayes
            loss += penalty * sum((w**2).sum() for w in model.parameters())  # Bayes
            loss.backward()
            with torch.no_grad():
                for w, m in zip(model.parameters(), momentum):
                    w -= 0.1 * m.mul_(0.9).add_(w.grad)
    reply = {f"mean/{name}": Array(w.detach().numpy()) for name, w in model.named_parameters()}  # Bayes
    for name, x in variances(model, features, labels).items():  # Bayes
        reply[f"variance/{name}"] = Array(x.numpy())  # Bayes
    metrics = MetricRecord({"num-examples": len(labels), "partition-id": number})
    return Message(RecordDict({"arrays": ArrayRecord(reply), "metrics": metrics}), reply_to=message)
