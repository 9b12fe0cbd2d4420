"""A server over named arrays: against the library's own rounds, closed forms and bad answers."""

import re
import sys

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import fails, refuses
from tfp_bfl.errors import Error
from tfp_bfl.federated.round import fold
from tfp_bfl.posterior import MeanField
from tfp_bfl.sites.interop import Answer, Server

SHAPES = {"hidden": (4, 3), "last": (3,)}
RULES = ["log_linear_pool", "mean_precision_average", "naive_weighted_average", "linear_pool", "conflation"]
RULES += ["weighted_conflation", "weighted_sum", "distributed_weight_consolidation"]


def drawn(number, low=0.5, high=2.0):
    rng = np.random.default_rng(number)
    mean = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    variance = {name: rng.uniform(low, high, shape) for name, shape in SHAPES.items()}
    return mean, variance, {"bias": rng.standard_normal(2)}


def named(mean, variance, point=None):
    parts = {"mean": mean, "variance": variance, "point": point or {}}
    return {f"{kind}/{name}": x for kind, part in parts.items() for name, x in part.items()}


def answers(count=4):
    return [Answer(f"client {k}", 10 + 7 * k, named(*drawn(k + 1))) for k in range(count)]


def server(**options):
    return Server(*drawn(0, 4.0, 5.0), **options)


