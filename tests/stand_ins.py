"""Small made datasets in the files that readers of CIFAR-100 and FEMNIST expect."""

import pathlib
import sqlite3

import numpy as np
import tensorflow as tf

from tfp_bfl.data.equal_partitions import GROUPS


def write_cifar100(folder: pathlib.Path, number: int) -> None:
    """Write both splits of so many images, each of one grey value, its class, as TFDS prepares them."""
    import tensorflow_datasets as tfds

    own = tfds.builder("cifar100", data_dir=folder)
    with tfds.core.registered.skip_registration():

        class Made(tfds.core.GeneratorBasedBuilder):
            VERSION, pkg_dir_path = own.version, own.pkg_dir_path

            def _info(self):
                return tfds.core.DatasetInfo(
                    builder=self, features=own.info.features, supervised_keys=own.info.supervised_keys
                )

            def _split_generators(self, dl_manager):
                return {split: self._generate_examples(split) for split in ("train", "test")}

            def _generate_examples(self, split):
                for i in range(number):
                    image = np.full((32, 32, 3), i % 100, np.uint8)
                    yield i, {"id": f"{i}", "image": image, "label": i % 100, "coarse_label": GROUPS[100][i % 100]}

    Made.name = "cifar100"
    Made(data_dir=folder).download_and_prepare()


def write_femnist(folder: pathlib.Path, num_writers: int, number: int) -> None:
    """Write so many characters of each writer, for both splits, into the database that TFF reads."""
    rng, number_of = np.random.default_rng(0), {"all_train": number, "all_test": max(1, number // 10)}
    with sqlite3.connect(folder / "emnist_all.sqlite") as database:
        database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for split, examples in number_of.items():
            for k in range(num_writers):
                name = f"f{k:04}_{k % 100:02}"
                rows = [(split, name, _character(rng)) for _ in range(examples)]
                database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
                database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (name, split, examples))
    database.close()


def _character(rng: np.random.Generator) -> bytes:
    """Return a serialised example: white paper is 1, a label of 62."""
    pixels = tf.train.FloatList(value=rng.uniform(size=784).astype(np.float32))
    label = tf.train.Int64List(value=[int(rng.integers(62))])
    features = {"pixels": tf.train.Feature(float_list=pixels), "label": tf.train.Feature(int64_list=label)}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
