"""What configurations stand for: shares of the data, recipes with their options, and runs of them that go on."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
import yaml

import tfp_bfl as bfl
from tests.processes import in_this_process
from tfp_bfl.app.one_run import build, datasets
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options.methods import ALGORITHMS
from tfp_bfl.posterior.families import num_draws
from tfp_bfl.training.inference import DEFAULT_INFERENCE, default_optimizer, default_rate
from tfp_bfl.training.updates import rate_of

RECIPES = [name for name in ALGORITHMS if name.startswith(("fed_", "scaffold"))]
deep = pytest.mark.deep(after="test_build.py")
OF_RECIPE = {
    "fed_opt": {"server_optimizer": "adam", "learning_rate_decay": 0.5},
    "fed_prox": {"proximal": 0.2, "server_optimizer": "sgd", "server_momentum": 0.5},
    "scaffold": {"optimizer": "sgd", "server_optimizer": "sgd"},
    "fed_dyn": {"alpha": 0.1},
    "fed_nova": {"momentum": 0.5},
    "fed_ag": {"weighting": "equal"},
    "fed_be": {"unlabelled_share": 0.2, "pretrain_share": 0.1},
    "fed_pa": {"shrinkage": 0.2, "max_change_norm": 1e6},
    "fed_sgld": {"burn_in_rounds": 1, "max_samples": 2, "step_size": 1e-4},
    "fed_kp": {"server_optimizer": "yogi", "server_learning_rate": 0.1},
    "fed_kppa": {"kernel": "gaussian", "bandwidth": "scott", "bandwidth_scale": 2.0, "burn_in_rounds": 1},
}
SMALL = {"dataset": "breast_cancer", "model": "mlp", "partition": "iid", "clients": 3, "rounds": 3}
TINY = {**SMALL, "local_epochs": 1}
SOURCE = bfl.data.load("breast_cancer")
# What a recipe gets of every configuration.
COMMON = {"element_spec", "local_epochs", "batch_size", "learning_rate", "optimizer_fn", "server_optimizer"}
COMPRESSED = {"per_tensor", "error_memory"}


def config_of(algorithm, **options):
    return make_config(None, {"algorithm": algorithm, **TINY, **OF_RECIPE[algorithm], **options})


def process_of(config):
    share = lambda name: lambda: getattr(datasets.shares(config, SOURCE), name)
    return build.process(config, SOURCE, share("unlabelled"), clients=share("clients"))


def exported(model, folder):
    """The epistemic uncertainty of a few examples, as the SavedModel gives it."""
    bfl.export.save(model, folder / "model")
    loaded = tf.saved_model.load(str(folder / "model"))
    return loaded.predict(SOURCE.features[:5], num_samples=10, seed=0)["epistemic"]


@pytest.fixture
def options_of(monkeypatch):
    def called(config):
        given = {}
        monkeypatch.setattr(bfl.algorithms, config.algorithm, lambda model_fn, **options: given.update(options))
        process_of(config)
        return given

    return called


@pytest.fixture(scope="module", autouse=True)
def logistic_regression():
    """Of two tensors: what a kernel's graph costs, it costs for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bfl.models.MODELS, "mlp", functools.partial(bfl.models.mlp, hidden=()))
        yield


def test_every_recipe_is_tried():
    of_programs = {"fed_lap"}
    named = {name for name in bfl.algorithms.__all__ if name.startswith(("fed_", "scaffold"))}
    assert set(OF_RECIPE) == set(RECIPES) == named - of_programs


