"""Which Keras a program has that imports this library: Keras 2, in whatever order it imports; where it can't, one
sentence. Only where TensorFlow brings Keras 3 could it be another."""

import importlib.util
import os
import subprocess
import sys

import pytest

BASE = "\nimport tensorflow as tf\nprint(tf.keras.Model.__module__, end=' ')"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None, reason="TensorFlow has no other Keras than 2 here"
)


def run(program):
    # What an import in this process has set, a program would inherit.
    env = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)


@pytest.mark.parametrize(
    "program",
    [
        "import keras\nimport tensorflow as tf\nimport tfp_bfl",
        "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '0'\nimport tfp_bfl",
    ],
)
def test_keras_is_2_in_any_order(program):
    program += BASE + "\nfrom tensorflow.keras.layers import Dense\nprint(Dense.__mro__[1].__module__)"
    program += "\nassert issubclass(Dense, tf.keras.layers.Layer)"
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert all(name.startswith("tf_keras.src.") for name in done.stdout.split()) and len(done.stdout.split()) == 2


@pytest.mark.parametrize("first", ["from tensorflow.keras import layers", "import tensorflow as tf\ntf.keras.Model"])
def test_keras_3_taken_before_is_one_sentence(first):
    done = run(f"{first}\nimport tfp_bfl")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("or set the environment variable TF_USE_LEGACY_KERAS=1.")
