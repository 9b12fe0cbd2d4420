"""Table 1: pandas' numbers for any distribution of the rows over clients, and closed forms of differences."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.app.cli import cli
from tfp_bfl.glm.characteristics import Levels, Numbers


def patients(count=157, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "arm": rng.choice(["drug", "none", "other"], count),
            "site": rng.choice(["a", "b", "c"], count, p=[0.7, 0.2, 0.1]),
            "age": np.round(rng.normal(60, 10, count), 1),
            "dose": 1e-6 * rng.exponential(size=count),
            "same": 3.0,
            "sex": rng.choice(["f", "m"], count),
            "stage": rng.integers(1, 5, count),
        }
    )
    frame.loc[rng.choice(count, 20, replace=False), "age"] = np.nan
    frame.loc[rng.choice(count, 9, replace=False), "sex"] = None
    return frame


def columns_of(result):
    return {column.name: column for column in result.columns}


@pytest.mark.parametrize(
    "options", [{}, {"client_column": "site"}, {"client_column": "site", "secure_sums": True}], ids=str
)
def test_numbers_are_those_of_pandas(options):
    frame = patients()
    result = glm.table_one(frame, by="arm", categorical=["stage"], drop=[] if options else ["site"], **options)
    assert result.groups == ["all", "drug", "none", "other"] and result.messages == 15
    found, groups = columns_of(result), [frame, *(own for _, own in frame.groupby("arm"))]
    assert result.rows.tolist() == list(map(len, groups))
    for name in ("age", "dose", "same"):
        of_groups = [own[name].dropna() for own in groups]
        column = found[name]
        assert isinstance(column, Numbers) and column.filled.tolist() == list(map(len, of_groups))
        # In fixed point sums are right to 2^-61, of a dose of 1e-6 to 1e-13.
        exact = {"rtol": 1e-9, "atol": 1e-12 if options.get("secure_sums") else 0}
        np.testing.assert_allclose(column.mean, [x.mean() for x in of_groups], **exact)
        np.testing.assert_allclose(column.sd, [x.std() for x in of_groups], rtol=1e-6, atol=1e-12)
        expected = [x.quantile([0.25, 0.5, 0.75]) for x in of_groups]
        np.testing.assert_allclose(column.quartiles, expected, rtol=1e-9, atol=1e-8 * of_groups[0].std() + 1e-12)
    for name in ("sex", "stage"):
        column = found[name]
        assert isinstance(column, Levels)
        counts = [own[name].astype("str").where(own[name].notna()).value_counts() for own in groups]
        assert column.counts.tolist() == [[n.get(level, 0) for level in column.levels] for n in counts]
        assert column.missing.tolist() == [own[name].isna().sum() for own in groups]


def test_differences_are_those_of_the_formulas():
    frame = patients()[lambda x: x.arm != "other"].assign(old=lambda x: x.age > 60)
    found = columns_of(glm.table_one(frame, by="arm", categorical=["stage"], drop=["site"]))
    one, other = (own for _, own in frame.groupby("arm"))
    pooled = np.sqrt((one.age.var() + other.age.var()) / 2)
    assert found["age"].difference == pytest.approx(abs(one.age.mean() - other.age.mean()) / pooled)
    p, q = one.old.mean(), other.old.mean()
    assert found["old"].difference == pytest.approx(abs(p - q) / np.sqrt((p * (1 - p) + q * (1 - q)) / 2))
    p, q = (own.stage.value_counts(normalize=True).sort_index().to_numpy()[1:] for own in (one, other))
    spread = (np.diag(p) - np.outer(p, p) + np.diag(q) - np.outer(q, q)) / 2
    assert found["stage"].difference == pytest.approx(np.sqrt((p - q) @ np.linalg.solve(spread, p - q)))
    assert np.isnan(found["same"].difference)
    pairs = [
        glm.table_one(patients()[lambda x, own=own: x.arm != own], by="arm", only=["dose"])
        for own in ("drug", "none", "other")
    ]
    largest = glm.table_one(patients(), by="arm", only=["dose"]).columns[0].difference
    assert largest == max(pair.columns[0].difference for pair in pairs)


def test_a_column_that_numbers_the_rows_is_left_out():
    frame = patients().assign(id=range(157))
    result = glm.table_one(frame, only=[])
    assert "id" not in columns_of(result) and "The column 'id' numbers the rows and is left out." in result.notes
    assert "id" in columns_of(glm.table_one(frame, only=["id"]))
    assert "difference" not in result.table()[0] and result.groups == ["all"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "age"}, "holds [0-9]+ groups, but must hold 2 to 10: name another column by --by"),
        ({"by": "same"}, "holds 1 groups"),
        ({"by": "nothing"}, "no column 'nothing'"),
        ({"only": ["arm"], "by": "arm"}, "has no columns beside those of groups and clients"),
        ({"only": ["gone"]}, "In the table the column 'gone' has no value: leave columns out with --drop"),
    ],
)
def test_bad_input_is_refused(options, message):
    refuses(message, glm.table_one, patients().assign(gone=np.nan), **options)


def test_the_command(tmp_path):
    table = tmp_path / "patients.csv"
    patients().to_csv(table, index=False)
    run = lambda *arguments: CliRunner().invoke(cli, ["table-one", *map(str, arguments)])
    of = table, "--by", "arm", "--client-column", "site", "--categorical", "stage"
    shown = run(*of, "--output", tmp_path / "one.tex").output
    assert str(glm.table_one(table, by="arm", client_column="site", categorical=["stage"]).table()) in shown
    assert r"\toprule" in (tmp_path / "one.tex").read_text()
    record = json.loads(CliRunner().invoke(cli, ["table-one", *map(str, of), "--format", "json"]).stdout)
    assert record["groups"] == ["all", "drug", "none", "other"] and record["columns"][0]["name"] == "age"
    for more, message in (
        (("--output", tmp_path / "one.tex"), "can't be written: give --output a new file"),
        (("--output", tmp_path / "one.pdf"), "must end with .csv, .md or .tex"),
    ):
        assert message in str(run(*of, *more).exception)