def test_options_reach_the_recipe(options_of):
    given = options_of(config_of("fed_kppa", shrinkage=0.3, learning_rate=0.25, server_optimizer="sgd"))
    assert set(given) == COMMON | {"shrinkage", "burn_in_rounds", "start", "kernel_options"}
    assert given["kernel_options"] == {"kernel": "gaussian", "bandwidth": "scott", "scale": 2.0}
    assert (given["start"], given["shrinkage"], given["burn_in_rounds"]) == ("clients", 0.3, 1)
    assert float(rate_of(given["learning_rate"], tf.constant(0))) == 0.25
    assert given["optimizer_fn"]().get_config()["momentum"] == pytest.approx(0.9)
    given = options_of(config_of("fed_sgld", max_samples=7))
    own = {"weighting", "burn_in_rounds", "step_size", "max_samples"}
    assert set(given) == COMMON | COMPRESSED | own
    assert (given["step_size"], given["max_samples"], given["burn_in_rounds"]) == (1e-4, 7, 1)
    assert options_of(config_of("fed_kp", kernel_start="mean"))["start"] == "mean"
    assert set(options_of(config_of("fed_prox"))) == COMMON | COMPRESSED | {"weighting", "proximal"}


CHAINS = {
    "qlsd": {"compressor": "sparsifier:0.5", "participation": 0.5, "step_size": 1e-3, "keep_every": 2},
    "dg_sgld": {"coupling": 0.02, "local_steps": 3, "step_size": 1e-3, "keep_every": 2},
    "fsgld": {"local_steps": 3, "step_size": 1e-3, "keep_every": 2, "surrogate_steps": 5},
}


def chain_of(algorithm, **options):
    return make_config(None, {"algorithm": algorithm, **SMALL, **CHAINS[algorithm], **options})


def test_options_reach_a_chain(options_of):
    given = options_of(chain_of("qlsd", rounds=9, max_samples=3, forgetful=True, potential_curvature="1e4"))
    assert given["curvature"] == 1e4
    assert options_of(chain_of("qlsd", potential_curvature="estimate"))["curvature"] == "estimate"
    assert given["thinning"] == bfl.federated.Thinning(4, 2, 3) and given["prior_stddev"] == 1.0
    assert (given["memory"], given["participation"], given["refresh_every"]) == (False, 0.5, 100)
    assert (given["estimator"], given["compressor"]) == ("anchored", "sparsifier:0.5")
    assert options_of(chain_of("dg_sgld", prior_stddev=0.5))["prior_stddev"] == 0.5
    assert [ALGORITHMS[name].steps(chain_of(name), 100) for name in CHAINS] == [1, 3, 3]


def test_surrogates_are_fitted_to_the_clients_of_the_training(options_of):
    """Fit each Gaussian to the data of its client alone, and never without data."""
    config = chain_of("fsgld", hold_out=0.5)
    held = datasets.shares(config, SOURCE).clients
    surrogates = options_of(config)["surrogates"]
    model_fn = build.model_fn(config, SOURCE)
    for k, found in enumerate(surrogates):
        wanted = bfl.algorithms.chains.local_langevin.fit_surrogate(model_fn, *held.examples(k)[1:], max_steps=5)
        np.testing.assert_allclose(found.precision, wanted.precision, rtol=1e-3, atol=1e-5)
    assert len(surrogates) == 3 and np.abs(surrogates[0].mean - surrogates[1].mean).max() > 1e-3
    with pytest.raises(InvalidArgument, match="fsgld fits a Gaussian to the data of each client before the first roun"):
        build.process(config, SOURCE, lambda: None)


@pytest.mark.parametrize("shares", ["0.5, 1,0.25", [0.5, 1, 0.25]])
def test_settings_by_client_reach_a_chain(options_of, shares):
    """And are in the record of the run, from which it is resumed."""
    config = chain_of("qlsd", clients=3, participation=shares, compressor="none, sparsifier:0.5,none")
    again = make_config(None, yaml.safe_load(config.record()))
    for given in map(options_of, (config, again)):
        assert given["participation"] == [0.5, 1.0, 0.25]
        assert given["compressor"] == ["none", "sparsifier:0.5", "none"]


