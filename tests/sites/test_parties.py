"""Parties of their own against the same round in one process: equal numbers, equal bits, and every lie found."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import fails, refuses
from tfp_bfl import federated, models
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.round import fold
from tfp_bfl.sites import Party, simulate_parties, to_arrays
from tfp_bfl.sites.arrays import NO_ANSWER
from tfp_bfl.sites.party import result_spec

SEED, SIZES = 7, (40, 30, 20)
TRAIN = bfl.data.load("breast_cancer")
CLIENTS = bfl.data.Clients(TRAIN, np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1]))
SCHEMA = bfl.data.Schema(TRAIN.name, TRAIN.element_shape, False, TRAIN.class_names)
PARTIES = bfl.data.Parties(SCHEMA, ("north", "south", "west"), CLIENTS.sizes)


def build(kind="flipout"):
    return lambda: models.mlp(kind, TRAIN.element_shape, TRAIN.num_classes, hidden=(4,), seed=0)


def qlsd(**options):
    return bfl.algorithms.qlsd(build("deterministic"), step_size=1e-4, element_spec=TRAIN.element_spec, **options)


OPTIONS = {"local_epochs": 1, "element_spec": TRAIN.element_spec}
# Every way of keeping something, and of telling.
PROCESSES = {
    "variational": lambda: bfl.algorithms.variational(build(), "log_linear_pool", **OPTIONS),
    "partitioned_vi": lambda: bfl.algorithms.partitioned_vi(build(), **OPTIONS),
    "bayesian_admm": lambda: bfl.algorithms.bayesian_admm(build(), **OPTIONS),
    "fed_opt": lambda: bfl.algorithms.fed_opt(build("deterministic"), **OPTIONS),
    "fed_kp": lambda: bfl.algorithms.fed_kp(build("deterministic"), **OPTIONS),
    "compressed": lambda: bfl.algorithms.variational(build(), "log_linear_pool", compressor="quantiser:16", **OPTIONS),
    "default": lambda: bfl.algorithms.default(build(), **OPTIONS),
    "8-bit variances": lambda: bfl.algorithms.variational(build(), variance_bits=8, **OPTIONS),
    "error memory": lambda: bfl.algorithms.fed_opt(
        build("deterministic"), compressor="largest:0.1", error_memory=True, **OPTIONS
    ),
    "head": lambda: bfl.algorithms.head(build("deterministic"), sum_bits=10, element_spec=TRAIN.element_spec),
    "qlsd": lambda: qlsd(estimator="anchored", compressor="quantiser:4", per_tensor=True, participation=0.7),
    "qlsd, by client": lambda: qlsd(
        compressor=("quantiser:4", "none", "sparsifier:0.5"), participation=(0.9, 1.0, 0.7)
    ),
}
CODED = ("compressed", "default", "8-bit variances", "error memory", "head", "qlsd")
FAST = ("variational", "partitioned_vi", "fed_opt", "compressed")
LATER = (pytest.mark.long, pytest.mark.deep(after="tests/sites/test_parties.py"))


class Known(Party):
    """Whose noise is that of a simulation, so that the two can be compared."""

    def _key(self, done, message):
        return np.asarray(fold(SEED, done, self.number))


class Here:
    """Sites in this process, of which the last answers first.

    `silent` and `lies`, which change what one sends, are of a number, or of ("round", "members" or "proofs", number).
    `heard` are the exchanges, who was asked, and the answers.
    """

    def __init__(self, parties, lies=None, silent=()):
        self.parties, self.lies, self.silent = list(parties), lies or {}, silent
        self.messages, self.heard = [], []

    def ask(self, numbers, message):
        exchange, answers = next((name for name in ("proofs", "members") if name in message), "round"), {}
        self.messages.append(message)
        self.heard.append((exchange, tuple(numbers), answers))
        for number in reversed(list(numbers)):
            if not {number, (exchange, number)}.intersection(self.silent):
                try:
                    answer = self.parties[number].answer(message)
                except InvalidArgument as error:
                    answer = str(error)
                lie = self.lies.get(number) or self.lies.get((exchange, number)) or (lambda answer: answer)
                answers[number] = lie(answer)
                yield number, answers[number]


def sources():
    for k in range(CLIENTS.num_clients):
        _, features, labels = CLIENTS.examples(k)
        yield bfl.data.Source(TRAIN.name, "train", features, labels, TRAIN.class_names)


def parties_of(make, cls=Known, secret=b"own", **options):
    return [cls(make(), source, k, secret + bytes([k]), **options) for k, source in enumerate(sources())]


def largest_difference(a, b):
    return max(np.abs(x - y).max() for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b)))


@pytest.mark.cpu_seconds(60)
@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=LATER) for name in PROCESSES if name not in FAST)])
def test_sites_have_the_result_of_a_simulation(name):
    make = PROCESSES[name]
    found = simulated(make, Here(parties_of(make)), 3)
    wanted = federated.simulate(make(), CLIENTS, rounds=3, seed=SEED, engine="local")
    assert largest_difference(found.state.weights, wanted.state.weights) < 2e-5
    assert [row["num_examples"] for row in found.rounds] == [row["num_examples"] for row in wanted.rounds]


@pytest.mark.cpu_seconds(60)
@pytest.mark.parametrize("name", ["compressed", *(pytest.param(name, marks=LATER) for name in CODED[1:])])
def test_what_is_compressed_goes_as_bytes_to_the_same_bits(name):
    make, answers = PROCESSES[name], []
    note = lambda answer: answers.append(answer) or answer
    here = Here(parties_of(make), lies=dict.fromkeys(range(3), note))
    found = simulated(make, here)
    # Both come to it without a sum in another order: the numbers of one party.
    alone = bfl.data.Clients(TRAIN, CLIENTS.indices[:1])
    wanted = federated.simulate(make(), alone, rounds=2, seed=SEED, engine="local")
    one = bfl.data.Parties(SCHEMA, ("north",), alone.sizes)
    at_one = simulated(make, Here(parties_of(make)), parties=one)
    assert largest_difference(at_one.state.weights, wanted.state.weights) == 0
    # What was counted are the bytes that were sent.
    sent = sum(8 * answer["sent/code"].size for answer in answers[-3:] if answer["counts/upload_bits"])
    rest = sum(32 * x.size for a in answers[-3:] for key, x in a.items() if key.startswith("sent/rest"))
    assert found.rounds[-1]["upload_bits"] == sent + rest
    assert not any(key.startswith("weights") for answer in answers for key in answer)


def simulated(make, here, rounds=2, parties=PARTIES, **options):
    """Run a process, or what `make` makes, over sites."""
    process = make() if callable(make) else make
    return simulate_parties(process, parties, here, rounds=rounds, seed=SEED, **options)


def test_noise_is_a_function_of_the_sites_secret_and_the_run_alone():
    make = PROCESSES["variational"]
    weights = lambda **options: simulated(make, Here(parties_of(make, cls=Party, **options))).state.weights
    first = weights(run="a")
    assert largest_difference(first, weights(run="a")) == 0
    assert largest_difference(first, weights(run="b")) > 1e-6
    assert largest_difference(first, weights(run="a", secret=b"another")) > 1e-6


def test_the_server_tells_neither_its_seed_nor_what_others_keep():
    make = PROCESSES["partitioned_vi"]
    here = Here(parties_of(make))
    simulated(make, here)
    names = set(here.messages[-1])
    assert {"round", "memory/client", "memory/rows"} <= names and not any("seed" in name for name in names)
    # The server knows the round of a site's memory.
    np.testing.assert_array_equal(here.messages[1]["memory/rows"], [1, 1, 1])
    assert not any("memory" in name for name in to_arrays(result_spec(make())))


def test_a_run_that_breaks_off_goes_on_to_the_same_bits(tmp_path):
    make = PROCESSES["partitioned_vi"]
    whole = simulated(make, Here(parties_of(make)), 3)
    kept = [{} for _ in SIZES]
    again = lambda: [Known(make(), s, k, b"", memory=kept[k]) for k, s in enumerate(sources())]

    class BreaksOff(Here):
        def ask(self, numbers, message):
            return super().ask(numbers if int(message["round"]) < 2 else (), message)

    fails(r"0 of 3 sites .* round 3, but the quorum", simulated, make, BreaksOff(again()), 3, checkpoint_dir=tmp_path)
    # The third round's memory, of which the server never heard, is not gone on from.
    for versions in kept:
        versions[3] = {name: np.zeros_like(x) for name, x in versions[2].items()}
    found = simulated(make, Here(again()), 3, checkpoint_dir=tmp_path)
    assert largest_difference(found.state.weights, whole.state.weights) == 0


def test_a_run_begun_anew_does_not_go_on_from_what_another_of_its_name_left():
    make = PROCESSES["partitioned_vi"]
    left = [{} for _ in SIZES]
    old = [Known(make(), s, k, b"", memory=left[k]) for k, s in enumerate(sources())]
    first = simulated(make, Here(old), 1)
    for versions in left:
        versions[0] = {name: x + 1 for name, x in versions[0].items()}
    again = simulated(make, Here(old), 1)
    assert largest_difference(first.state.weights, again.state.weights) == 0


def with_norm(norm):
    return lambda code: np.append(np.frombuffer(np.float32(norm).tobytes(), np.uint8), code[4:])


def changed(name, change):
    def lie(answer):
        key = next(key for key in answer if key.startswith(name))
        return {**answer, key: np.asarray(change(answer[key].copy()))}

    return lie


LIES = {
    "not finite": (changed("weights/posterior/mean", lambda x: x * np.float32(np.nan)), "not finite"),
    "a variance below zero": (changed("weights/posterior/variance", lambda x: -x), "variance zero or below"),
    "more examples": (changed("num_examples", lambda x: x + np.int32(1)), "more examples than it was given"),
    "no examples": (changed("num_examples", np.zeros_like), "no examples"),
    "beyond all bounds": (changed("weights/posterior/mean", lambda x: x + 1e7), "a number beyond max_magnitude"),
    "a loss that is none": (changed("metrics/nll", lambda x: x * np.float32(np.nan)), "metrics/nll is not finite"),
    "another shape": (changed("weights/posterior/mean", lambda x: x[:1]), "has shape"),
    "another type": (changed("weights/posterior/mean", lambda x: x.astype(np.float64)), "is of type float64"),
    "a name too many": (lambda answer: {**answer, "fault": np.zeros([], np.int32)}, "has no place for 'fault'"),
    "a name missing": (lambda answer: dict(list(answer.items())[1:]), "misses"),
    "no arrays": (lambda answer: [1, 2], "no mapping"),
    "a sentence": (lambda answer: "my file forbids it", "my file forbids it"),
}


LIES_IN_BYTES = {
    "cut short": (changed("sent/code", lambda x: x[:9]), "ends too early"),
    "of more integers": (changed("sent/code", lambda x: np.append(x, x)), "continues after its last integer"),
    "no bytes": (changed("sent/code", lambda x: x.astype(np.int32)), "is of type int32"),
    "a norm that is none": (changed("sent/code", with_norm(np.nan)), "norm is not finite"),
    "a norm beyond all bounds": (changed("sent/code", with_norm(1e12)), "a number beyond max_magnitude"),
    "a variance below zero": (changed("sent/rest/posterior/variance", lambda x: -x), "variance zero or below"),
    "weights besides": (lambda answer: {**answer, "weights/point/0": np.zeros(2, np.float32)}, "has no place for"),
}


@pytest.fixture(scope="module")
def honest():
    """Sites that keep nothing and a process, and what comes of a round without the second site, by name."""
    found = {}
    for name in ("variational", "compressed"):
        parties, process = parties_of(PROCESSES[name]), PROCESSES[name]()
        found[name] = parties, process, simulated(process, Here(parties, silent=[1]), 1)
        assert found[name][2].rounds[0]["faulty_clients"] == {"1": NO_ANSWER}
    return found


@pytest.mark.parametrize(
    ("name", "lie"), [*(("variational", lie) for lie in LIES), *(("compressed", lie) for lie in LIES_IN_BYTES)]
)
def test_a_lie_is_found_at_the_server_and_changes_no_bit_of_the_others(honest, name, lie):
    parties, process, without = honest[name]
    message, reason = (LIES if name == "variational" else LIES_IN_BYTES)[lie]
    found = simulated(process, Here(parties, {1: message}), 1)
    assert reason in found.rounds[0]["faulty_clients"]["1"] and found.rounds[0]["num_faulty"] == 1
    assert largest_difference(found.state.weights, without.state.weights) == 0


def test_answers_of_nobody_asked_and_second_ones_do_not_count(honest):
    class Twice(Here):
        def ask(self, numbers, message):
            answers = list(super().ask(numbers, message))
            yield from [(9, answers[0][1]), *answers, *answers]

    parties, process, _ = honest["variational"]
    found, once = (simulated(process, here(parties), 1) for here in (Twice, Here))
    assert largest_difference(found.state.weights, once.state.weights) == 0
    # A site that claims fewer examples weighs less, by no more; it can't claim more.
    make = PROCESSES["fed_opt"]
    fewer = changed("num_examples", np.ones_like)
    found = simulated(make, Here(parties_of(make), {0: fewer}), 1)
    assert found.rounds[0]["num_examples"] == 1 + 30 + 20


def test_too_few_sites_and_a_message_of_another_model_are_refused(honest):
    parties, process, _ = honest["variational"]
    fails(r"quorum is 2 \(south: it did not .*; west: it", simulated, process, Here(parties, silent=[1, 2]), quorum=2)
    for options, message in (
        ({"quorum": 4}, "quorum is 4, but there are 3 sites in a round"),
        ({"quorum": 3, "cohort_size": 2}, "quorum is 3, but there are 2 sites in a round"),
        ({"evaluate_cohort": lambda *args: {}}, "which sites do not send"),
    ):
        refuses(message, simulated, process, Here(parties), **options)
    party = honest["variational"][0][0]
    other = PROCESSES["fed_opt"]().round
    message = to_arrays(other.broadcast(other.initialize()).message)
    refuses(r"misses|no place", party.answer, message)


def test_a_schema_is_that_of_all_rows_together():
    rng = np.random.default_rng(0)
    tables = {name: rng.normal(k, 1 + k, (20 + k, 2)) for k, name in enumerate(PARTIES.names)}

    def source(x, labels):
        column = [bfl.data.Column(n, float(m), float(s)) for n, m, s in zip("ab", x.mean(0), x.std(0))]
        y = np.array(labels)[np.arange(len(x)) % len(labels)]
        return bfl.data.Source("t", "train", ((x - x.mean(0)) / x.std(0)).astype(np.float32), y, (), tuple(column))

    labels = {"north": ["ill", "well"], "south": ["well", "worse"], "west": ["well", "ill"]}
    parts = {name: source(x, labels[name]) for name, x in tables.items()}
    described = {name: bfl.sites.describe(part) for name, part in parts.items()}
    schema = bfl.sites.agree("t", described)
    every = np.concatenate(list(tables.values()))
    np.testing.assert_allclose([c.mean for c in schema.columns], every.mean(0), rtol=1e-9)
    np.testing.assert_allclose([c.stddev for c in schema.columns], every.std(0), rtol=1e-9)
    assert schema.class_names == ("ill", "well", "worse")
    fitted = bfl.sites.fitted(parts["south"], schema)
    np.testing.assert_allclose(fitted.features, (tables["south"] - every.mean(0)) / every.std(0), rtol=2e-5, atol=1e-6)
    assert fitted.labels[:4].tolist() == [1, 2, 1, 2]
    for change, message in (
        ({"num_examples": 0}, "does not have the form"),
        ({"element_shape": [3]}, "element_shape is"),
        ({"columns": [["a", 0.0, 1.0], ["c", 0.0, 1.0]]}, "different columns"),
        ({"target": ["y", 0.0, 1.0]}, "differ in their task"),
    ):
        refuses(message, bfl.sites.agree, "t", {**described, "west": {**described["west"], **change}})
    refuses(r"has the class|have the class", bfl.sites.fitted, source(tables["west"], ["other", "well"]), schema)
