"""A server's clients that come, learn more and leave: their product, their file, and what is refused."""

import io

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import ALL, HEAD, SHAPES, assert_identical, client, flat, prior_of, state_of, weights
from tests.algorithms.swag.test_products import assert_same
from tests.kit import refuses
from tfp_bfl import posterior
from tfp_bfl.algorithms.held import Held
from tfp_bfl.algorithms.swag.product import gaussian_product
from tfp_bfl.posterior import LowRank, MeanField

with_and_without_prior = pytest.mark.parametrize("with_prior", [False, True], ids=["no prior", "prior"])
every_part = pytest.mark.parametrize("over", [ALL, HEAD], ids=["all weights", "head"])


def parts(state):
    """All that a state holds, for comparisons."""
    return {key: (x.dtype, x.tolist()) for key, x in state._arrays().items()}


def exact(state):
    """The product as published."""
    return state._replace(settings=state.settings._replace(diagonal_only=False, between_clients=False)).pool()


def posteriors_of(state, **posteriors):
    """The state of these posteriors alone, with examples and moments of the state's first client."""
    first = next(iter(state.rows.values()))
    return state._replace(rows={name: first._replace(posterior=q) for name, q in posteriors.items()})


@with_and_without_prior
@every_part
def test_clients_that_come_learn_and_leave_give_the_batch_product(with_prior, over):
    """Added, replaced and removed, in float64: to 1e-12 the product of those that are there in the end."""
    prior = prior_of(over, np.float64) if with_prior else None
    state_with = lambda *numbers: state_of(*numbers, over=over, dtype=np.float64, prior=prior)
    state = state_with(1, 2).join(state_with(3, 4, 5))
    learnt = client(102, over, dtype=np.float64).posterior
    newer = posteriors_of(state_with(2, 7), **{"2": learnt})
    state = state.join(newer, ["2"], replace=True).remove("4", "1")
    assert list(state.rows) == ["2", "3", "5"]
    three, five = (client(n, over, dtype=np.float64).posterior for n in (3, 5))
    batch = gaussian_product([learnt, three, five], prior)
    assert_same(flat(exact(state).posterior), flat(batch))
    assert state.pool().posterior.mean[0].dtype == tf.float64


def test_a_client_that_left_leaves_no_trace():
    before = state_of(1, 2, 3)
    after = before.join(state_of(4, 6)).remove("6", "4")
    assert parts(after) == parts(before)
    assert_identical(after.pool(), before.pool())


def test_a_client_that_comes_again_has_its_new_examples_and_moments():
    newer = client(2, version=1)._replace(num_examples=np.int32(99))
    state = state_of(1, 2).join(state_of(2)._replace(rows={"2": newer}), replace=True)
    assert_identical(state.rows, {"1": client(1), "2": newer})


@every_part
def test_the_rest_of_the_weights_is_the_servers(over):
    pooled = state_of(1, 2, over=over).pool()
    assert_identical(pooled.point, weights().point[: len(SHAPES) - over])
    if over == HEAD:
        assert_identical(pooled.moments, weights().moments)


def test_batch_normalization_is_of_the_mixture_of_the_clients_data():
    """Means by 17 and 27 examples; the variance within clients and between them."""
    parts = [client(1).moments, client(2).moments]
    (m1, m2), (v1, v2) = ([np.float64(x) for (x,) in pair] for pair in zip(*parts))
    mean = (17 * m1 + 27 * m2) / 44
    variance = (17 * (v1 + (m1 - mean) ** 2) + 27 * (v2 + (m2 - mean) ** 2)) / 44
    moments = state_of(2, 1).pool().moments
    np.testing.assert_allclose(moments.mean[0], mean, rtol=1e-6)
    np.testing.assert_allclose(moments.variance[0], variance, rtol=1e-6)
    assert moments.mean[0].dtype == tf.float32 and np.abs(m1 - m2).max() > 0.1


def test_without_clients_the_prior_and_the_servers_statistics_are_left():
    state = state_of(1, 2, prior=prior_of()).remove("1", "2")
    assert state.rows == {}
    pooled = state.pool()
    assert_identical(posterior.marginals(pooled.posterior), tf.nest.map_structure(tf.constant, prior_of()))
    assert_identical(pooled.moments, weights().moments)
    refuses("no clients and no prior", state_of().pool)


@every_part
def test_clients_join_a_server_that_has_a_prior_alone(over):
    prior = prior_of(over)
    state = state_of(over=over, prior=prior).join(state_of(1, 2, over=over, prior=prior))
    assert parts(state) == parts(state_of(1, 2, over=over, prior=prior))
    assert parts(state.join(state_of(over=over, prior=prior))) == parts(state)


def renamed(state, *names):
    return state._replace(rows=dict(zip(names, state.rows.values())))


STATES = {
    "all weights": lambda: state_of(3, 12, 5),
    "head": lambda: state_of(1, 2, over=HEAD),
    "prior": lambda: state_of(1, 2, prior=prior_of()),
    "prior of the head alone": lambda: state_of(over=HEAD, prior=prior_of(HEAD)),
    "prior alone": lambda: state_of(prior=prior_of()),
    "without moments": lambda: state_of(1, 2, normalized=False),
    "float64": lambda: state_of(1, dtype=np.float64),
    "other names": lambda: renamed(state_of(1, 2, 3), "Aachen/1", "Ωmega", "a b"),
    "not in order": lambda: state_of(5).join(state_of(2)),
}