def assert_equal(one, other):
    """Compare the arrays of two servers, to the bit."""
    assert one.keys() == other.keys()
    for name, x in one.items():
        np.testing.assert_array_equal(x, other[name], err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_a_round_is_the_rule_over_all_posteriors(rule):
    """And point weights are their mean by the number of examples."""
    pooling, given = server(rule=rule), answers()
    report = pooling.next(given)
    parts = [[np.stack([a.arrays[f"{kind}/{n}"] for a in given]) for n in SHAPES] for kind in ("mean", "variance")]
    sizes = [float(a.num_examples) for a in given]
    first = drawn(0, 4.0, 5.0)
    anchor = MeanField(*([part[name] for name in SHAPES] for part in first[:2]))
    wanted = bfl.rules.aggregate(rule, MeanField(*parts), sizes, anchor)
    for i, name in enumerate(SHAPES):
        np.testing.assert_allclose(pooling.arrays[f"mean/{name}"], wanted.mean[i], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(pooling.arrays[f"variance/{name}"], wanted.variance[i], rtol=1e-5)
    bias = np.average([a.arrays["point/bias"] for a in given], 0, sizes)
    np.testing.assert_allclose(pooling.arrays["point/bias"], bias, rtol=1e-5, atol=1e-6)
    assert (report["round"], report["num_clients"], report["num_examples"]) == (1, 4, sum(sizes))
    assert report["faulty"] == {} and list(report["change"]) == [a.client for a in given]


def test_rounds_are_those_of_a_simulation():
    """The clients' work of three rounds, given to the server as arrays, leads to the state of `simulate`."""
    clients = bfl.data.load("breast_cancer").partition(bfl.data.iid(3), seed=0)
    model_fn = lambda: bfl.models.mlp("flipout", (30,), 2, hidden=(4,), seed=0)
    process = bfl.algorithms.variational(model_fn, "log_linear_pool", local_epochs=1, batch_size=64, seed=3)
    work = process.round.build_work()
    state = process.with_clients(process.local.initialize(), range(3), clients.sizes)
    numbered = lambda leaves: {str(i): np.asarray(x) for i, x in enumerate(leaves)}
    parts = lambda weights: (*map(numbered, weights.posterior), numbered(weights.point))
    pooling = Server(*parts(state.weights), rule="log_linear_pool")
    for number in range(3):
        message = process.round.broadcast(tf.nest.map_structure(tf.constant, state)).message
        given = []
        for k in range(3):
            result = work(message, clients.examples(k), fold(state.seed, number, k))
            given.append(Answer(str(k), int(result.num_examples), named(*parts(result.weights))))
        state = process.local.next(state, [clients.dataset(k) for k in range(3)]).state
        pooling.next(given)
        for name, wanted in named(*parts(state.weights)).items():
            np.testing.assert_allclose(pooling.arrays[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)


def test_partitioned_inference_is_exact_for_gaussian_likelihoods():
    """Clients in NumPy keep their factors: q ends at prior x all likelihoods, whose closed form is a sum."""
    rng = np.random.default_rng(5)
    precisions, shifts = rng.uniform(0.5, 4.0, (3, 6)), rng.standard_normal((3, 6))
    pooling = Server({"w": np.zeros(6)}, 1.0, rule="distributed_weight_consolidation", weighting="equal")
    sites = np.zeros((3, 2, 6))
    for _ in range(60):
        mean, variance = (np.float64(pooling.arrays[f"{kind}/w"]) for kind in ("mean", "variance"))
        natural, given = np.stack([1 / variance, mean / variance]), []
        for k in range(3):
            change = (np.stack([precisions[k], shifts[k]]) - sites[k]) / 3
            sites[k] += change
            precision, shift = natural + change
            given.append(Answer(str(k), 5, {"mean/w": shift / precision, "variance/w": 1 / precision}))
        pooling.next(given)
    precision = 1 + precisions.sum(0)
    np.testing.assert_allclose(pooling.arrays["variance/w"], 1 / precision, rtol=1e-4)
    np.testing.assert_allclose(pooling.arrays["mean/w"], shifts.sum(0) / precision, atol=1e-4)


def test_the_server_of_admm_counts_the_clients_of_the_federation():
    """One of two clients is in the round: natural(q) = (1 - a) (q + q_1) / 2 + a (product + damping rho (q_1 - q))."""
    step = bfl.algorithms.factors.step.dual(step_size=1.0, damping=0.5)
    pooling = Server(
        {"w": np.zeros(1)}, 1.0, rule="log_linear_pool", server_step=step, weighting="equal", num_clients=2
    )
    pooling.next([Answer("a", 5, {"mean/w": np.ones(1), "variance/w": np.full(1, 0.5)})])
    own, sent, share = np.array([1.0, 0.0]), np.array([2.0, 2.0]), 1 / 3
    precision, shift = (1 - share) * (own + sent) / 2 + share * (own + 0.5 * (sent - own))
    np.testing.assert_allclose(pooling.arrays["variance/w"], [1 / precision], rtol=1e-6)
    np.testing.assert_allclose(pooling.arrays["mean/w"], [shift / precision], rtol=1e-6)


def test_the_order_of_arrival_one_robust_aggregator_and_point_weights_alone():
    one, other, given = server(), server(), answers()
    one.next(given)
    other.next(given[::-1])
    assert_equal(one.arrays, other.arrays)
    pooling = Server({"w": np.zeros(1)}, 1.0, rule="naive_weighted_average", robust="median")
    each = lambda name, mean: Answer(name, 5, {"mean/w": np.full(1, mean), "variance/w": np.ones(1)})
    pooling.next([each("a", 1.0), each("b", 1.2), each("c", 1e5)])
    np.testing.assert_allclose(pooling.arrays["mean/w"], [1.2], rtol=1e-6)
    pooling = Server({}, 1.0, {"w": np.zeros(2)}, rule="naive_weighted_average")
    report = pooling.next([Answer(str(k), k + 1, {"point/w": np.full(2, float(k))}) for k in range(3)])
    np.testing.assert_allclose(pooling.predictive["point/w"], np.full(2, (2 * 1 + 3 * 2) / 6), rtol=1e-6)
    assert report["num_clients"] == 3


BAD = {
    "missing": (lambda a: {k: x for k, x in a.items() if k != "mean/last"}, "The structure misses 'mean/last'"),
    "unknown": (lambda a: {**a, "mean/x": np.zeros(1)}, "The structure has no place for 'mean/x'"),
    "shape": (lambda a: {**a, "mean/last": np.zeros(4)}, "mean/last has shape [4], but must have [3]."),
    "integers": (lambda a: {**a, "mean/last": np.zeros(3, int)}, "mean/last is of type int64, but must be of floats."),
    "infinite": (lambda a: {**a, "mean/last": np.full(3, 1e300)}, "mean/last is not finite."),
    "variance": (lambda a: {**a, "variance/last": np.zeros(3)}, "variance zero or below"),
    "huge": (lambda a: {**a, "mean/last": np.full(3, 1e7)}, "a number beyond max_magnitude"),
    "narrow": (lambda a: {**a, "variance/last": np.full(3, 1e-12)}, "a standard deviation below min_stddev"),
    "ragged": (lambda a: {**a, "mean/last": [[1.0], [1.0, 2.0]]}, "mean/last is [[1.0], [1.0, 2.0]], but must be an"),
    "no mapping": (lambda a: [1], "[1] is no mapping from names to arrays."),
}


@pytest.fixture(scope="module")
def two():
    """Two servers that have done the same rounds."""
    return server(), server()


@pytest.mark.parametrize("case", BAD)
def test_a_bad_answer_is_left_out_with_its_reason(case, two):
    """The round is that of the others."""
    (spoil, reason), (one, other), given = BAD[case], two, answers(3)
    bad = Answer("bad", 10, spoil(named(*drawn(9))))
    faulty = one.next([*given, bad])["faulty"]
    assert list(faulty) == ["bad"] and faulty["bad"].startswith(reason)
    other.next(given)
    assert_equal(one.arrays, other.arrays)


def test_a_round_without_a_valid_answer_changes_nothing(tmp_path):
    pooling = server(folder=tmp_path)
    pooling.next(answers())
    before, files = pooling.arrays, sorted(tmp_path.iterdir())
    with pytest.raises(Error, match=r"No client has a valid answer in round 2 \(a: variance zero or below\)"):
        pooling.next([Answer("a", 5, named(drawn(1)[0], {name: -x for name, x in drawn(1)[1].items()}, drawn(1)[2]))])
    assert pooling.round == 1 and sorted(tmp_path.iterdir()) == files
    assert_equal(pooling.arrays, before)


@pytest.mark.parametrize(
    "step",
    [bfl.algorithms.factors.step.dual(), bfl.servers.optimize(bfl.servers.server_optimizer("adam"))],
    ids=["dual", "adam"],
)
def test_a_server_goes_on_from_its_folder_to_the_same_bits(tmp_path, step, caplog):
    """Also where the newest file is damaged: the round before it is there, and the log names the file."""
    options = {"server_step": step, "rule": "log_linear_pool", "weighting": "equal", "num_clients": 4}
    whole = server(**options)
    for _ in range(4):
        whole.next(answers())
    server(folder=tmp_path, **options).next(answers())
    going = server(folder=tmp_path, **options)
    assert going.round == 1
    going.next(answers())
    going.next(answers())
    (tmp_path / "round_3.npz").write_bytes(b"PK")
    going = server(folder=tmp_path, **options)
    assert going.round == 2 and "round_3.npz is left out: " in caplog.text
    going.next(answers())
    going.next(answers()[::-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round_3.npz", "round_4.npz"]
    assert_equal(whole.arrays, going.arrays)


def test_a_folder_of_another_server_or_of_damaged_files_is_refused(tmp_path):
    server(folder=tmp_path).next(answers())
    dual = lambda step_size: server(server_step=bfl.algorithms.factors.step.dual(step_size), folder=tmp_path / "dual")
    dual(1.0).next(answers())
    for other in (
        lambda: server(folder=tmp_path, rule="linear_pool"),
        lambda: Server({"w": np.zeros(1)}, 1.0, folder=tmp_path),
        lambda: server(folder=tmp_path, max_examples=5),
        lambda: dual(0.1),
    ):
        refuses("holds rounds of a server with other first arrays, rule or options", other)
    (tmp_path / "round_1.npz").write_bytes(b"no archive")
    refuses("not a file of arrays, or is damaged", server, folder=tmp_path)


ONE = np.ones(1)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (({}, {}), {}, "A server needs arrays: give mean with variance, or point."),
        (({"a": ONE}, {"b": ONE}), {}, "mean and variance must have the same names, but 'a' is in one of them only."),
        (({"a": ONE}, {"a": 0 * ONE}), {}, "The variance of 'a' must be above zero everywhere."),
        (({"a": ONE}, -1.0), {}, "variance is -1.0"),
        (({"a": [1]}, 1.0), {}, "mean/a is of type int64, but must be of floats."),
        (({"a": ONE}, 1.0), {"rule": "log_linear"}, "There is no rule 'log_linear'"),
        (({"a": ONE}, 1.0), {"weighting": "distance"}, "There is no weighting 'distance'"),
        (({"a": ONE}, 1.0), {"num_clients": 0}, "num_clients is 0"),
        (({"a": ONE}, 1.0), {"server_step": "adam"}, "server_step must be a ServerStep"),
        (({"a": ONE}, 1.0), {"rule": bfl.rules.stacked()}, "The server step 'replace' takes weights"),
        (({"a": ONE}, 1.0), {"robust": "mode"}, "mode"),
    ],
)
def test_bad_arguments(arguments, options, message):
    refuses(re.escape(message), Server, *arguments, **options)


def test_no_client_weighs_more_than_the_most_examples_and_one_that_states_far_more_is_a_warning():
    """Means 0 of 7 examples and 1 of a claim of 2^31 - 1, which counts as 7."""
    pooling = Server({"w": np.zeros(1)}, 1.0, rule="naive_weighted_average", max_examples=7)
    each = lambda name, mean, size: Answer(name, size, {"mean/w": np.full(1, mean), "variance/w": np.ones(1)})
    assert pooling.next([each("a", 0.0, 7), each("b", 1.0, 2**31 - 1)])["num_examples"] == 14
    np.testing.assert_allclose(pooling.arrays["mean/w"], [0.5], rtol=1e-6)
    given = [*answers(), Answer("huge", 2**31 - 1, named(*drawn(9)))]
    (warning,) = server().next(given)["warnings"]
    assert warning.startswith("huge reports 2,147,483,647 examples, more than 10 times the median 20 of the others.")
    assert server(max_examples=100).next(given)["warnings"] == server(weighting="equal").next(given)["warnings"] == []
    assert server().next(answers())["warnings"] == []


def test_a_client_answers_once_with_a_number_of_examples_and_somebody_answers():
    twice = "The client 'client 0' answers twice in one round"
    for given, message in (
        ([Answer(1, 5, {})], "A client is named 1, but its name must be text"),
        ([*answers(), *answers(1)], twice),
        ([*answers(1), answers(1)[0]._replace(client="client\u00a0 0\u200b")], twice),
        ([answers(1)[0]._replace(client="\u200b ")], "its name must be text"),
        ([], "at least one client"),
    ):
        refuses(message, server().next, given)
    given = [Answer(f"bad {size}", size, named(*drawn(9))) for size in (-1, 2.5, True, 2**31, "ten")]
    faulty = server().next([*answers(1), *given])["faulty"]
    assert len(faulty) == 5 and all("must be a whole number of examples." in reason for reason in faulty.values())


def test_without_flower_the_strategy_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delitem(sys.modules, "tfp_bfl.sites.interop.bayesian_strategy", raising=False)
    with pytest.raises(bfl.errors.MissingDependency, match="flower_strategy needs Flower, which is not installed"):
        bfl.interop.flower_strategy(Server({"w": np.zeros(1)}, 1.0))


def test_two_servers_of_one_folder_do_not_both_write_a_round(tmp_path):
    first, second = server(folder=tmp_path), server(folder=tmp_path)
    first.next(answers())
    fails(r"Another server has written a round to .* The state is unchanged\.", second.next, answers(2))
    assert second.round == 0 and server(folder=tmp_path).round == 1
    assert_equal(server(folder=tmp_path).arrays, first.arrays)
    first.next(answers())
    assert first.round == 2
