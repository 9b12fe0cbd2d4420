"""Rounds with client-level differential privacy: cohorts, reports, and cost."""

import dataclasses
import functools
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import assert_same, flat, refuses
from tfp_bfl.app.one_run import records
from tfp_bfl.app.options.config import make_config
from tfp_bfl.data.cohorts import each_drawn
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import simulation
from tfp_bfl.privacy import Privacy, epsilon

pytest.importorskip("dp_accounting")

TRAIN = bfl.data.load("breast_cancer")
CLIENTS = TRAIN.partition(bfl.data.iid(30), seed=0)
SECRET = 7
HIDDEN = Privacy(clip_norm=5.0, noise_multiplier=0.3, cohort_size=6)
HIDES = {"clients": {}, "examples": {"privacy": None, "example_privacy": bfl.training.ExamplePrivacy(1.0, 1.0)}}


@functools.cache
def process_of(privacy=HIDDEN, rule="log_linear_pool", kind="flipout", **options):
    build = functools.partial(bfl.models.mlp, kind, (30,), 2, hidden=(4,), seed=0)
    options = {"local_epochs": 1, "batch_size": 8, "weighting": "equal", "element_spec": CLIENTS.element_spec} | options
    return bfl.algorithms.variational(build, rule, privacy=privacy, **options)


