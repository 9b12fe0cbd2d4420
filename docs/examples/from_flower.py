"""Federated averaging, and with three words changed its Bayesian cousin."""

import tfp_bfl as bfl

train, test = bfl.data.load("digits"), bfl.data.load("digits", "test")
clients = train.partition(bfl.data.dirichlet(10, 0.5), seed=0)


def model(kind):
    return lambda: bfl.models.lenet(kind, train.element_shape, train.num_classes, seed=0)


options = {"element_spec": clients.element_spec, "local_epochs": 5, "batch_size": 32, "learning_rate": 0.03}
averaging = bfl.algorithms.fed_opt(model("deterministic"), **options)
bayesian = bfl.algorithms.variational(model("flipout"), **options)

for name, process in {"FedAvg": averaging, "Bayesian": bayesian}.items():
    result = bfl.simulate(process, clients, rounds=20, engine="local")
    scores = bfl.evaluation.evaluate(result.model, test.features, test.labels).metrics
    print(f"{name}: accuracy {scores['accuracy']:.2f}, epistemic {scores['epistemic']:.4f}")