@pytest.mark.parametrize("name", STATES)
def test_states_come_back_bit_for_bit(tmp_path, name):
    state, path = STATES[name](), tmp_path / "state.npz"
    state.save(path)
    back = Held.load(path)
    assert parts(back) == parts(state) and list(back.rows) == list(state.rows)
    assert_identical(back.pool(), state.pool())
    assert [p.name for p in tmp_path.iterdir()] == ["state.npz"]


def other_frozen(state):
    """The network below the head moved by the last digit of one weight."""
    kernel = np.array(state.weights.point[0])
    kernel[0, 0] = np.nextafter(kernel[0, 0], np.float32(9))
    return state._replace(weights=state.weights._replace(point=(kernel, *state.weights.point[1:])))


def other_statistics(state):
    moments = MeanField(state.weights.moments.mean, tuple(2 * v for v in state.weights.moments.variance))
    return state._replace(weights=state.weights._replace(moments=moments))


def with_shape(state, over=HEAD):
    """The last bias has one class more."""
    wider = lambda x: np.concatenate([x, x[..., :1]], -1)
    q = LowRank(*((*leaves[:-1], wider(leaves[-1])) for leaves in client(7, over).posterior))
    point = (*state.weights.point[:-1], wider(state.weights.point[-1]))
    return posteriors_of(state, **{"7": q})._replace(weights=state.weights._replace(point=point))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.join(state_of(2, over=HEAD)), "There is a client '2' already: ask to replace it, or leave"),
        (lambda s: s.join(state_of(7, over=HEAD), ["8"]), "There is no client '8' to take: the others are '7'."),
        (lambda s: s.join(state_of(7, over=HEAD), ["7", "7"]), "There is a client '7' already"),
        (lambda s: s.join(state_of(7)), "other shapes, or another frozen network"),
        (lambda s: s.join(state_of(7, over=HEAD, normalized=False)), "other shapes, or another frozen network"),
        (lambda s: s.join(other_frozen(state_of(7, over=HEAD))), "other shapes, or another frozen network"),
        (lambda s: s.join(other_statistics(state_of(7, over=HEAD))), "other shapes, or another frozen network"),
        (lambda s: s.join(with_shape(state_of(7, over=HEAD))), "other shapes, or another frozen network"),
        (lambda s: s.join(state_of(7, over=HEAD, prior=prior_of(HEAD))), "hold another prior than these"),
        (lambda s: s.remove("8"), "There is no client '8': the clients are '1', '2', '3'"),
        (lambda s: s.remove("1", "1"), "There is no client '1': the clients are '2', '3'"),
        (lambda s: s.remove("1", "2", "3"), "one client at least must be left"),
    ],
)
def test_what_is_refused_changes_nothing(call, message):
    state = state_of(1, 2, 3, over=HEAD)
    before, pooled = parts(state), state.pool()
    refuses(message, call, state)
    assert parts(state) == before
    assert_identical(state.pool(), pooled)


def test_over_all_weights_clients_may_have_started_from_others():
    state = state_of(1).join(other_statistics(other_frozen(state_of(2))))
    assert list(state.rows) == ["1", "2"]
    assert_identical(state.weights, weights())


def wide(number, along=0):
    """Wider than the prior in one weight, by deviations that its diagonal does not show."""
    q = client(number, HEAD).posterior
    deviations = np.zeros_like(q.deviations[1])
    deviations[0, along] = 100.0
    return q._replace(
        diagonal=tuple(np.full_like(x, 5.0) for x in q.diagonal),
        deviations=(np.zeros_like(q.deviations[0]), deviations),
    )


def narrow_and_wide():
    """Client 1 is narrow and makes up for 2 and 3, which without it would leave less than nothing."""
    prior = MeanField(*(tuple(np.full(shape, c, np.float32) for shape in SHAPES[-HEAD:]) for c in (0, 10)))
    state = state_of(1, 2, 3, over=HEAD, prior=prior)
    return posteriors_of(state, **{"1": client(1, HEAD).posterior, "2": wide(2), "3": wide(3)})


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.remove("1"),
        lambda s: s.join(posteriors_of(s, **{"1": wide(1)}), replace=True),
        lambda s: posteriors_of(s, **{"1": wide(1)}).join(posteriors_of(s, **{"2": wide(2)})),
    ],
    ids=["leaves", "learns", "joins"],
)
def test_a_product_that_is_not_positive_definite_is_refused_and_nothing_changes(call):
    state = narrow_and_wide()
    before, pooled = parts(state), exact(state)
    refuses("The product's precision is not positive definite", call, state)
    assert parts(state) == before
    assert_identical(exact(state), pooled)
    assert list(state.remove("2", "3").rows) == ["1"]


