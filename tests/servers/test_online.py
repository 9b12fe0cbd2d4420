"""A server's clients that come, learn more and leave: their product, their file, and what is refused."""

import functools
import io
import os
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from tests.posterior.test_products import assert_same
from tfp_bfl import posterior
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import LowRank, MeanField
from tfp_bfl.servers import online

from .cases import ALL, HEAD, SHAPES, assert_identical, client, flat, prior_of, state_of, weights

with_and_without_prior = pytest.mark.parametrize("with_prior", [False, True], ids=["no prior", "prior"])
exact = functools.partial(online.pool, diagonal_only=False, between_clients=False)
every_part = pytest.mark.parametrize("over", [ALL, HEAD], ids=["all weights", "head"])


def parts(state):
    """All that a state holds, for comparisons."""
    return {key: (np.asarray(x).dtype, np.asarray(x).tolist()) for key, x in online._arrays(state).items()}


@with_and_without_prior
@every_part
def test_clients_that_come_learn_and_leave_give_the_batch_product(with_prior, over):
    """Added, replaced and removed, in float64: to 1e-12 the product of those that are there in the end."""
    prior = prior_of(over, np.float64) if with_prior else None
    state_with = lambda *numbers: state_of(*numbers, over=over, dtype=np.float64, prior=prior)
    state = online.join(state_with(1, 2), state_with(3, 4, 5))
    newer = state_with(2, 7)
    learnt = client(102, over, dtype=np.float64).posterior
    newer = newer._replace(product=posterior.replace_client(newer.product, "2", learnt))
    state = online.remove(online.join(state, newer, ["2"], replace=True), "4", "1")
    assert state.product.names == ("2", "3", "5")
    assert set(state.num_examples) == set(state.moments) == {"2", "3", "5"}
    three, five = (client(n, over, dtype=np.float64).posterior for n in (3, 5))
    batch = posterior.gaussian_product([learnt, three, five], prior)
    assert_same(flat(exact(state).posterior), flat(batch))
    assert online.pool(state).posterior.mean[0].dtype == tf.float64


def test_a_client_that_left_leaves_no_trace():
    before = state_of(1, 2, 3)
    after = online.remove(online.join(before, state_of(4, 6)), "6", "4")
    assert parts(after) == parts(before)
    assert_identical(online.pool(after), online.pool(before))


def test_a_client_that_comes_again_has_its_new_examples_and_moments():
    state, newer = state_of(1, 2), state_of(2)
    newer = newer._replace(num_examples={"2": 99}, moments={"2": client(2, version=1).moments})
    newer = newer._replace(product=posterior.product_of({"2": client(2, version=1).posterior}))
    state = online.join(state, newer, replace=True)
    assert state.num_examples == {"1": 17, "2": 99}
    assert_identical(state.moments["2"], client(2, version=1).moments)
    assert_identical(state.product.posteriors, (client(1).posterior, client(2, version=1).posterior))


@every_part
def test_the_rest_of_the_weights_is_the_servers(over):
    pooled = online.pool(state_of(1, 2, over=over))
    assert_identical(pooled.point, weights().point[: len(SHAPES) - over])
    if over == HEAD:
        assert_identical(pooled.moments, weights().moments)


def test_batch_normalization_is_of_the_mixture_of_the_clients_data():
    """Means by 17 and 27 examples; the variance within clients and between them."""
    parts = [client(1).moments, client(2).moments]
    (m1, m2), (v1, v2) = ([np.float64(x) for (x,) in pair] for pair in zip(*parts))
    mean = (17 * m1 + 27 * m2) / 44
    variance = (17 * (v1 + (m1 - mean) ** 2) + 27 * (v2 + (m2 - mean) ** 2)) / 44
    moments = online.pool(state_of(2, 1)).moments
    np.testing.assert_allclose(moments.mean[0], mean, rtol=1e-6)
    np.testing.assert_allclose(moments.variance[0], variance, rtol=1e-6)
    assert moments.mean[0].dtype == tf.float32 and np.abs(m1 - m2).max() > 0.1


