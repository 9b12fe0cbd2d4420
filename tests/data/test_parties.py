"""Statistics of sites: pooled, they are those of all rows together, whatever is constant at one of them."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.fuzz.harness import inputs
from tests.kit import refuses
from tfp_bfl.data import read_part
from tfp_bfl.sites import agree, describe, fitted

RNG = np.random.default_rng(3)
ROWS = 100
CONSTANT = np.zeros(ROWS)
PAIRS = {
    "an indicator that one site never has": (CONSTANT, np.arange(ROWS) % 2),
    "two constants": (CONSTANT + 0.001, CONSTANT + 0.003),
    "a constant and noise": (CONSTANT + 5, RNG.normal(5, 0.01, ROWS)),
    "no constant": (RNG.normal(size=ROWS), RNG.normal(1, 2, ROWS)),
    "the same constant": (CONSTANT + 0.1, CONSTANT + 0.1),
}


def site(folder, name, x, y, task="classification"):
    """A site's data, all of its rows for training."""
    folder.mkdir(exist_ok=True)
    for kind in ("train", "test"):
        rows = "".join(f"{a!r},{b}\n" for a, b in zip(map(float, x), y))
        (folder / f"{name} {kind}.csv").write_text(f"x,label\n{rows}")
    paths = [folder / f"{name} {kind}.csv" for kind in ("train", "test")]
    return read_part(paths[0], test=paths[1], task=task).train


def check(pooled, parts, numbers, values):
    everything = np.concatenate(numbers).astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(pooled.mean, everything.mean(), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(pooled.stddev, everything.std(), rtol=1e-6, atol=1e-9 * abs(everything).max())
    found = np.concatenate(values) * pooled.scale + pooled.mean
    np.testing.assert_allclose(found, everything, rtol=1e-5, atol=1e-5 * pooled.scale)


@pytest.mark.parametrize("name", PAIRS)
def test_pooled_columns_are_those_of_all_rows(tmp_path, name):
    numbers = PAIRS[name]
    parts = {k: site(tmp_path, k, x, np.resize(["a", "b"], ROWS)) for k, x in zip("AB", numbers)}
    assert [len(set(x)) == 1 for x in numbers] == [not describe(part)["table"][0]["stddev"] for part in parts.values()]
    schema = agree("t", {k: describe(part) for k, part in parts.items()})
    check(schema.columns[0], parts, numbers, [fitted(part, schema).features[:, 0] for part in parts.values()])


@pytest.mark.parametrize("name", PAIRS)
def test_pooled_targets_are_those_of_all_rows(tmp_path, name):
    numbers = PAIRS[name]
    parts = {k: site(tmp_path, k, RNG.normal(size=ROWS), y, "regression") for k, y in zip("AB", numbers)}
    told = {k: describe(part) for k, part in parts.items()}
    if name == "the same constant":
        refuses(r"labels of all sites are 0.1: there is nothing", agree, "t", told)
        return
    schema = agree("t", told)
    check(schema.target, parts, numbers, [fitted(part, schema).labels for part in parts.values()])


def test_any_division_of_rows_over_sites(tmp_path):
    """Counts the inputs tried."""
    tried = []

    @inputs(0.3)
    @hypothesis.given(
        st.lists(st.lists(st.sampled_from([0.0, 1.0, 0.1, -3.5, 1e4]), min_size=2, max_size=5), min_size=2, max_size=4)
    )
    def run(rows):
        parts = {str(k): site(tmp_path, str(k), x, np.resize(["a", "b"], len(x))) for k, x in enumerate(rows)}
        schema = agree("t", {k: describe(part) for k, part in parts.items()})
        check(schema.columns[0], parts, rows, [fitted(part, schema).features[:, 0] for part in parts.values()])
        tried.append(rows)

    run()
    print(f"\ndivisions of rows over sites: {len(tried)} inputs")
    assert tried


def test_classes_that_differ_in_case_only_at_two_sites(tmp_path):
    own = lambda k, name: describe(site(tmp_path, k, RNG.normal(size=8), np.resize([name, "cat"], 8)))
    sites = {"A": own("A", "Dog"), "B": own("B", "dog")}
    refuses("class 'Dog' of 'A' and the class 'dog' of 'B' differ in case only", agree, "t", sites)