def simulate(process, clients=CLIENTS, rounds=3, **options):
    """A run that can be repeated: its secret seed is `SECRET`, so that cohorts are known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "secret_seed", lambda: np.int32([SECRET, 0]))
        return bfl.simulate(process, clients, rounds, engine="local", **options)


@pytest.mark.statistical
def test_clients_are_drawn_each_for_itself():
    """4,000 rounds of 6 of 30: how many, their variance, and pairs, within 5 standard errors: wrong once in 6e5."""
    rounds = [each_drawn(30, 6, number, seed=3) for number in range(4000)]
    there = np.zeros((4000, 30))
    for row, chosen in zip(there, rounds):
        row[chosen] = 1
    numbers = there.sum(1)
    assert abs(numbers.mean() - 6) < 5 * np.sqrt(4.8 / 4000) and abs(numbers.var() / 4.8 - 1) < 5 * np.sqrt(2 / 4000)
    assert abs(np.mean(there[:, 0] * there[:, 1]) - 0.04) < 5 * np.sqrt(0.04 * 0.96 / 4000)
    assert len(each_drawn(5, 5, 1, 0)) == 5
    assert np.array_equal(each_drawn(30, 6, 7, seed=3), rounds[7])


def test_a_run_tells_its_epsilon_and_draws_clients_that_differ_in_number():
    result = simulate(process_of(), evaluate=lambda model: {}, rounds=4)
    assert [row["epsilon"] for row in result.rounds] == [epsilon(0.3, 30, 6, number) for number in (1, 2, 3, 4)]
    assert len({row["num_clients"] for row in result.rounds}) > 1
    assert all("clipped_clients" in row for row in result.rounds)


def test_a_round_for_which_nobody_was_drawn_adds_noise_alone():
    quiet = process_of(HIDDEN._replace(cohort_size=1, noise_multiplier=0.0, clip_norm=100.0))
    loud = process_of(HIDDEN._replace(cohort_size=1, noise_multiplier=0.01))
    empty = next(n for n in range(2, 20) if not len(each_drawn(30, 1, n, seed=SECRET)))
    for process, moves in ((quiet, False), (loud, True)):
        states = [simulate(process, rounds=rounds, seed=0).state.weights for rounds in (empty - 1, empty)]
        before, after = map(flat, states)
        assert (np.abs(after - before).max() > 1e-6) == moves


def numbers_of(state):
    return [np.asarray(x) for x in tf.nest.flatten(state)]


@pytest.mark.parametrize("hides", HIDES)
def test_noise_is_secret_and_a_run_goes_on_with_its_own(hides, tmp_path):
    """Whoever has the seed of a run has its noise no more, nor who was drawn; a checkpoint has both."""
    process = process_of(**HIDES[hides])
    run = lambda rounds, folder: bfl.simulate(
        process, CLIENTS, rounds, engine="local", seed=0, checkpoint_dir=tmp_path / folder
    )
    first, other = run(1, "first"), run(1, "other")
    assert not np.array_equal(first.state.noise, other.state.noise)
    assert not np.array_equal(first.state.weights.posterior.mean[0], other.state.weights.posterior.mean[0])
    shutil.copytree(tmp_path / "first", tmp_path / "again")
    whole, again = run(2, "first"), run(2, "again")
    assert_same(numbers_of(whole.state), numbers_of(again.state))
    np.testing.assert_array_equal(whole.state.noise, first.state.noise)
    if hides == "clients":
        refuses("clip_norm", simulate, process_of(HIDDEN._replace(clip_norm=6.0)), checkpoint_dir=tmp_path / "first")


@pytest.mark.parametrize("hides", HIDES)
@pytest.mark.parametrize("engine", ["local", "tff"])
def test_rounds_without_simulate_require_a_secret_seed(hides, engine):
    process = process_of(**HIDES[hides])
    if engine == "tff":  # Which sees no numbers before the graph runs.
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"pass state\._replace\(noise=federated\.secret_seed"):
            process.round.broadcast(process.local.initialize())
        return
    first, data = process.local.initialize(), [CLIENTS.dataset(0)]
    refuses(r"pass state\._replace\(noise=federated\.secret_seed\(\)\)", process.local.next, first, data)
    one, same, other = (process.local.next(first._replace(noise=np.int32(x)), data) for x in ([1, 2], [1, 2], [1, 3]))
    mean = lambda output: output.state.weights.posterior.mean[0]
    assert np.array_equal(mean(one), mean(same)) and not np.array_equal(mean(one), mean(other))
    assert not np.array_equal(bfl.federated.secret_seed(), bfl.federated.secret_seed())


def test_without_privacy_there_is_no_secret_seed():
    assert process_of(None).local.initialize().noise == ()


def test_clipping_to_nothing_learns_nothing_and_noise_is_of_the_seed():
    start = simulate(process_of(HIDDEN._replace(clip_norm=1e-9, noise_multiplier=0.0)))
    first = process_of().local.initialize().weights
    assert_same(start.state.weights, first, rtol=1e-5, atol=1e-7)
    assert any("was clipped to clip_norm 1e-09" in x for x in start.warnings)
    runs = [simulate(process_of(), seed=seed).state.weights.posterior.mean for seed in (1, 1, 2)]
    same, other = (np.array_equal(runs[0][0], x[0]) for x in runs[1:])
    assert same and not other


def test_it_learns_where_the_noise_is_small_beside_the_cohort():
    """Against the same run without learning: not a threshold of taste."""
    test = bfl.evaluation.evaluator(TRAIN.features, TRAIN.labels)
    weak = HIDDEN._replace(noise_multiplier=0.05, cohort_size=15, clip_norm=20.0)
    scores = {
        name: simulate(process_of(x), rounds=10, evaluate=test, evaluate_every=10).rounds[-1]["accuracy"]
        for name, x in {"weak": weak, "none": weak._replace(clip_norm=1e-9)}.items()
    }
    assert scores["weak"] > scores["none"] + 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "train_size"}, "weighting is 'train_size', but privacy hides .* use weighting='equal'"),
        ({"robust": "clip:5"}, "robust is 'clip:5', but privacy hides .* use robust=None"),
        ({"rule": "weighted_conflation"}, "needs more of the clients than a sum"),
        ({"privacy": (1, 2, 3)}, r"privacy must be a Privacy, such as"),
        ({"privacy": HIDDEN._replace(clip_norm=0)}, "clip_norm is 0"),
        ({"privacy": HIDDEN._replace(delta=2)}, "delta is 2, but must be at least 1e-10"),
    ],
)
def test_what_privacy_does_not_go_with(options, message):
    refuses(message, process_of, **options)


SITES = bfl.data.Parties(
    bfl.data.Schema(TRAIN.name, TRAIN.element_shape, False, TRAIN.class_names), tuple("abcdef"), np.full(6, 10)
)


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        (simulate, {"cohort_size": 5}, "cohort_size is 5, but the process's privacy is of cohorts of 6"),
        (simulate, {"popularity": 1.0}, "popularity draws clients unevenly"),
        (simulate, {"clients": SITES}, "sites know in which rounds they take part"),
        (
            bfl.algorithms.chains.simulate_chains,
            {"clients": CLIENTS, "rounds": 1},
            "cohorts of one size, and privacy must not",
        ),
    ],
)
def test_how_a_private_process_is_not_run(run, options, message):
    refuses(message, run, process_of(), **options)


def test_participation_in_every_round_is_reported():
    result = simulate(process_of(HIDDEN._replace(cohort_size=30)), rounds=1)
    assert any("All 30 clients take part in every round" in x for x in result.warnings)
    assert result.rounds[-1]["num_clients"] == 30


def test_a_faulty_client_counts_nothing_and_the_others_as_before():
    """What one client moves and what all others move adds up to what all move: each is divided by the same number."""
    hidden = HIDDEN._replace(noise_multiplier=0.0, clip_norm=1e6)
    process = process_of(hidden, rule="naive_weighted_average", optimizer="adam")
    present = each_drawn(30, 6, 1, seed=SECRET)
    start = process.local.initialize().weights.posterior.mean

    def moved_without(spoilt):
        features = TRAIN.features.copy()
        for k in spoilt:
            features[CLIENTS.indices[k]] = 1e38
        clients = dataclasses.replace(CLIENTS, source=dataclasses.replace(TRAIN, features=features))
        result = simulate(process, clients=clients, rounds=1, seed=0)
        assert result.rounds[0]["faulty_clients"] == {str(k): "not finite" for k in spoilt}
        return [after - before for after, before in zip(result.state.weights.posterior.mean, start)]

    for whole, others, one in zip(moved_without([]), moved_without(present[:1]), moved_without(present[1:])):
        np.testing.assert_allclose(others + one, whole, atol=1e-6)


@pytest.mark.parametrize("build", [bfl.algorithms.scaffold, bfl.algorithms.fed_dyn])
def test_drift_is_corrected_by_the_expected_number_of_clients(build):
    """The exact number of clients drawn is what nobody may learn; without privacy it is the share of the examples."""
    model_fn = functools.partial(bfl.models.mlp, "deterministic", (30,), 2, hidden=(4,), seed=0)
    size = bfl.weights.RoundSize(100, 1000, 1.0, bfl.weights.Population(7, 50))
    for options, share in (
        ({"privacy": HIDDEN, "weighting": "equal"}, 0.06),
        ({}, 0.05),
        ({"weighting": "equal"}, 0.07),
    ):
        process = build(model_fn, optimizer="sgd", element_spec=CLIENTS.element_spec, **options)
        step = process.server_step
        met = step.meet(step.initialize(process.local.initialize().weights), size)
        np.testing.assert_allclose(met.share, share, rtol=1e-6)


def test_who_works_for_nothing_in_a_round_without_clients_keeps_its_memory():
    model_fn = functools.partial(bfl.models.mlp, "deterministic", (30,), 2, hidden=(4,), seed=0)
    options = {"optimizer": "sgd", "weighting": "equal", "element_spec": CLIENTS.element_spec, "privacy": HIDDEN}
    process = bfl.algorithms.scaffold(model_fn, **options)
    state = process.with_clients(process.local.initialize(), range(3), [10, 10, 10])._replace(noise=np.int32([1, 2]))
    for most, is_kept in ((1.0, False), (0.0, True)):
        given = state._replace(federation=state.federation._replace(most_weight=np.float32(most)))
        rows = process.local.next(given, [CLIENTS.dataset(0)]).state.memory.rows
        assert np.all(rows == state.memory.rows) == is_kept


def test_noise_is_lost_in_no_other_rule():
    """A rule around it, a process without its accounts, or a server without a secret would drop it without a word."""
    private = bfl.rules.private("naive_weighted_average", clip_norm=1.0, noise_multiplier=1.0, cohort_size=6)
    for around in (bfl.rules.median, bfl.rules.trimmed, lambda rule: bfl.rules.clipped(rule, 5.0)):
        refuses("hides clients by noise, which another rule around it would not add", around, private)
    work = bfl.clients.variational(functools.partial(bfl.models.mlp, "flipout", (30,), 2, hidden=(4,)))
    with pytest.raises(InvalidArgument, match="give the plain rule and privacy"):
        bfl.algorithms.compose(lambda: bfl.models.mlp("flipout", (30,), 2), work, private, bfl.servers.replace())
    with pytest.raises(InvalidArgument, match="noise of a secret, which this server does not have"):
        bfl.interop.Server({"w": np.zeros(2)}, 1.0, rule=private)


def test_an_algorithm_of_the_user_that_is_private_counts_as_such():
    config = make_config(None, {"dataset": "breast_cancer", "model": "mlp"})
    of_clients = process_of(HIDDEN._replace(delta=1e-3))
    of_examples = process_of(None, example_privacy=bfl.training.ExamplePrivacy(1.0, 1.0))
    found = [records.is_private(config, process) for process in (None, process_of(None), of_clients, of_examples)]
    assert found == [False, False, True, True]
    assert records.privacy(config, {"epsilon": 2.0}, [5], of_clients) == {"epsilon": 2.0, "delta": 1e-3}