def test_without_clients_the_prior_and_the_servers_statistics_are_left():
    state = online.remove(state_of(1, 2, prior=prior_of()), "1", "2")
    assert state.product.names == () and state.num_examples == state.moments == {}
    pooled = online.pool(state)
    assert_identical(posterior.marginals(pooled.posterior), tf.nest.map_structure(tf.constant, prior_of()))
    assert_identical(pooled.moments, weights().moments)
    with pytest.raises(InvalidArgument, match="needs at least one client, or the prior"):
        state_of()


@every_part
def test_clients_join_a_server_that_has_a_prior_alone(over):
    prior = prior_of(over)
    state = online.join(state_of(over=over, prior=prior), state_of(1, 2, over=over, prior=prior))
    assert parts(state) == parts(state_of(1, 2, over=over, prior=prior))
    assert parts(online.join(state, state_of(over=over, prior=prior))) == parts(state)


def renamed(state, *names):
    number = dict(zip(state.product.names, names))
    rename = lambda values: {number[key]: value for key, value in values.items()}
    return state._replace(
        product=state.product._replace(names=names),
        num_examples=rename(state.num_examples),
        moments=rename(state.moments),
    )


STATES = {
    "all weights": lambda: state_of(3, 12, 5),
    "head": lambda: state_of(1, 2, over=HEAD),
    "prior": lambda: state_of(1, 2, prior=prior_of()),
    "prior of the head alone": lambda: state_of(over=HEAD, prior=prior_of(HEAD)),
    "prior alone": lambda: state_of(prior=prior_of()),
    "without moments": lambda: state_of(1, 2, normalized=False),
    "float64": lambda: state_of(1, dtype=np.float64),
    "other names": lambda: renamed(state_of(1, 2, 3), "Aachen/1", "Ωmega", "a b"),
    "not in order": lambda: online.join(state_of(5), state_of(2)),
}


@pytest.mark.parametrize("name", STATES)
def test_states_come_back_bit_for_bit(tmp_path, name):
    state, path = STATES[name](), tmp_path / "state.npz"
    online.save(state, path)
    back = online.load(path)
    assert parts(back) == parts(state) and back.product.names == state.product.names
    assert_identical(online.pool(back), online.pool(state))
    assert [p.name for p in tmp_path.iterdir()] == ["state.npz"]


def test_a_loaded_state_goes_on(tmp_path):
    state = online.join(state_of(1, 2, prior=prior_of()), state_of(3, prior=prior_of()))
    online.save(state, tmp_path / "state.npz")
    back = online.remove(online.join(online.load(tmp_path / "state.npz"), state_of(4, prior=prior_of())), "2")
    assert parts(back) == parts(online.remove(online.join(state, state_of(4, prior=prior_of())), "2"))


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
    q = client(7, over).posterior
    q = LowRank(*((*leaves[:-1], wider(leaves[-1])) for leaves in q))
    point = (*state.weights.point[:-1], wider(state.weights.point[-1]))
    return state._replace(product=posterior.product_of({"7": q}), weights=state.weights._replace(point=point))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: online.join(s, state_of(2, over=HEAD)),
            "There is a client '2' already: ask to replace it, or leave",
        ),
        (
            lambda s: online.join(s, state_of(7, over=HEAD), ["8"]),
            "There is no client '8' to take: the others are '7'.",
        ),
        (lambda s: online.join(s, state_of(7, over=HEAD), ["7", "7"]), "There is a client '7' already"),
        (lambda s: online.join(s, state_of(7)), "other shapes, or another frozen network"),
        (lambda s: online.join(s, state_of(7, over=HEAD, normalized=False)), "other shapes, or another frozen network"),
        (lambda s: online.join(s, other_frozen(state_of(7, over=HEAD))), "other shapes, or another frozen network"),
        (lambda s: online.join(s, other_statistics(state_of(7, over=HEAD))), "other shapes, or another frozen network"),
        (lambda s: online.join(s, with_shape(state_of(7, over=HEAD))), "of the client '7' must have the shapes"),
        (lambda s: online.join(s, state_of(7, over=HEAD, prior=prior_of(HEAD))), "hold another prior than these"),
        (lambda s: online.remove(s, "8"), "The product has no client '8': its clients are '1', '2', '3'"),
        (lambda s: online.remove(s, "1", "1"), "The product has no client '1': its clients are '2', '3'"),
        (lambda s: online.remove(s, "1", "2", "3"), "The client '3' is the last one and there is no prior"),
    ],
)
def test_what_is_refused_changes_nothing(call, message):
    state = state_of(1, 2, 3, over=HEAD)
    before, pooled = parts(state), online.pool(state)
    with pytest.raises(InvalidArgument, match=message) as caught:
        call(state)
    assert "\n" not in str(caught.value)
    assert parts(state) == before
    assert_identical(online.pool(state), pooled)


