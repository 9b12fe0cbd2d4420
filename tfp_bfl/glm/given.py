"""Tables of features that are given: those of an archive, and those below the last layer of a run's network."""

import pathlib
from typing import Any

import numpy as np

from tfp_bfl.data.names import canonical
from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.files import name as name_of
from tfp_bfl.files.arrays import read_arrays

# Columns of outcome and client.
OUTCOME, CLIENT = "labels", "clients"
_MOST_BYTES = 2**34
_AT_ONCE = 500


def read_archive(path: str | pathlib.Path) -> Any:
    """Read an archive .npz as a table of pyarrow: features [N, F] as columns x1 to xF, and all arrays [N] by name."""
    path = pathlib.Path(path)
    stored = read_arrays(path, "archive", _MOST_BYTES, compressed=True)
    arrays = {canonical(name): x for name, x in stored.items()}
    features = lookup(arrays, "features", "array", f"in {name_of(path)}")
    if features.ndim != 2 or features.dtype.kind not in "biuf" or not len(features):
        raise InvalidArgument(
            f"The array features of {name_of(path)} has the shape {list(features.shape)} and the type "
            f"{features.dtype}, but must be numbers [N, F]."
        )
    columns = {name: x for name, x in arrays.items() if x.shape == (len(features),) and not name.startswith("test_")}
    if "class_names" in arrays and columns.get(OUTCOME, np.zeros(0)).dtype.kind in "iu":
        columns[OUTCOME] = arrays["class_names"][columns[OUTCOME]]
    return _table(features, columns)


def read_run(run: str | pathlib.Path, family: str) -> Any:
    """Compute the features below the last layer of a run's network: a table with the training rows of its clients.

    The network has the weights with which the run's model predicts, at their posterior's mean. It imports TensorFlow.
    """
    import tfp_bfl as bfl
    from tfp_bfl.app.one_run import after, datasets, job, records
    from tfp_bfl.evaluation.unusual import penultimate

    folder = pathlib.Path(run)
    config = records.config_with_code(folder, {})
    after.check_one_network(config, "The network below the last layer")
    data = datasets.load(config)
    config = datasets.with_clients(config, data)
    if data.train.target is None and family not in ("bernoulli", "multinomial"):
        raise InvalidArgument(
            f"The labels of {name_of(run)} are classes, which require --family bernoulli or multinomial."
        )
    parts = job.prepare(config.model_copy(update={"engine": None}), data)
    weights = after.final_weights(parts.process, config, folder)
    below = penultimate(bfl.weights.predictive_model(parts.process.model_fn(), weights))
    names = data.client_names or [str(k) for k in range(parts.clients.num_clients)]
    found, labels, owners = [], [], list[str]()
    for k in range(parts.clients.num_clients):
        examples = parts.clients.examples(k)
        rows = range(0, len(examples.labels), _AT_ONCE)
        found += [np.asarray(below(examples.features[i : i + _AT_ONCE])) for i in rows]
        labels.append(examples.labels)
        owners += [names[k]] * len(examples.labels)
    outcome, target = np.concatenate(labels), data.train.target
    outcome = np.array(data.train.class_names)[outcome] if target is None else outcome * target.scale + target.mean
    return _table(np.concatenate(found), {OUTCOME: outcome, CLIENT: np.array(owners)})


def _table(features: np.ndarray, columns: dict[str, np.ndarray]) -> Any:
    import pyarrow

    text = {name: x.astype(str) if x.dtype.kind in "SU" else x for name, x in columns.items()}
    return pyarrow.table({**{f"x{j + 1}": x for j, x in enumerate(features.astype(np.float64).T)}, **text})
