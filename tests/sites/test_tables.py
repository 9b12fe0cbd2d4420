"""Sites with tables as they are: text, truth values, ordered categories, dates and empty cells."""

import json
import pathlib
import re
import shutil

import numpy as np
import pyarrow
import pyarrow.compute as compute
import pyarrow.csv
import pyarrow.parquet
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import json_of, refuses, summary_of
from tests.sites.channel import Channel, add_line, faults_of, put, run
from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.data.encoding import parse_features
from tfp_bfl.data.messages import MOST_CATEGORIES
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.round import fold
from tfp_bfl.sites.deployment.channel import BEGIN, ROUND, Withheld
from tfp_bfl.sites.deployment.jobs import from_json, to_json
from tfp_bfl.sites.deployment.party_file import FILE, read_file
from tfp_bfl.sites.deployment.server import SCHEMA
from tfp_bfl.sites.deployment.site import ENCODINGS, Site, check

pytestmark = pytest.mark.cpu_seconds(60)  # each test has sites that build a model

SEED = 3
HEART = pathlib.Path(bfl.__file__).parent / "data" / "heart_disease" / "heart_disease.csv"
HOSPITALS = {"Cleveland": "cleveland", "Hungary": "hungary", "Switzerland": "switzerland", "VA Long Beach": "va"}
OPTIONS = {"model": "mlp", "rounds": 2, "seed": SEED, "temperature": 1.0}


def sites(folder, lies=None):
    return Channel(
        {path.parent.parent.name: Site(path.parent) for path in sorted(folder.glob(f"*/local/{FILE}"))}, lies
    )


@pytest.fixture
def heart(tmp_path):
    """The hospitals' tables, and the same rows in one place."""
    whole = pyarrow.csv.read_csv(HEART)
    rng = np.random.default_rng(0)
    parts = {}
    for hospital, site in HOSPITALS.items():
        own = whole.filter(compute.equal(whole["hospital"], hospital))
        held = rng.random(own.num_rows) < 0.2
        rows, test = own.filter(pyarrow.array(~held)), own.filter(pyarrow.array(held))
        parts[site] = rows, test
        without = ["hospital", *(["chol"] if site == "switzerland" else [])]  # It has no value there.
        put(tmp_path, site, rows.drop_columns(without), suffix=".csv", test=test.drop_columns(without))
    for name, number in {"train": 0, "test": 1}.items():
        pyarrow.csv.write_csv(pyarrow.concat_tables([x[number] for x in parts.values()]), tmp_path / f"{name}.csv")
    return tmp_path