def test_over_all_weights_clients_may_have_started_from_others():
    state = online.join(state_of(1), other_statistics(other_frozen(state_of(2))))
    assert state.product.names == ("1", "2")
    assert_identical(state.weights, tf.nest.map_structure(tf.constant, weights()))


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
    posteriors = {"1": client(1, HEAD).posterior, "2": wide(2), "3": wide(3)}
    return state._replace(product=posterior.product_of(posteriors, prior))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: online.remove(s, "1"), "The product without the client '1' has a precision that is not positive"),
        (lambda s: online.join(s, s._replace(product=posterior.product_of({"1": wide(1)}, s.product.prior)),
                               replace=True), "with the new posterior of the client '1' has a precision that is not"),
    ],
)  # fmt: skip
def test_a_product_that_is_not_positive_definite_is_refused_and_nothing_changes(call, message):
    state = narrow_and_wide()
    before, pooled = parts(state), exact(state)
    with pytest.raises(InvalidArgument, match=message):
        call(state)
    assert parts(state) == before
    assert_identical(exact(state), pooled)
    assert online.remove(state, "2", "3").product.names == ("1",)


def test_one_more_wide_client_is_refused():
    prior = narrow_and_wide().product.prior
    state = state_of(1, over=HEAD, prior=prior)._replace(product=posterior.product_of({"1": wide(1)}, prior))
    others = state_of(2, over=HEAD, prior=prior)._replace(product=posterior.product_of({"2": wide(2)}, prior))
    with pytest.raises(InvalidArgument, match="The product with the client '2' has a precision that is not positive"):
        online.join(state, others)


def content(state=None, change=None, write=np.savez):
    """A file's bytes, after a change of its arrays."""
    arrays = {key: np.asarray(x) for key, x in online._arrays(state or state_of(1, 2)).items()}
    arrays = change(arrays) if change else arrays
    stream = io.BytesIO()
    write(stream, **arrays)
    return stream.getvalue()


def without(*keys):
    return lambda arrays: {key: x for key, x in arrays.items() if key not in keys}


def put(**new):
    return lambda arrays: {**arrays, **{key.replace("__", "/"): np.asarray(x) for key, x in new.items()}}


def archive(name, data):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr(name, data)
    return stream.getvalue()


