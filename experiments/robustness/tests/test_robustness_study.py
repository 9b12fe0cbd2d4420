"""The robustness study: its attacks, its cells, its resumption, its tables."""

import csv

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

from experiments.robustness import attacks, config, influence, run
from tfp_bfl import data, rules
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ClientResult, ModelWeights, ServerMessage


def weights(mean, variance, point):
    none = MeanField((), ())
    return ModelWeights(MeanField((tf.constant([mean]),), (tf.constant([variance]),)), (tf.constant([point]),), none)


def values(w):
    return [float(x[0]) for x in tf.nest.flatten(w)]


@pytest.mark.parametrize(
    ("attack", "wanted"),
    [
        ("none", [3.0, 0.5, 4.0]),
        ("flipped", [1.0 - 10.0, 0.5, 2.0 - 10.0]),
        ("scaled", [201.0, 50.0, 202.0]),
        ("overconfident", [-1.0, 0.005, 0.0]),
        ("reversed", [-1.0, 0.5, 0.0]),
    ],
)
def test_hostile_clients_send_what_the_attack_says_and_the_others_what_they_learnt(attack, wanted):
    """Anchor mean 1 and point 2, honest mean 3, variance 0.5 and point 4: changes of 2."""
    honest, anchor = weights(3.0, 0.5, 4.0), weights(1.0, 1.0, 2.0)

    class Examples:
        client: tf.Tensor

    work = attacks.attacked(lambda: lambda *_: ClientResult(honest, 7, None), 2, *config.ATTACKS[attack])()
    for client in range(4):
        Examples.client = tf.constant([client])
        result = work(ServerMessage(anchor, 0), Examples, None)
        np.testing.assert_allclose(values(result.weights), wanted if client < 2 else [3.0, 0.5, 4.0], rtol=1e-6)
        assert result.num_examples == 7


def test_every_cell_has_a_name_and_its_parts():
    cells = list(run.cells())
    names = [run.cell_name(options) for options in cells]
    assert set(config.RULES) <= set(rules.RULES) - {"mean_precision_average"}
    with_variances, without = (2 + 2 + 7) * (1 + 5 * 5) + 5 * 3, 3 * (1 + 4 * (4 + 3))
    assert len(set(names)) == len(names) == with_variances + without
    assert {"iid,conflation,flipped,median", "deterministic,iid,kernel_posterior,scaled,mean_gaussian"} < set(names)
    for defence in config.DEFENCES[1:]:
        rules.parse_robust(defence)


@pytest.mark.parametrize("defence", config.KERNELS)
def test_a_kernel_posterior_pools_by_itself_in_the_place_of_a_defence(defence):
    options = {"model": "deterministic", "rule": config.KERNEL, "attack": "flipped", "defence": defence}
    process = run.build(options, data.load(config.DATASET).element_shape)
    assert process.description["rule"] == "kernel posterior (silverman)"


def test_the_control_has_the_honest_clients_alone():
    source = data.load(config.DATASET)
    (options,) = [x for x in run.cells() if run.cell_name(x) == "iid,conflation,absent,none"]
    everybody = run.clients_of(source, {**options, "attack": "flipped"}, 1)
    honest = run.clients_of(source, options, 1)
    assert (everybody.num_clients, honest.num_clients) == (10, 8)
    for k in range(8):
        np.testing.assert_array_equal(honest.indices[k], everybody.indices[k + 2])


@pytest.mark.deep(after="experiments/robustness/tests/test_robustness_study.py")
@pytest.mark.long
def test_goes_on_where_it_was_and_writes_what_is_there(tmp_path, monkeypatch):
    ran = []

    def fake(options):
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append(run.cell_name(options))
        score = None if options["attack"] == "scaled" else 0.9
        return {name: [score, 0.8] for name in run.SCORES}

    monkeypatch.setattr(run, "run_cell", fake)
    options = ["--output", str(tmp_path / "runs"), "--results", str(tmp_path), "--cell", "iid,conflation,"]
    assert CliRunner().invoke(run.main, options).exit_code != 0
    first, ran[:] = list(ran), []
    while CliRunner().invoke(run.main, options).exit_code != 0:
        first, ran[:] = first + ran, []
    done = first + ran
    assert len(done) == len(set(done)) == 26
    rows = list(csv.reader((tmp_path / "accuracy-iid.csv").read_text().splitlines()))
    (row,) = (dict(zip(rows[0], row)) for row in rows if row[:2] == ["conflation", "median"])
    assert (row["attack: none"], row["attack: scaled"]) == ("0.850 +- 0.071", "not finite")
    (row,) = (row for row in rows if row[:2] == ["conflation", "hostile clients absent"])
    assert row[2:] == ["0.850 +- 0.071", "", "", "", ""]
    assert rows[1][2:] == [""] * 5  # another rule's, not run


def record(attack, defence, accuracy, rule="naive_weighted_average", partition="iid"):
    options = {"model": "deterministic", "partition": partition, "rule": rule, "attack": attack, "defence": defence}
    return {"options": {**options, "seeds": [0, 1, 2]}, "accuracy": accuracy}


def test_pairs_are_of_one_attack_and_of_seeds_that_both_have():
    found = [
        record("flipped", "none", [0.1, 0.2, None]),
        record("flipped", "mean gaussian", [0.9, 0.8, 0.5], config.KERNEL),
        record("scaled", "mean gaussian", [0.9, 0.8, 0.5], config.KERNEL),
        record("flipped", "median", [0.8, 0.8, 0.8], partition="dirichlet:0.5"),
    ]
    head, row = run.pairs_table(found, "deterministic", "iid")
    assert head[:3] == ["rule", "robust aggregation", "less"]
    assert head[3:] == ["attack: none", "attack: flipped", "attack: scaled", "attack: reversed"]
    assert row[:3] == [config.KERNEL, "mean gaussian", "naive_weighted_average, none"]
    assert row[4].startswith("+70.0 [") and (row[3], *row[5:]) == ("", "", "")


@pytest.mark.parametrize(("hostile", "majority"), [(1, True), (5, True), (6, False)])
def test_a_gaussian_kernel_from_the_mean_goes_to_the_majority_and_the_published_kernel_stays(hostile, majority):
    shift = lambda how: float(influence.influence(config.KERNEL, how, "opposite", hostile))
    assert (shift("mean gaussian") < 0.05) is majority
    for how in ("clients", "mean"):
        np.testing.assert_allclose(shift(how), 2 * hostile / 11, atol=0.01)