@pytest.mark.parametrize(
    "name", ["fed_ag", *(pytest.param(x, marks=deep) for x in (*RECIPES, *CHAINS) if x != "fed_ag")]
)
def test_what_is_built_runs_and_is_exported_with_its_uncertainty(name, tmp_path):
    config = chain_of(name, rounds=8) if name in CHAINS else config_of(name)
    clients, options = datasets.shares(config, SOURCE).clients, {"seed": 1, "cohort_size": config.cohort_size}
    with in_this_process():
        result = bfl.simulate(process_of(config), clients, config.rounds, **options)
    assert name not in CHAINS or num_draws(result.draws) == 2
    # Draws of a chain and the Gaussian of the clients have a spread, and modes have none.
    assert bool(np.max(exported(result.model, tmp_path)) > 1e-9) == (name in ("fed_ag", "fed_sgld", *CHAINS))


@pytest.mark.parametrize(("rounds", "burn_in"), [(1, 0), (7, 3), (30, 15)])
@pytest.mark.parametrize("name", ["fed_pa", "fed_kppa", "fed_sgld"])
def test_burn_in_is_half_of_the_rounds(options_of, name, rounds, burn_in):
    config = make_config(None, {**TINY, "algorithm": name, "rounds": rounds})
    assert options_of(config)["burn_in_rounds"] == burn_in


def test_server_optimizers_have_rates_of_their_own(options_of):
    rates = {"sgd": 1.0, "adam": 0.01, "yogi": 0.03, "adagrad": 0.1}
    assert set(rates) == set(bfl.servers.SERVER_OPTIMIZERS)
    for name, rate in rates.items():
        optimizer = options_of(config_of("fed_ag", server_optimizer=name))["server_optimizer"]
        assert (optimizer.name, optimizer.learning_rate) == (name, rate)
    momentum = {"server_optimizer": "sgd", "server_learning_rate": 0.5, "server_momentum": 0.25}
    optimizer = options_of(config_of("fed_ag", **momentum))["server_optimizer"]
    one = tf.constant(1.0)
    state, weights = optimizer.next(optimizer.initialize(tf.TensorSpec([])), one, one)
    assert weights == 0.5 and optimizer.next(state, weights, one)[1] == 0.5 - 0.5 * 1.25
    falling = {"server_optimizer": "adam", "server_schedule": "cosine"}
    rate = options_of(config_of("fed_ag", **falling))["server_optimizer"].learning_rate
    np.testing.assert_allclose([rate(tf.constant(r)) for r in range(4)], [0.01, 0.0075, 0.0025, 0], atol=1e-8)
    assert options_of(config_of("fed_ag"))["server_optimizer"] is None


def test_the_servers_unlabelled_examples_are_nobodys():
    config = config_of("fed_be", unlabelled_share=0.3, pretrain_share=0.2)
    clients, server, held_out, unlabelled, _, _ = datasets.shares(config, SOURCE)
    size = SOURCE.num_examples
    assert len(unlabelled) == pytest.approx(0.3 * size, abs=1)
    assert server.sizes.sum() + held_out.sizes.sum() == pytest.approx(0.2 * size, abs=1)
    assert clients.sizes.sum() + server.sizes.sum() + held_out.sizes.sum() + len(unlabelled) == size
    theirs = {row.tobytes() for part in clients.indices for row in SOURCE.features[part]}
    assert not theirs & {row.tobytes() for row in unlabelled}
    assert datasets.shares(config_of("fed_opt"), SOURCE).unlabelled is None