@pytest.mark.deep(after="tests/sites/test_tables.py")
def test_a_run_over_hospitals_is_the_simulation_of_their_tables(heart, monkeypatch):
    """The encoding to the bit, the weights to 2e-5."""
    noise = lambda self, done, message: np.asarray(fold(SEED, done, self.number))  # That of the simulation.
    monkeypatch.setattr("tfp_bfl.sites.party.Party._key", noise)
    done = run(heart, sites(heart), options={**OPTIONS, "drop": "fbs,restecg"}, quorum=4)
    files = {"dataset": str(heart / "train.csv"), "test_data": str(heart / "test.csv"), "label": "disease"}
    files |= {"client_column": "hospital", "drop": "fbs,restecg", "engine": "local", "evaluation_examples": 1000}
    bfl.run(heart / "simulated", **files, **OPTIONS)
    here, there = (bfl.export.read_info(x / "saved_model").data for x in (done, heart / "simulated"))
    assert here["encoding"] == there["encoding"] and here["columns"] == there["columns"]
    assert {x["name"] for x in here["encoding"]}.isdisjoint({"fbs", "restecg"})
    models = [bfl.export.load(x / "saved_model") for x in (done, heart / "simulated")]
    for ours, theirs in zip(*(model.weights for model in models)):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=2e-5)
    # Rows with an empty cell and a new category are predicted as they are, by the library and in the graph.
    info, new = bfl.export.read_info(done / "saved_model"), heart / "new.csv"
    new.write_text("age,sex,cp,trestbps,chol,thalch,exang,oldpeak,slope,ca,thal\n44,Male,odd,,,168,False,0,,,\n")
    features = parse_features(info.data["encoding"])
    encoded = bfl.data.read_encoded(new, features, [bfl.data.Column(*x) for x in info.data["columns"]]).rows
    cells = {x.name: tf.constant([""] if x.is_text else [np.nan]) for x in features}
    cells |= {"sex": tf.constant(["Male"]), "cp": tf.constant(["odd"])}
    numbers = {"age": 44, "thalch": 168, "exang": 0, "oldpeak": 0}
    cells |= {name: tf.constant([x], tf.float32) for name, x in numbers.items()}
    loaded = tf.saved_model.load(str(done / "saved_model"))  # Its variables live as long as it does.
    by_rows = loaded.predict_rows(cells)["probabilities"].numpy()
    np.testing.assert_allclose(by_rows, models[0].predict(encoded)["probabilities"], atol=0.05)
    assert info.configuration["drop"] == "fbs,restecg"
    summary = summary_of(done)
    assert set(summary["parties"]) == set(HOSPITALS.values()) and summary["accuracy"] > 0.6
    # Every site holds the encoding of the server.
    record = json_of(done / SCHEMA)
    for site in HOSPITALS.values():
        own = json_of(heart / site / "local" / ENCODINGS / "first.json")
        assert own["encoding"] == record["encoding"] and own["columns"] == record["columns"]


def test_sites_read_the_numbers_of_a_simulation(heart):
    schema, channel = agreed(heart)
    whole = bfl.data.read_own(heart / "train.csv", "disease", "hospital", heart / "test.csv")
    assert schema.encoding == whole.train.encoding and schema.columns == whole.train.columns
    owners = whole.train.owners
    for hospital, site in HOSPITALS.items():
        data = channel.sites[site].data()
        own = bfl.sites.fitted(data.train, schema)
        np.testing.assert_array_equal(own.features, whole.train.features[owners == hospital])
        here, there = np.array(own.class_names)[own.labels], np.array(whole.train.class_names)[whole.train.labels]
        np.testing.assert_array_equal(here, there[owners == hospital])
    held = np.concatenate([bfl.sites.fitted(channel.sites[x].data().test, schema).features for x in HOSPITALS.values()])
    np.testing.assert_array_equal(held, whole.test.features)
    assert from_json(json.loads(json.dumps(to_json(schema)))) == schema


ROWS = 60


def table(seed=0, rows=ROWS, **columns):
    rng = np.random.default_rng(seed)
    own = {
        "age": rng.normal(60, 9, rows).round(1),
        "sex": np.resize(["f", "m"], rows),
        "seen": np.datetime64("2020-01-01") + rng.integers(0, 900, rows),
        "stage": pyarrow.DictionaryArray.from_arrays(
            pyarrow.array(rng.integers(0, 3, rows), pyarrow.int8()), ["low", "mid", "high"], ordered=True
        ),
        "smokes": rng.integers(0, 2, rows).astype(bool),
        "id": np.arange(1, rows + 1),
        "disease": np.resize(["yes", "no", "no"], rows),
    }
    return pyarrow.table({**own, **columns})


def undated(*given, **columns):
    return table(*given, **columns).drop_columns(["seen"])


def fill(folder, *tables):
    for name, own in zip(("north", "south", "west"), tables):
        put(folder, name, own)


def described(site, secure_sums=False, **options):
    """What a site, or the site in a folder, describes of its table, for the options of a run."""
    request = {"table": TableOptions(**options)._asdict(), "secure_sums": secure_sums}
    return json.loads((site if isinstance(site, Site) else Site(site)).describe(json.dumps(request)))


