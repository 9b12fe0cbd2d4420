"""Time series: long tables become examples [steps, columns], in files, in memory, in predictions and in the graph."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.kit import assert_same, refusal, refuses
from tfp_bfl import evaluation, export
from tfp_bfl.app.one_run.predict import predict
from tfp_bfl.data import read_own
from tfp_bfl.data.rows import read_encoded
from tfp_bfl.data.series import SeriesColumns
from tfp_bfl.models import mlp

SERIES, STEPS = 30, 4
RNG = np.random.default_rng(0)
VALUES = RNG.normal(50, 9, (SERIES, STEPS, 2))
LABELS = np.where(RNG.random(SERIES) < 0.5, "ill", "well")
BY = {"client": "clinic", "series_column": "patient", "time_column": "hour"}


def long(times=range(STEPS), **columns):
    """The long table of `VALUES`, patient by patient."""
    named = np.repeat([f"P{i}" for i in range(SERIES)], STEPS)
    of_series = {"label": np.repeat(LABELS, STEPS), "clinic": np.repeat(["a", "b", "c"], STEPS * SERIES // 3)}
    pulse, oxygen = VALUES.reshape(-1, 2).T
    features = {"hour": np.tile(list(times), SERIES), "pulse": pulse, "oxygen": oxygen}
    return pd.DataFrame({"patient": named, **of_series, **features, **columns})


def replaced(row, column, value):
    table = long()
    table[column] = table[column].astype(object)
    table.loc[row, column] = value
    return table


def in_units(source):
    return source.features * [c.scale for c in source.columns] + [c.mean for c in source.columns]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_series_is_an_example(shuffled, tmp_path):
    table = long().sample(frac=1, random_state=0) if shuffled else long()
    table.to_csv(tmp_path / "long.csv", index=False)
    data = read_own(tmp_path / "long.csv", **BY)
    assert data.train.element_shape == (STEPS, 2) and data.client_names == ("a", "b", "c")
    assert "120 rows are 30 series of 4 time steps." in data.notes
    there = {tuple(x.ravel().round(3)): (y, "abc"[i // 10]) for i, (x, y) in enumerate(zip(VALUES, LABELS))}
    for part in (data.train, data.test):
        for x, label, owner in zip(in_units(part), part.labels, part.owners):
            assert there.pop(tuple(x.ravel().round(3))) == (part.class_names[label], owner)
    assert not there
    # The statistics are those of all steps of the training series.
    rows = data.train.features.reshape(-1, 2)
    np.testing.assert_allclose([rows.mean(0), rows.std(0)], [[0, 0], [1, 1]], atol=1e-5)
    assert_same(read_own(table, **BY).train.features, data.train.features)


@pytest.mark.parametrize(
    "times",
    [
        pd.date_range("2024-01-31", periods=STEPS, freq="ME"),  # Of 29 to 31 days.
        pd.date_range("2024-01-01", periods=STEPS, freq="MS"),
        pd.date_range("2023-12-31 22:00", periods=STEPS, freq="h"),
        np.arange(STEPS) / 10,
        [3, 1, -1, -3],
    ],
)
def test_equal_steps_in_time(times, tmp_path):
    table = long(times=times)
    read = read_own(table, **BY)
    table.to_csv(tmp_path / "long.csv", index=False)
    assert_same(read_own(tmp_path / "long.csv", **BY).train.features, read.train.features)
    assert read.train.element_shape == (STEPS, 2)


ONE_VALUE = "give all rows of a series one value"
BAD = {
    "series 'P0' .* step from '2' to '7' in 'hour', and the usual one is 1: fill in": (replaced(3, "hour", 7), {}),
    "series 'P1' .* two rows at '0' in 'hour': leave one": (replaced(5, "hour", 0), {}),
    "series 'P2' .* has 3 time steps, and most have 4: give all": (long().drop(9), {}),
    f"series 'P0' .* '(ill|well)' and 'other' in the column 'label': {ONE_VALUE}": (replaced(1, "label", "other"), {}),
    f"series 'P3' .* 'a' and 'b' in the column 'clinic': {ONE_VALUE}": (replaced(14, "clinic", "b"), {}),
    "the column 'hour' holds 'noon' in row 4, which is no number: write times as": (replaced(3, "hour", "noon"), {}),
    "the column 'hour' has 1 empty cell, the first in row 4: write times": (replaced(3, "hour", None), {}),
    "the column 'patient' has 1 empty cell, the first in row 4: name the series": (replaced(3, "patient", None), {}),
    "the column 'pulse' holds 'high' in row 2, which is no number": (replaced(1, "pulse", "high"), {}),
    "Most series of .*long.csv have one row": (long(row=range(SERIES * STEPS)), {"series_column": "row"}),
    "no column 'day' in .*long.csv for --time-column": (long(), {"time_column": "day"}),
    "time_column is given without series_column: name both": (long(), {"series_column": None}),
    "'label' is label and time-column: name two columns": (long(), {"time_column": "label"}),
    "'clinic' has the times, and names clients or series": (long(), {"time_column": "clinic"}),
    "time_column belongs to tables": ((VALUES, LABELS), {"client": None}),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_table_of_series_is_refused(message, tmp_path):
    table, options = BAD[message]
    if isinstance(table, pd.DataFrame):
        path = tmp_path / "long.csv"
        table.to_csv(path, index=False)
        table = path
    refuses(message, read_own, table, **{**BY, **options})


def test_the_command_line_refuses_gaps(tmp_path, capsys):
    replaced(3, "hour", 7).to_csv(tmp_path / "long.csv", index=False)
    options = ["--series-column", "patient", "--time-column", "hour", "--output", str(tmp_path / "run")]
    said = refusal(capsys, "run", "--dataset", str(tmp_path / "long.csv"), *options)
    assert "a step from '2' to '7' in 'hour'" in said and not (tmp_path / "run").exists()


def test_a_test_set_has_series_of_the_same_length():
    test = long().drop(columns="clinic")
    data = read_own(long(), **BY, test=test)
    np.testing.assert_allclose(in_units(data.test), VALUES, rtol=1e-5)
    refuses("'P0' of test_data has 3 time steps, and the model takes 4", read_own, long(), **BY,
            test=test[test["hour"] > 0])  # fmt: skip


def test_labels_of_regression_and_series_without_a_label():
    data = read_own(long(label=np.repeat(np.arange(SERIES) * 2.0, STEPS)), task="regression", **BY)
    numbers = np.concatenate([x.labels * data.train.target.scale + data.train.target.mean for x in data[:2]])
    np.testing.assert_allclose(np.sort(numbers), np.arange(SERIES) * 2.0, atol=1e-4)
    some = long(label=np.repeat(np.where(np.arange(SERIES) < 3, "", LABELS), STEPS))
    data = read_own(some, **BY)
    assert data.train.num_examples + data.test.num_examples == SERIES - 3
    assert "3 series without a label or a client left out." in data.notes


def test_rows_for_a_model_of_numbers(tmp_path):
    long().to_csv(tmp_path / "new.csv", index=False)
    columns = read_own(long(), **BY).train.columns
    found = read_encoded(tmp_path / "new.csv", (), columns, series=SeriesColumns("patient", "hour", STEPS))
    np.testing.assert_allclose(found.rows, VALUES, rtol=1e-12)
    assert found.names == tuple(f"P{i}" for i in range(SERIES))


def test_an_exported_model_takes_long_tables(tmp_path):
    empty = np.arange(SERIES * STEPS) % 7 == 0
    changes = {"pulse": np.where(empty, np.nan, VALUES[..., 0].ravel()), "drug": np.resize(["x", "y", "z"], len(empty))}
    table = long(**changes)
    train = read_own(table, **BY).train
    facts = {"columns": [list(x) for x in train.columns], "encoding": [x._asdict() for x in train.encoding]}
    settings = {"series_column": "patient", "time_column": "hour"}
    model = mlp("deterministic", train.element_shape, 2, hidden=(4,), seed=0)
    export.save(model, tmp_path / "saved", export.Info(train.class_names, settings, data=facts))
    new = table.drop(columns=["label", "clinic"]).iloc[::-1]
    new.to_csv(tmp_path / "new.csv", index=False)
    columns = SeriesColumns("patient", "hour", STEPS)
    rows, _, names = read_encoded(tmp_path / "new.csv", train.encoding, train.columns, series=columns)
    assert rows.shape == (SERIES, *train.element_shape) and names == tuple(f"P{i}" for i in reversed(range(SERIES)))
    loaded = export.load(tmp_path / "saved")
    wanted = loaded.predict(rows)["probabilities"].numpy()
    standardised = (rows - [c.mean for c in train.columns]) / [c.scale for c in train.columns]
    np.testing.assert_allclose(wanted, tf.nn.softmax(model(standardised)), atol=1e-5)
    found = predict(tmp_path / "saved", tmp_path / "new.csv").rows
    assert [x.example for x in found] == [f"{tmp_path}/new.csv[{name}]" for name in names]
    np.testing.assert_allclose([x.confidence for x in found], wanted.max(1), rtol=1e-5)
    cells = {x.name: new[x.name].to_numpy().reshape(SERIES, STEPS)[:, ::-1] for x in train.encoding}
    cells = {x: tf.constant(y.tolist(), tf.string if x == "drug" else tf.float32) for x, y in cells.items()}
    np.testing.assert_allclose(loaded.predict_rows(cells)["probabilities"], wanted, atol=1e-5)
    new[new["hour"] > 0].to_csv(tmp_path / "short.csv", index=False)
    refuses("has 3 time steps, and the model takes 4", predict, tmp_path / "saved", tmp_path / "short.csv")


def test_drift_compares_summaries_of_series():
    found = evaluation.feature_histograms(VALUES, ["pulse", "oxygen"])
    assert found.names == ("mean of pulse", "mean of oxygen", "sd of pulse", "sd of oxygen")
    summaries = np.concatenate([VALUES.mean(1), VALUES.std(1)], 1)
    assert_same(found.counts, evaluation.feature_histograms(summaries).counts)