KERNEL = weights().point[0].tobytes()
NO_ARRAYS = {
    "empty": lambda: b"",
    "truncated": lambda: content()[:-30],
    "cut in the middle": lambda: content()[: len(content()) // 2],
    "damaged": lambda: content().replace(b"descr", b"dezcr", 1),
    "a changed value": lambda: content().replace(KERNEL, KERNEL[:-1] + bytes([KERNEL[-1] ^ 1])),
    "text": lambda: b"a server's state",
    "an array": lambda: content(write=lambda stream, **arrays: np.save(stream, arrays["point/0"])),
    "compressed": lambda: content(write=np.savez_compressed),
    "pickled": lambda: content(change=put(point__0=np.array([{"a": 1}], object))),
    "no arrays in it": lambda: archive("notes.txt", "hello"),
}
NO_STATE = {
    "of something else": lambda: content(change=lambda arrays: {"weights": arrays["point/0"]}),
    "without names": lambda: content(change=without("product/names")),
    "without a client's mean": lambda: content(change=without("product/1/mean/0")),
    "without a point weight": lambda: content(change=without("point/0")),
    "without a client's moments": lambda: content(change=without("moments/1/0", "moments/1/1")),
    "with half of a client's moments": lambda: content(change=without("moments/1/1")),
    "without the server's moments": lambda: content(change=without("moments/server/0", "moments/server/1")),
    "one array more": lambda: content(change=put(more=1.0)),
    "a client's moments more": lambda: content(change=put(moments__2__0=np.zeros(4, np.float32))),
    "too few numbers of examples": lambda: content(change=put(num_examples=[3])),
    "too many numbers of examples": lambda: content(change=put(num_examples=[3, 4, 5])),
    "no examples": lambda: content(change=put(num_examples=[3, 0])),
    "examples in parts": lambda: content(change=put(num_examples=[3.5, 1.0])),
    "a name twice": lambda: content(change=put(product__names=["1", "1"])),
    "a name on two lines": lambda: content(change=put(product__names=["1", "2\n3"])),
    "names that are numbers": lambda: content(change=put(product__names=[1, 2])),
    "one name": lambda: content(change=put(product__names="1")),
    "NaN in a mean": lambda: content(change=put(product__0__mean__3=np.float32([np.nan, 0]))),
    "a diagonal of zero": lambda: content(change=put(product__0__diagonal__3=np.float32([0, 1]))),
    "NaN in a point weight": lambda: content(change=put(point__3=np.float32([np.nan, 0]))),
    "infinite moments": lambda: content(change=put(moments__0__0=np.float32([np.inf] * 4))),
    "a moving variance below zero": lambda: content(change=put(moments__0__1=np.float32([-1] * 4))),
    "a point weight of another shape": lambda: content(change=put(point__3=np.zeros(3, np.float32))),
    "moments of another shape": lambda: content(change=put(moments__0__0=np.zeros(3, np.float32))),
    "text for numbers": lambda: content(change=put(point__3=["a", "b"])),
    "complex": lambda: content(change=put(point__3=np.zeros(2, np.complex64))),
    "integers": lambda: content(change=put(point__3=np.zeros(2, np.int64))),
    "bytes the other way": lambda: content(change=put(point__3=np.zeros(2, ">f4"))),
    "of another type": lambda: content(change=put(point__3=np.zeros(2, np.float64))),
    "an indefinite product": lambda: content(narrow_and_wide(), without_the_first),
}  # fmt: skip


def without_the_first(arrays):
    """Client 1 gone, and with it what kept the product positive."""
    kept = {key: x for key, x in arrays.items() if not key.startswith(("product/0/", "moments/0"))}
    moved = {key.replace("/1/", "/0/").replace("/2/", "/1/"): x for key, x in kept.items()}
    return {**moved, "product/names": arrays["product/names"][1:], "num_examples": arrays["num_examples"][1:]}


@pytest.mark.parametrize("name", [*NO_ARRAYS, *NO_STATE])
def test_files_that_are_none_are_refused_in_one_sentence(tmp_path, name):
    path = tmp_path / "state.npz"
    path.write_bytes({**NO_ARRAYS, **NO_STATE}[name]())
    start = (
        r"The server state .*state\.npz is not a file of|The array '.*' of the server state .*state\.npz holds Python"
        if name in NO_ARRAYS
        else r".*state\.npz is not a server's"
    )
    with pytest.raises(InvalidArgument, match=start) as caught:
        online.load(path)
    assert str(caught.value).isprintable() and str(caught.value).count(".") <= 3 and len(str(caught.value)) < 400


def test_the_file_of_those_tests_is_one_without_the_change(tmp_path):
    (tmp_path / "state.npz").write_bytes(content())
    assert parts(online.load(tmp_path / "state.npz")) == parts(state_of(1, 2))


@pytest.mark.parametrize("what", ["absent", "folder", "pipe"])
def test_what_can_not_be_read(tmp_path, what):
    path = tmp_path / "state.npz"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    with pytest.raises(InvalidArgument, match=r"The server state .* can't be read: "):
        online.load(path)