def agreed(folder, **options):
    """The schema of all sites, and the sites."""
    channel = sites(folder)
    own = {name: described(site, **options) for name, site in channel.sites.items()}
    return bfl.sites.agree("t", own, TableOptions(**options)), channel


def test_dates_order_truth_and_missing_columns(tmp_path):
    fill(tmp_path, table(0), table(1).drop_columns(["age", "sex"]), table(2, sex=[None] * ROWS))
    schema, channel = agreed(tmp_path, date_unit="years", drop=("smokes",))
    found = {x.name: x for x in schema.encoding}
    assert list(found) == ["age", "sex", "seen", "stage"]
    assert found["seen"].unit == "years" and found["stage"].columns == ("stage[>=mid]", "stage[>=high]")
    assert [x.has_missing for x in found.values()] == [True, True, False, False]
    south = bfl.sites.fitted(channel.sites["south"].data(TableOptions(("smokes",), (), (), "years")).train, schema)
    names = [column.name for column in schema.columns]
    np.testing.assert_allclose(south.features[:, names.index("age")], 0, atol=1e-6)  # The mean.
    assert np.all(south.features[:, names.index("sex[missing]")] > 0)
    # A number of all sites that counts the rows is used where it is named.
    only = agreed(tmp_path, date_unit="years", only=("id", "age"))[0].columns
    assert [x.name for x in only] == ["id", "age", "age[missing]"]


def test_a_site_that_restarts_gets_the_job_again_and_has_the_same_encoding(tmp_path):
    fill(tmp_path, table(0), table(1))
    channel, lost = sites(tmp_path), []

    def restart(task, number):
        if (task, number) == (ROUND, 1):
            lost.append(channel.sites["south"]._source.features)
            channel.sites["south"] = Site(tmp_path / "south" / "local")

    channel.before = restart
    options = {**OPTIONS, "algorithm": "partitioned_vi", "date_unit": "days", "rounds": 4}
    done = run(tmp_path, channel, options=options, quorum=1)
    assert faults_of(done) == [{}, {"1": "It takes part in no run."}, {}, {}]
    assert [name for task, name, _ in channel.sent if task == BEGIN].count("south") == 2
    assert "refused" not in json_of(done / "parties.json")["south"]
    np.testing.assert_array_equal(channel.sites["south"]._source.features, lost[0])


def test_a_server_that_stopped_before_it_knew_its_sites_asks_them_again(tmp_path):
    """The encoding of a run without the list of its sites may be one of other sites."""
    fill(tmp_path, undated(0), undated(1))
    done = run(tmp_path, sites(tmp_path), options=OPTIONS)
    whole = (done / SCHEMA).read_text()
    shutil.rmtree(done / "checkpoints")
    [(done / name).unlink() for name in ("parties.json", "metrics.jsonl", "summary.json")]
    (done / SCHEMA).write_text(json.dumps({**json.loads(whole), "name": "of other sites"}))
    assert (run(tmp_path, sites(tmp_path), options=OPTIONS) / SCHEMA).read_text() == whole


