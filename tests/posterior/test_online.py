import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import posterior
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import LowRank, MeanField

from . import reference
from .test_products import assert_same, clients, prior_of

A, B, C, D = clients(4, 30, 3, 1e-3)
PRIOR = prior_of(30)
with_and_without_prior = pytest.mark.parametrize("prior", [None, PRIOR], ids=["no prior", "prior"])


@with_and_without_prior
def test_clients_that_come_learn_and_leave_give_the_batch_product(prior):
    product = posterior.product_of({"a": A}, prior)
    for name, q in (("b", B), ("c", D), ("d", D)):
        product = posterior.add_client(product, name, q)
    product = posterior.replace_client(product, "c", C)
    assert product.names == ("a", "b", "c", "d")
    assert_same(posterior.pooled(product), posterior.gaussian_product([A, B, C, D], prior))
    product = posterior.remove_client(posterior.remove_client(product, "d"), "a")
    assert product.names == ("b", "c")
    assert_same(posterior.pooled(product), posterior.gaussian_product([B, C], prior))


@with_and_without_prior
def test_a_client_that_left_leaves_no_trace(prior):
    before = posterior.product_of({"a": A, "b": B}, prior)
    after = posterior.remove_client(posterior.add_client(before, "c", C), "c")
    tf.nest.map_structure(np.testing.assert_array_equal, posterior.pooled(after), posterior.pooled(before))


def test_order_of_arrival_does_not_matter():
    one, other = posterior.product_of({"a": A, "b": B, "c": C}), posterior.product_of({"c": C, "a": A, "b": B})
    assert_same(posterior.pooled(one), posterior.pooled(other))


def test_mean_fields_and_diagonal_only():
    field = MeanField(B.mean, B.diagonal)
    product = posterior.product_of({"a": A, "b": field}, PRIOR)
    assert_same(posterior.pooled(product), posterior.gaussian_product([A, field], PRIOR))
    only = posterior.pooled(product, diagonal_only=True)
    assert_same(only, posterior.gaussian_product([A, field], PRIOR, diagonal_only=True))


def test_no_clients_but_a_prior():
    product = posterior.product_of({}, PRIOR)
    np.testing.assert_array_equal(posterior.pooled(product).diagonal, PRIOR.variance)
    grown = posterior.add_client(product, "a", A)
    assert_same(posterior.pooled(grown), A, 1e-14)
    assert_same(posterior.pooled(posterior.remove_client(grown, "a")), posterior.as_low_rank(PRIOR))
    with pytest.raises(InvalidArgument, match="needs at least one client, or the prior"):
        posterior.product_of({})
    with pytest.raises(InvalidArgument, match="'a' is the last one and there is no prior"):
        posterior.remove_client(posterior.product_of({"a": A}), "a")


def test_a_product_without_a_positive_precision_is_refused_and_nothing_changes():
    narrow, prior = MeanField(np.zeros(2), np.full(2, 0.1)), MeanField(np.zeros(2), np.ones(2))
    wide = LowRank(np.zeros(2), np.ones(2), np.array([[10.0, 10.0]]))  # wider than the prior along (1, 1)
    product = posterior.product_of({"narrow": narrow, "one": wide, "two": wide}, prior)
    kept = posterior.pooled(product)
    with pytest.raises(InvalidArgument, match="The product without the client 'narrow' has a precision that is not"):
        posterior.remove_client(product, "narrow")
    with pytest.raises(InvalidArgument, match="with the new posterior of the client 'narrow' has a precision that is"):
        posterior.replace_client(product, "narrow", wide)
    with pytest.raises(InvalidArgument, match="with the client 'two' has a precision that is not positive definite"):
        posterior.add_client(posterior.product_of({"one": wide}, prior), "two", wide)
    with pytest.raises(InvalidArgument, match="of these clients has a precision that is not positive definite"):
        posterior.product_of({"one": wide, "two": wide}, prior)
    assert product.names == ("narrow", "one", "two")
    tf.nest.map_structure(np.testing.assert_array_equal, posterior.pooled(product), kept)


def test_a_product_keeps_its_values_when_the_callers_arrays_change():
    mean = A.mean.copy()
    product = posterior.product_of({"a": A._replace(mean=mean)})
    mean[:] = 0
    np.testing.assert_array_equal(posterior.pooled(product).mean, A.mean)


@with_and_without_prior
@pytest.mark.parametrize("nested", [False, True])
def test_products_are_saved_as_arrays(tmp_path, prior, nested):
    pack = (lambda x: {"k": x[..., :10], "b": (x[..., 10:],)}) if nested else lambda x: x
    low = lambda q: LowRank(*map(pack, q))
    prior = prior and MeanField(*map(pack, prior))
    product = posterior.product_of({"Aachen/1": low(A), "Ωmega": MeanField(pack(B.mean), pack(B.diagonal))}, prior)
    np.savez(tmp_path / "product.npz", **posterior.product_to_arrays(product))
    with np.load(tmp_path / "product.npz", allow_pickle=False) as arrays:
        restored = posterior.product_from_arrays(arrays, like={"k": 0, "b": (0,)} if nested else 0)
    assert restored.names == product.names and (restored.prior is None) == (prior is None)
    tf.nest.map_structure(np.testing.assert_array_equal, restored.posteriors, product.posteriors)
    tf.nest.map_structure(np.testing.assert_array_equal, posterior.pooled(restored), posterior.pooled(product))


def test_arrays_that_make_no_product_are_refused():
    arrays = posterior.product_to_arrays(posterior.product_of({"a": A, "b": B}))
    without = {key: value for key, value in arrays.items() if key != "1/diagonal/0"}
    with pytest.raises(InvalidArgument, match="need one called '1/diagonal/0'"):
        posterior.product_from_arrays(without)
    with pytest.raises(InvalidArgument, match="need one called '0/mean/1', or another structure"):
        posterior.product_from_arrays(arrays, like=(0, 0))
    for more in ({"2/mean/0": A.mean}, {"names": np.array(["a", "a"])}):
        with pytest.raises(InvalidArgument, match="A product of 2 clients in this structure has 7 arrays"):
            posterior.product_from_arrays({**arrays, **more})
    with pytest.raises(InvalidArgument, match=r"The posterior of the client 'a'.* must be finite"):
        posterior.product_from_arrays({**arrays, "0/mean/0": A.mean * np.nan})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: posterior.add_client(p, "a", B), "There is a client 'a' already: replace_client"),
        (lambda p: posterior.add_client(p, 3, B), "name must be a string, not 3"),
        (lambda p: posterior.add_client(p, "c", reference.draw(5, 1, 0)), "of the client 'c' must have the shapes"),
        (lambda p: posterior.replace_client(p, "a", "q"), "of the client 'a' must be a LowRank or a MeanField"),
        (lambda p: posterior.replace_client(p, "c", B), "no client 'c': its clients are 'a', 'b'"),
        (lambda p: posterior.remove_client(p, "c"), "no client 'c': its clients are 'a', 'b'"),
        (lambda p: posterior.product_of({"a": A}, A), "prior must be a MeanField, not LowRank"),
        (lambda p: posterior.product_of({"a": reference.draw(5, 1, 0)}, PRIOR), "client 'a' must have the shapes"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call(posterior.product_of({"a": A, "b": B}))