def test_no_path_of_this_machine_travels_with_a_model():
    paths = {"data_dir": "/data/here", "output": "runs/there"}
    config = make_config(None, TINY).model_copy(update=paths)
    info = build.export_info(config, SOURCE, {"accuracy": 0.5})
    assert info.configuration["dataset"] == "breast_cancer" and info.metrics == {"accuracy": 0.5}
    assert "/" not in repr(info._replace(class_names=[]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_pretraining_is_ordinary_training_an_epoch_a_round(name, monkeypatch):
    """Check the optimizer and the rate of every algorithm; only variational can give another one."""
    own = {"robust": "median", "update_prior": True} if name == "variational" else {}
    if name not in (*CHAINS, "head"):
        own |= {"local_epochs": 7, "learning_rate": 0.25}
        if name not in ("default", "fl_swag"):
            own |= {"learning_rate_decay": 0.5, "max_change_norm": 0.1}
    given = {}
    monkeypatch.setattr(bfl.algorithms, "variational", lambda model_fn, **options: given.update(options))
    batch = {} if name == "head" else {"batch_size": 8}  # Whose sums do not depend on batches.
    config = {**SMALL, "algorithm": name, **batch, "pretrain_share": 0.2}
    build.pretraining(make_config(None, {**config, **own}), SOURCE)
    assert given.pop("rule") == "naive_weighted_average"
    usual = default_rate(DEFAULT_INFERENCE)
    rate = float(rate_of(given.pop("learning_rate"), tf.constant(0)))
    assert rate == pytest.approx(0.25 if name in ("default", "variational") else usual)
    assert given.pop("element_spec") == SOURCE.element_spec
    assert given == {
        **{"local_epochs": 1, "batch_size": batch.get("batch_size", 32), "weighting": "equal"},
        **{"per_tensor": False, "error_memory": False, "update_prior": False, "pretrained": True},
        "server_optimizer": None,
        **(
            {"inference": "backprop", "temperature": 1.0, "optimizer_fn": default_optimizer(update_prior=True)}
            if name == "variational"
            else {"temperature": 0.06}
            if name == "default"
            else {}
        ),
    }


def test_the_published_dropout_is_one_more():
    def dropouts(**options):
        config = make_config(None, {**SMALL, "kind": "mc_dropout", **options})
        return sum(isinstance(layer, bfl.layers.MCDropout) for layer in build.model_fn(config, SOURCE)().layers)

    assert dropouts(output_dropout="true") == dropouts() + 1
    with pytest.raises(bfl.errors.InvalidArgument, match="output_dropout is of kind 'mc_dropout', and this"):
        dropouts(kind="flipout", output_dropout="true")


DIGITS = bfl.data.load("digits")
OF_DIGITS = {"dataset": "digits", "model": "lenet"}


@pytest.mark.parametrize("kind", ["flipout", "deterministic"])
@pytest.mark.parametrize(
    ("names", "number"),
    [("dense", 1), ("dense,conv2d_1", 2), (["dense", "dense_1"], 2), ("conv*", 2), ("*_1", 2), ("flatten,dense_1", 1)],
)
def test_layers_are_frozen_by_name(names, number, kind):
    """Names count the layers of the model alone, however many the program has built, and in any kind."""
    config = make_config(None, {**OF_DIGITS, "kind": kind, "freeze": names})
    for _ in range(2):
        model = build.model_fn(config, DIGITS)()
        frozen = [not layer.trainable for layer in model.layers if layer.weights]
        assert sum(frozen) == number and not frozen[-1]


LAYERS = "its layers with weights are conv2d, conv2d_1, dense, dense_1, dense_2."


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("dens", f"freeze has 'dens', which is no layer of the model 'lenet_flipout': {LAYERS}"),
        ("dense,cov*", f"freeze has 'cov*', which is no layer of the model 'lenet_flipout': {LAYERS}"),
        ("dense,", f"freeze has '', which is no layer of the model 'lenet_flipout': {LAYERS}"),
        ("*", "All weights of the model 'lenet_flipout' are frozen, so that nothing is trained: leave its last layer "),
    ],
)
def test_names_that_freeze_nothing_or_all_are_one_sentence(names, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)) as error:
        build.settle(make_config(None, {**OF_DIGITS, "freeze": names}), DIGITS)
    assert "\n" not in str(error.value)