BAD = {
    "text among numbers": ({"age": ["61", "n. a.", *map(str, range(ROWS - 2))]}, "'age' holds 'n. a.' in row 2"),
    "dates": ({}, "'seen' holds dates, such as '20.* in row 1"),
    "too many texts": ({"sex": [f"patient {k}" for k in range(ROWS)]}, "'sex' holds 60 texts, such as 'patient 0' in"),
    "NUL": ({"sex": ["f\0", *["m"] * (ROWS - 1)]}, "contains the character NUL"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_cell_is_reported_at_its_site_alone(tmp_path, name):
    columns, message = BAD[name]
    drop = [] if name == "dates" else ["seen"]
    fill(tmp_path, undated(), undated(1))
    own = table(2).drop_columns([*columns, *drop])
    for column, values in columns.items():
        own = own.append_column(column, pyarrow.array(values))
    local = put(tmp_path, "west", own)
    channel = sites(tmp_path)
    with pytest.raises(Withheld) as raised:
        channel.sites["west"].describe()
    assert re.search(message, raised.value.at_site) and not re.search(message, str(raised.value))
    refuses(message, check, local)
    done = run(tmp_path, channel, options={**OPTIONS, "rounds": 1})
    summary = (done / "summary.json").read_text() + (done / "parties.json").read_text()
    assert "Without west: Its data can't be used as it is." in summary
    assert not any(word in summary for word in ("n. a.", "patient 0", "row 1", "row 2"))


def test_kinds_that_differ_between_sites_end_the_run_before_training(tmp_path):
    fill(tmp_path, undated(), undated(1, sex=np.arange(ROWS) % 2 * 1.5))
    refuses("'sex' holds numbers at south and text at north: give", run, tmp_path, sites(tmp_path), options=OPTIONS)
    schema, _ = agreed(tmp_path, categorical=("sex",))
    assert {x.name: x.levels for x in schema.encoding}["sex"] == ("0", "1.5", "f", "m")
    refuses("'sexx' at any site .* 'sex'", run, tmp_path, sites(tmp_path), options={**OPTIONS, "categorical": "sexx"})


def test_rare_categories_are_pooled_and_their_names_are_not_kept(tmp_path):
    rare = lambda name: [f"rare at {name}"] * 10 + ["f", "m"] * (10 * ROWS - 5)
    fill(tmp_path, *(undated(k, 20 * ROWS, sex=rare(name)) for k, name in enumerate(("north", "south"))))
    channel = sites(tmp_path)
    done = run(tmp_path, channel, options={**OPTIONS, "rounds": 1})
    levels = lambda: [x["levels"] for x in json_of(done / SCHEMA)["encoding"] if x["name"] == "sex"]
    assert levels() == [["f", "m"]]
    kept = "".join(path.read_text() for path in done.glob("*.json"))
    assert "rare at" not in kept and not any(b"rare at" in content for _, _, content in channel.sent)
    own = json_of(done / "parties.json")["south"]["table"]
    assert next(x["levels"] for x in own if x["name"] == "sex")[""] > 0
    # An interrupted run resumes with the encoding that it began with.
    (done / "summary.json").unlink()
    refuses("other values of --drop", run, tmp_path, sites(tmp_path), options={**OPTIONS, "rounds": 1, "drop": "age"})
    run(tmp_path, sites(tmp_path), options={**OPTIONS, "rounds": 1})
    assert levels() == [["f", "m"]]


def test_with_masks_no_category_leaves_a_site(tmp_path):
    local = put(tmp_path, "north", undated())
    refuses(r"describes no categories \('sex', 'stage'\): which .* is no sum", described, local, True)
    without = {"drop": ["sex", "stage"]}
    assert "table" in described(local, True, **without)
    # A site that allows only masks says nothing without them, whatever a server asks.
    add_line(local, "only_secure_sums: true")
    for ask in (lambda: Site(local).describe(), lambda: described(local, **without)):
        refuses("secure sums", ask)


def test_lies_about_columns_and_their_rows_are_refused(tmp_path):
    own = described(put(tmp_path, "west", undated()))
    sex = next(x for x in own["table"] if x["name"] == "sex")
    for lie in (
        {"levels": {"f": 10**9, "m": 1}},
        {"levels": {"f": -1, "m": sex["filled"] + 1}},
        {"levels": {f"{k}": 1 for k in range(MOST_CATEGORIES + 1)}, "filled": MOST_CATEGORIES + 1},
        {"levels": {"f\0": sex["filled"]}},
        {"levels": {"\ud800": sex["filled"]}},
        {"levels": {"NA": sex["filled"]}},
        {"kind": "number"},
        {"kind": ["text"]},
        {"rows": 3},
        {"filled": True},
        {"mean": "1"},
        {"name": "a\nb"},
        {"order": ["f"]},
        {"numbering": [3, 6]},
        {"kind": "rising number", "levels": {}, "numbering": [10**400, 1]},
    ):
        table_of = [{**x, **lie} if x["name"] == "sex" else x for x in own["table"]]
        refuses("west's data does not have the form", bfl.sites.check_description, "west", {**own, "table": table_of})
    own, other = (described(put(tmp_path, name, undated(k))) for k, name in enumerate(("north", "south")))
    bfl.sites.check_description("north", own)
    more = [{**x, "rows": 2**31 - 1, "filled": 0 if x["name"] == "age" else x["filled"]} for x in own["table"]]
    one = [more[0], *own["table"][1:]]
    for lie in (more, one, [{**x, "rows": x["rows"] + 1} for x in own["table"]]):
        refuses("north's data does not have the form", bfl.sites.check_description, "north", {**own, "table": lie})
    # With a bound on examples the server counts fewer than there are rows, the same share of each column.
    ten = {"num_examples": 10}
    assert bfl.sites.agree("patients", {"north": {**own, **ten}, "south": {**other, **ten}}).encoding
    refuses("north's data", bfl.sites.agree, "patients", {"north": {**own, **ten, "table": one}, "south": other})


def test_a_run_gets_no_more_categories_of_a_column_than_the_site_allows(tmp_path):
    """Names and salaries of 40 patients, which the server asks for as categories, until the site allows 40."""
    rows = {"name": [f"Patient {k}" for k in range(40)], "salary": [1000 + 7 * k for k in range(40)]}
    content = pyarrow.table({**rows, "disease": ["yes", "no"] * 20})
    for name in rows:
        local = put(tmp_path, "north", content.select([name, "disease"]), suffix=".csv")
        with pytest.raises(InvalidArgument, match=f"'{name}' has .* at most 30 are described") as error:
            described(local, categorical=(name,))
        assert "Patient" not in str(error.value) and "1007" not in str(error.value)
        local = put(tmp_path, "north", content.select([name, "disease"]), "max_categories: 40\n", suffix=".csv")
        column = next(x for x in described(local, categorical=(name,))["table"] if x["name"] == name)
        assert 30 < sum(column["levels"].values()) <= 40


def test_columns_of_other_names_units_and_spellings(tmp_path):
    own, other = (described(put(tmp_path, name, undated(k))) for k, name in enumerate(("north", "south")))
    with_age = lambda new: [{**x, "name": new if x["name"] == "age" else x["name"]} for x in other["table"]]
    with pytest.raises(InvalidArgument, match="'Age' of 'south' and the column 'age' of 'north' differ in case"):
        bfl.sites.agree("patients", {"north": own, "south": {**other, "table": with_age("Age")}})
    doubts = bfl.sites.doubts({"north": own, "south": {**other, "table": with_age("years")}})
    assert any(x.startswith("Only north has the column 'age', empty at the other sites") for x in doubts)
    assert any(x.startswith("Only south has the column 'years'") for x in doubts)
    assert not any("has the column" in x for x in bfl.sites.doubts({"north": own, "south": other}))
    odd = undated(2, age=np.arange(ROWS) + 2e4, sex=np.resize(["F", "M"], ROWS))
    fill(tmp_path, undated(), undated(1), odd)
    doubts = bfl.sites.doubts({name: described(site) for name, site in sites(tmp_path).sites.items()})
    assert any("west reports means far outside" in x and "'age'" in x for x in doubts)
    assert any("west has none of the other sites' categories in 'sex'" in x for x in doubts)


def test_what_holds_for_all_sites_is_no_option_of_one(tmp_path):
    for name in ("only", "categorical", "date_unit"):
        local = put(tmp_path, "north", table(), f"{name}: years\n")
        refuses(f"{name} of .*party.yaml holds for all sites alike: whoever submits", read_file, local)
