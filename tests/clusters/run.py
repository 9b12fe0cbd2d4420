"""A run on the machines of a cluster, reported by round; a test starts it on the first machine."""

import hashlib
import json
import sys
import time

import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.errors import Error


def process_of(files, epochs=40):
    model = lambda: bfl.models.mlp("flipout", files.source.element_shape, files.source.num_classes, hidden=(32,))
    work = bfl.clients.variational(model, local_epochs=epochs, batch_size=8)
    return bfl.algorithms.compose(model, work, "log_linear_pool", bfl.servers.replace())


def digest(state):
    sha = hashlib.sha256()
    for leaf in tf.nest.flatten(state):
        sha.update(leaf.tobytes())
    return sha.hexdigest()


def main():
    folder, address, rounds = sys.argv[1:]

    def tell(row):
        print(json.dumps({"round": row["round"], "seconds": row["train_seconds"], "at": time.time()}), flush=True)

    try:
        files = bfl.data.ClientFiles(folder)
        with bfl.engines.ray.ray_runtime(address, 2) as runtime:
            result = bfl.simulate(process_of(files), files, int(rounds), engine="ray", runtime=runtime, on_round=tell)
        print(json.dumps({"digest": digest(result.state)}), flush=True)
    except Error as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main()