def content(state=None, change=None, write=np.savez):
    """A file's bytes, after a change of its arrays."""
    arrays = (state or state_of(1, 2))._arrays()
    arrays = change(arrays) if change else arrays
    stream = io.BytesIO()
    write(stream, **arrays)
    return stream.getvalue()


def without(*keys):
    return lambda arrays: {key: x for key, x in arrays.items() if key not in keys}


def put(**new):
    return lambda arrays: {**arrays, **{key.replace("__", "/"): np.asarray(x) for key, x in new.items()}}


# Of files without arrays tests/files/test_arrays.py has more.
NO_ARRAYS = {
    "damaged": lambda: content().replace(b"descr", b"dezcr", 1),
    "compressed": lambda: content(write=np.savez_compressed),
}
SPREAD = "mean", "variance"
NO_STATE = {
    "of something else": lambda: content(change=lambda arrays: {"weights": arrays["weights/point/0"]}),
    "without names": lambda: content(change=without("names")),
    "without a client's mean": lambda: content(change=without("rows/1/posterior/mean/0")),
    "without a point weight": lambda: content(change=without("weights/point/0")),
    "without a client's moments": lambda: content(change=without(*(f"rows/1/moments/{x}/0" for x in SPREAD))),
    "with half of a client's moments": lambda: content(change=without("rows/1/moments/variance/0")),
    "without the server's moments": lambda: content(change=without(*(f"weights/moments/{x}/0" for x in SPREAD))),
    "one array more": lambda: content(change=put(more=1.0)),
    "a client's moments more": lambda: content(change=put(rows__2__moments__mean__0=np.zeros(4, np.float32))),
    "two numbers of examples": lambda: content(change=put(rows__1__num_examples=np.int32([3, 4]))),
    "no examples": lambda: content(change=put(rows__1__num_examples=np.int32(0))),
    "examples in parts": lambda: content(change=put(rows__1__num_examples=3.5)),
    "a name twice": lambda: content(change=put(names=["1", "1"])),
    "a name on two lines": lambda: content(change=put(names=["1", "2\n3"])),
    "names that are numbers": lambda: content(change=put(names=[1, 2])),
    "one name": lambda: content(change=put(names="1")),
    "NaN in a mean": lambda: content(change=put(rows__0__posterior__mean__3=np.float32([np.nan, 0]))),
    "a diagonal of zero": lambda: content(change=put(rows__0__posterior__diagonal__3=np.float32([0, 1]))),
    "NaN in a point weight": lambda: content(change=put(weights__point__3=np.float32([np.nan, 0]))),
    "infinite moments": lambda: content(change=put(rows__0__moments__mean__0=np.float32([np.inf] * 4))),
    "a moving variance below zero": lambda: content(change=put(rows__0__moments__variance__0=np.float32([-1] * 4))),
    "a point weight of another shape": lambda: content(change=put(weights__point__3=np.zeros(3, np.float32))),
    "moments of another shape": lambda: content(change=put(rows__0__moments__mean__0=np.zeros(3, np.float32))),
    "text for numbers": lambda: content(change=put(weights__point__3=["a", "b"])),
    "complex": lambda: content(change=put(weights__point__3=np.zeros(2, np.complex64))),
    "integers": lambda: content(change=put(weights__point__3=np.zeros(2, np.int64))),
    "bytes the other way": lambda: content(change=put(weights__point__3=np.zeros(2, ">f4"))),
    "of another type": lambda: content(change=put(weights__point__3=np.zeros(2, np.float64))),
    "of no way to pool": lambda: content(change=put(kind="sum")),
    "of another way to pool": lambda: content(change=put(kind="sums")),
    "settings that are text": lambda: content(change=put(settings__diagonal_only="yes")),
    "settings of none": lambda: content(change=put(settings__temperature=1.0)),
    "an indefinite product": lambda: content(narrow_and_wide(), without_the_first),
}  # fmt: skip


def without_the_first(arrays):
    """Client 1 gone, and with it what kept the product positive."""
    kept = {key: x for key, x in arrays.items() if not key.startswith("rows/0/")}
    moved = {key.replace("rows/1/", "rows/0/").replace("rows/2/", "rows/1/"): x for key, x in kept.items()}
    return {**moved, "names": arrays["names"][1:]}


@pytest.mark.parametrize("name", [*NO_ARRAYS, *NO_STATE])
def test_files_that_are_none_are_refused_in_one_sentence(tmp_path, name):
    path = tmp_path / "state.npz"
    path.write_bytes({**NO_ARRAYS, **NO_STATE}[name]())
    arrays = r"The file of clients .*state\.npz is not a file of arrays"
    start = arrays if name in NO_ARRAYS else r".*state\.npz is not a file of clients:"
    caught = refuses(start, Held.load, path)
    assert caught.isprintable() and caught.count(".") <= 3 and len(caught) < 400


def test_the_file_of_those_tests_is_one_without_the_change(tmp_path):
    (tmp_path / "state.npz").write_bytes(content())
    assert parts(Held.load(tmp_path / "state.npz")) == parts(state_of(1, 2))


def test_a_file_that_is_not_there(tmp_path):
    refuses(r"The file of clients .* can't be read: ", Held.load, tmp_path / "state.npz")
