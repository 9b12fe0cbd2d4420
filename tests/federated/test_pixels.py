"""The model of a result in Keras' own calls: bytes are pixels there too."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import refuses
from tfp_bfl.errors import InvalidArgument

RNG = np.random.default_rng(2)
PIXELS = RNG.integers(0, 256, (12, 8, 8, 1), np.uint8)
CLIENTS = bfl.data.Source("made", "train", PIXELS, np.arange(12) % 2).partition(bfl.data.iid(2), seed=0)
ALGORITHMS = {"fed_opt": "deterministic", "variational": "flipout", "ensemble": "deterministic"}


@pytest.fixture(scope="module", params=ALGORITHMS)
def model(request):
    build = lambda seed: lambda: bfl.models.mlp(ALGORITHMS[request.param], (8, 8, 1), 2, hidden=(4,), seed=seed)
    averaged = lambda seed: bfl.algorithms.fed_opt(build(seed), local_epochs=1)
    if request.param == "ensemble":
        process = bfl.algorithms.ensemble(averaged, members=2)
    else:
        process = getattr(bfl.algorithms, request.param)(build(0), local_epochs=1)
    return bfl.simulate(process, CLIENTS, rounds=1, engine="local").model


def test_bytes_are_scaled(model):
    floats = (PIXELS / 255).astype(np.float32)
    with bfl.layers.sampling("mean"):
        np.testing.assert_allclose(model(PIXELS), model(floats), atol=1e-6)
    model.compile(run_eagerly=False)
    np.testing.assert_allclose(model.predict(PIXELS, verbose=0), model.predict(floats, verbose=0), atol=1e-6)
    wanted = bfl.evaluation.predict(model, PIXELS, num_samples=4)
    np.testing.assert_allclose(bfl.evaluation.predict(model, floats, num_samples=4), wanted, atol=1e-6)
    if not bfl.evaluation.is_stochastic(model):
        np.testing.assert_allclose(tf.nn.softmax(model.predict(PIXELS, verbose=0)), wanted[0], atol=1e-6)


def test_one_image_without_a_batch_is_refused(model):
    message = r"takes a batch of images \[None, 8, 8, 1\], and here is \[.*\]: give one image as image\[None\]"
    model.predict(PIXELS, verbose=0)  # After other batches, whose graph is of any number of axes.
    refuses(message, model.predict, PIXELS[0], verbose=0)
    refuses(message, model.predict, tf.constant(PIXELS[0]), verbose=0)
    with pytest.raises(InvalidArgument, match=message), bfl.layers.sampling("mean"):
        model(PIXELS[0])


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16])
def test_other_whole_numbers_are_refused(model, dtype):
    message = r"images have the type u?int.., but must be bytes"
    with pytest.raises(InvalidArgument, match=message), bfl.layers.sampling("mean"):
        model(PIXELS.astype(dtype))
    refuses(message, model.predict, PIXELS.astype(dtype), verbose=0)


def test_floats_of_another_scale_than_that_of_the_training_are_refused(model):
    message = "images are floats from 0 to 255, but the model was trained on pixels from 0 to 1: give uint8, or divide"
    wide = PIXELS.astype(np.float32)
    wide[0, 0, 0], wide[0, 0, 1] = 0, 255
    calls = {
        "call": model,
        "predict": lambda x: model.predict(x, verbose=0),
        "keyword": lambda x: model.predict(x=x, verbose=0),
        "list": lambda x: model.predict([x], verbose=0),
        "predict_on_batch": model.predict_on_batch,
    }
    for name, call in calls.items():
        with pytest.raises(InvalidArgument, match=message), bfl.layers.sampling("mean"):
            call(wide)
        with pytest.raises(InvalidArgument, match="images are floats from nan to nan"), bfl.layers.sampling("mean"):
            call(np.full_like(wide, np.nan))
        assert np.shape(call(wide / 255)) == (12, 2), name
    # Predictions of this library read whole numbers as pixels.
    wanted = bfl.evaluation.predict(model, PIXELS, num_samples=4)
    np.testing.assert_array_equal(bfl.evaluation.predict(model, wide, num_samples=4)[:, 1:], wanted[:, 1:])
