"""Exported models of numbers far from zero: float64 rows and predictions keep their digits, float32 is warned of."""

import csv
import logging

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import refuses
from tfp_bfl.app.one_run.predict import predict

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(12, 2))
MEANS, STDDEVS = np.array([1e9, 50.0]), np.array([10.0, 9.0])
TARGET = ["price", 1e9, 10.0]


def data_of(target, mean=1e9):
    columns = [["time", mean, 10.0], ["age", 50.0, 9.0], ["constant", 1e9, 0.0]]
    return {"columns": columns, **({"target": target} if target else {})}


def model_of(target):
    return bfl.models.mlp("flipout", (3,), 2 if target else 3, seed=1)


def rows_of(mean=1e9):
    return np.concatenate([[mean, 50.0] + STDDEVS * Z, np.full((12, 1), 1e9)], 1)


@pytest.fixture(scope="module", params=[None, TARGET], ids=["classes", "numbers"])
def saved(request, tmp_path_factory):
    """A model of columns far from zero; its own predictions for standardised rows, and its export."""
    folder, model = tmp_path_factory.mktemp("saved") / "model", model_of(request.param)
    bfl.export.save(model, folder, bfl.export.Info(data=data_of(request.param)))
    plain = folder.with_name("plain")
    bfl.export.save(model, plain, bfl.export.Info(data={"target": ["price", 0.0, 1.0]} if request.param else None))
    rows = np.float32(np.concatenate([Z, np.zeros((12, 1))], 1))
    wanted = bfl.export.load(plain).predict(rows, num_samples=5, seed=2)
    return request.param, folder, {name: value.numpy() for name, value in wanted.items()}


def in_units(name, wanted, target):
    if target is None or name not in ("mean", "low", "high", "stddev", "aleatoric", "epistemic"):
        return wanted
    _, shift, scale = target
    factor = {"stddev": scale, "aleatoric": scale**2, "epistemic": scale**2}.get(name)
    return shift + scale * np.float64(wanted) if factor is None else factor * wanted


def test_float64_rows_keep_their_digits(saved):
    target, folder, wanted = saved
    loaded = bfl.export.load(folder)
    answer = loaded.predict(rows_of(), num_samples=5, seed=2)
    for name, value in wanted.items():
        atol = 1e-4 if target is None or name in ("mean", "low", "high") else 1e-3
        rtol = 1e-4 if target is None else 1e-12
        np.testing.assert_allclose(answer[name], in_units(name, value, target), rtol, atol)
    if target:
        assert answer["mean"].dtype == tf.float64 and len(np.unique(answer["mean"])) == 12
        limited = loaded.abstain(rows_of(), 5, 2, float(np.median(answer["stddev"])))["mean"].numpy()
        assert np.isnan(limited).sum() == 6
        assert loaded.sample(rows_of(), 5, 2)["mean"].dtype == tf.float64 == loaded.mean(rows_of())["mean"].dtype
    numbers = {"num_samples": tf.constant(5), "seed": tf.constant(2)}
    signature = loaded.signatures["predict"](images=tf.constant(rows_of(), tf.float32), **numbers)
    assert all(value.dtype in (tf.float32, tf.int32) for value in signature.values())


def test_a_table_is_predicted_as_the_model_was_trained(saved, tmp_path):
    target, folder, wanted = saved
    with open(tmp_path / "new.csv", "w", newline="") as file:
        csv.writer(file).writerows([["time", "age", "constant"], *rows_of().tolist()])
    found = predict(folder, tmp_path / "new.csv", num_samples=5, seed=2).rows
    if target:
        for name in ("mean", "low"):
            exact = 1e9 + 10 * np.float64(wanted[name])
            np.testing.assert_allclose([getattr(row, name) for row in found], exact, rtol=0, atol=1e-3)
    else:
        np.testing.assert_allclose([row.confidence for row in found], wanted["probabilities"].max(1), rtol=1e-4)


def test_the_card_names_what_float32_rounds(saved):
    target, folder, _ = saved
    card = (folder / "model_card.md").read_text()
    assert ("by up to 6 of one: time, price." if target else "by up to 6 of one: time.") in " ".join(card.split())


@pytest.mark.parametrize(("mean", "warns"), [(9e4, False), (2e5, True)])
def test_an_export_warns_of_columns_far_from_zero(tmp_path, caplog, mean, warns):
    with caplog.at_level(logging.WARNING):
        bfl.export.save(model_of(None), tmp_path / "model", bfl.export.Info(data=data_of(None, mean)))
    assert any("time. Call the functions with float64" in x.getMessage() for x in caplog.records) == warns
    assert ("float32 rounds" in (tmp_path / "model" / "model_card.md").read_text()) == warns


def test_tensorflow_lite_refuses_what_float32_rounds_away(saved, tmp_path):
    _, folder, _ = saved
    message, path = "'time' is 1e.08 standard deviations from zero", tmp_path / "model.tflite"
    refuses(message, bfl.export.save_tflite, folder, path, num_samples=2)
    assert not (tmp_path / "model.tflite").exists()
