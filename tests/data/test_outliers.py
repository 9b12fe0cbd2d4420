"""One typed value in a column: it is named, the other rows keep their scale, and ordinary columns stay as they are."""

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.data.test_tables import write as write_table
from tfp_bfl.data.statistics import within_bounds
from tfp_bfl.glm.design import Outcome, read_design


def ordinary(seed=0, number=400):
    return 50 + 10 * np.random.default_rng(seed).normal(size=number)


def write(path, values, labels):
    return write_table(path, ["x", "other", "label"], values, np.arange(len(values)) % 7, labels)


@pytest.mark.parametrize("typed", [99999.0, -99999.0, 5e7, 1e300])
def test_a_typed_value_is_named_and_limited_to_the_range_of_the_others(typed):
    values = ordinary()
    others = np.delete(values, 7)
    values[7] = typed
    limited, (note, changed) = within_bounds(values, "x")
    assert np.array_equal(np.delete(limited, 7), others)
    assert limited[7] == (others.max() if typed > 0 else others.min())
    away = abs(typed - others.mean()) / others.std()
    assert f"row 8 of 'x' holds {typed:.10g}, {away:,.0f} standard deviations from the mean of the others" in note
    assert changed.startswith("'x' is limited to ")


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal(size=400),
        lambda rng: rng.exponential(size=400),
        lambda rng: rng.lognormal(0, 1, 400),
        lambda rng: rng.poisson(0.05, 400) * 1.0,
        lambda rng: (rng.random(400) < 0.01) * 1.0,
        lambda rng: np.where(rng.random(400) < 0.5, np.nan, rng.normal(size=400)),
        lambda rng: 2000 + rng.integers(0, 20, 400) * 1.0,
        lambda rng: rng.normal(size=10) * 1e300,
        lambda rng: np.full(400, 3.0),
        lambda rng: np.full(400, np.nan),
    ],
)
def test_ordinary_columns_stay_as_they_are(draw):
    """200 columns of each distribution, of fixed seeds."""
    for seed in range(200):
        values = draw(np.random.default_rng(seed))
        limited, notes = within_bounds(values, "x")
        assert limited is values and not notes


def test_a_typed_value_among_rare_flags_is_limited():
    values = (np.arange(10_000) % 111 == 5) * 1.0
    values[7] = 99999
    limited, notes = within_bounds(values, "x")
    assert limited.max() == 1 and limited.sum() == np.sum(values == 1) + 1
    assert "row 8 of 'x' holds 99999" in notes[0]


def test_codes_and_long_tails_are_named_and_stay():
    values = ordinary()
    values[10:22] = 9999
    limited, (note,) = within_bounds(values, "x")
    assert limited is values
    assert "row 11 of 'x' holds 9999 and row 12 of 'x' holds 9999 and row 13 of 'x' holds 9999 and 9 more rows" in note
    assert "codes of missing values" in note
    tail = np.random.default_rng(0).lognormal(0, 2.5, 4000)
    limited, (note,) = within_bounds(tail, "x")
    assert limited is tail and " more rows" in note


def test_a_table_with_a_typed_value_is_standardised_as_the_one_without(tmp_path):
    values, labels = ordinary(), ["a", "b"] * 200
    clean = bfl.data.read_own(write(tmp_path / "clean.csv", values, labels))
    values[7] = 99999
    found = bfl.data.read_own(write(tmp_path / "typed.csv", values, labels))
    assert any("row 8 of 'x' holds 99999" in note for note in found.notes) and not clean.notes
    assert found.train.columns[1] == clean.train.columns[1]
    assert found.train.columns[0].stddev == pytest.approx(clean.train.columns[0].stddev, rel=0.05)
    assert max(np.abs(found.train.features[:, 0]).max(), np.abs(found.test.features[:, 0]).max()) < 5


def test_arrays_text_beside_numbers_and_labels_of_regression_are_limited_too(tmp_path):
    values = ordinary()
    values[3] = 1e6
    arrays = bfl.data.read_own((np.stack([ordinary(1), values], 1), np.arange(400) % 2))
    assert any("row 4 of 'column_1' holds 1000000" in note for note in arrays.notes)
    assert np.abs(arrays.train.features).max() < 5
    np.savez(tmp_path / "a.npz", features=np.stack([values, ordinary(1)], 1), labels=np.arange(400) % 2)
    assert any("row 4 of 'column_0'" in note for note in bfl.data.read_own(tmp_path / "a.npz").notes)
    numbers = bfl.data.read_own(write(tmp_path / "t.csv", ordinary(2), values), task="regression")
    assert any("row 4 of 'label' holds 1000000" in note for note in numbers.notes)
    assert numbers.train.target.stddev < 20
    write_table(tmp_path / "text.csv", ["x", "word", "label"], values, np.resize(list("uvw"), 400), np.arange(400) % 2)
    mixed = bfl.data.read_own(tmp_path / "text.csv")
    assert any("row 4 of 'x' holds 1000000" in note for note in mixed.notes) and mixed.train.columns[0].stddev < 20
    part = bfl.data.read_part(tmp_path / "text.csv")
    assert any("row 4 of 'x'" in note for note in part.notes) and np.max(part.train.features.columns[0].values) < 100


def test_a_test_set_of_its_own_and_linear_models_keep_the_row_as_it_is(tmp_path):
    values, labels = ordinary(), ["a", "b"] * 200
    train = write(tmp_path / "train.csv", values, labels)
    values[7] = 99999
    found = bfl.data.read_own(train, test=write(tmp_path / "test.csv", values, labels))
    assert found.test.features[7, 0] > 1000
    write_table(tmp_path / "t.csv", ["x", "y"], values, np.arange(400) % 5)
    design = read_design(tmp_path / "t.csv", Outcome("y", "gaussian"))
    assert any("row 8 of 'x' holds 99999" in note for note in design.notes)
    assert design.clients[0][0].max() == 99999
