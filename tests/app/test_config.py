"""The configuration: defaults, files, flags that win, and what it refuses."""

import re

import pytest
import yaml

from tfp_bfl.app.options.config import fields, make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options.group import extra
from tfp_bfl.options.methods import ALGORITHMS, arguments, default_in_words, in_words, takers


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_default_is_valid_and_flipout_on_digits():
    config = make_config(None, {})
    assert (config.dataset, config.model) == ("digits", "lenet")
    assert (config.kind, config.partition) == ("flipout", "dirichlet:0.5")


def test_file_then_flags(tmp_path):
    path = write(tmp_path, "rounds: 7\nrule: linear_pool\n")
    assert make_config(path, {}).rounds == 7
    config = make_config(path, {"rounds": "3"})
    assert (config.rounds, config.rule) == (3, "linear_pool")


# What an option requires to have an effect.
NEEDS = {
    "server_learning_rate": {"server_optimizer": "adam"},
    "server_momentum": {"server_optimizer": "sgd"},
    "server_schedule": {"server_optimizer": "adam"},
    "silent_rounds": {"learning_rate_decay": 0.1},
    **{name: {"compressor": "quantiser:4"} for name in ("error_memory", "per_tensor")},
    "last_layer": {"pretrain_share": 0.2},
    "pretrained": {"update_prior": True, "kind": "flipout"},
    "variance_bits": {"kind": "flipout"},
    "client_noise": {"evaluate_clients": True},
    "privacy_clip_norm": {"cohort_size": 2},
    **{
        f"privacy_{name}": {"privacy_clip_norm": 1.0, "cohort_size": 2}
        for name in ("noise", "variance_clip_norm", "delta")
    },
    "example_noise": {"example_clip_norm": 1.0, "inference": "backprop"},
    "example_clip_norm": {"inference": "backprop"},
    "popularity": {"cohort_size": 2},
    "max_retries": {"dropout": 0.5},
}
# Values that do not follow from a declaration: its first other choice, the other truth value, 3 or 0.5.
SPECIAL = {
    "augmentation": "crop_and_flip:1", "class_weight": "balanced", "inference": "backprop", "kl": "client",
    "learning_rate": 0.07, "learning_rate_decay": 0.1, "noise": "flipout", "optimizer": "adam", "prior_stddev": 0.3,
    "potential_curvature": 50.0, "privacy_delta": 1e-6, "step_size": 1e-5, "rule": "conflation",
    "schedule": "exponential", "learner": "hessian_free_maml", "sum_bits": 12, "variance_bits": 8,
}  # fmt: skip


def other_value(name, field):
    if name in SPECIAL:
        return SPECIAL[name]
    if extra(field, "names"):
        return next(form for form in extra(field, "names").entries if ":" not in form and form != field.default)
    if isinstance(field.default, bool):
        return not field.default
    return 0.5 if "float" in str(field.annotation) else 4


# Of every option that is not of all algorithms, a value other than any default.
OWN = {name: other_value(name, field) for name, field in fields().items() if takers(name)}


def own_options(algorithm):
    return {name: value for name, value in OWN.items() if algorithm in takers(name)}


def test_an_algorithm_has_defaults_of_its_own_which_what_is_given_wins_over(tmp_path):
    config = make_config(None, {"algorithm": "fl_swag"})
    assert (config.kind, config.rounds, config.local_epochs, config.learning_rate) == ("deterministic", 1, 20, 0.05)
    config = make_config(None, {"algorithm": "fl_swag", "kind": "mc_dropout", "rounds": "2", "learning_rate": "0.001"})
    assert (config.kind, config.rounds, config.local_epochs, config.learning_rate) == ("mc_dropout", 2, 20, 0.001)
    config = make_config(write(tmp_path, "algorithm: fl_swag\nlocal_epochs: 3\n"), {"momentum": "0.5"})
    assert (config.kind, config.local_epochs, config.momentum) == ("deterministic", 3, 0.5)
    assert config.diagonal_only and config.between_clients and config.curvature
    assert make_config(None, {"algorithm": "default"}) == make_config(None, {})
    config = make_config(None, {"algorithm": "fed_kppa"})
    assert (config.kind, config.rounds, config.momentum, config.kernel_start) == ("deterministic", 30, 0.9, "clients")


def test_options_by_client_are_text_with_commas_or_lists():
    text = {"compressor": "quantiser:4,none,none", "participation": "0.5,0.75,1"}
    lists = {"compressor": ["quantiser:4", "none", "none"], "participation": [0.5, 0.75, 1]}
    of = lambda given: make_config(None, {"algorithm": "qlsd", "clients": 3, **given})
    assert of(lists).compressor == of(text).compressor == text["compressor"]
    assert arguments(of(lists), list)["compressor"] == lists["compressor"]


@pytest.mark.parametrize("engine", ["local", "compiled"])
def test_chains_count_bits_where_xla_does_not_compile_the_round(engine):
    config = make_config(None, {"algorithm": "qlsd", "engine": engine})
    assert arguments(config, list)["count_bits"] == (engine == "local")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_options_of_other_algorithms_are_refused(algorithm):
    for name, value in OWN.items():
        options = {"algorithm": algorithm, name: str(value)}
        if algorithm in takers(name):
            needs = {x: y for x, y in NEEDS.get(name, {}).items() if algorithm in (takers(x) or (algorithm,))}
            assert getattr(make_config(None, {**needs, **options}), name) == value
        else:
            message = f"{name} is an option of {in_words(takers(name))}, and this is {algorithm}: leave it out."
            if name in ("server_optimizer", "schedule"):
                message = f"{algorithm} takes no {name}, as "
            with pytest.raises(InvalidArgument, match=re.escape(message)):
                make_config(None, options)


@pytest.mark.parametrize(
    ("name", "here"),
    [("FedAvg", "fed_opt"), ("fed-prox", "fed_prox"), ("FLSWAG", "fl_swag"), ("pvi", "partitioned_vi")],
)
def test_what_others_call_an_algorithm(name, here):
    assert make_config(None, {"algorithm": name}).algorithm == here
    assert here in make_config(None, {"algorithm": name}).record()


def test_algorithms_in_words():
    assert in_words(["variational"]) == "variational"
    assert in_words(["fl_swag", "fed_pa", "fed_kp"]) == "fl_swag, fed_pa and fed_kp"
    assert in_words(name for name in ALGORITHMS if name not in ("qlsd", "fed_be")) == "all but fed_be and qlsd"
    assert in_words(ALGORITHMS).startswith("default, variational, ") and in_words(ALGORITHMS).endswith(" and fed_*")
    assert default_in_words("rounds", 60).startswith("60; 1 for fl_swag; 2 for head; 30 for scaffold and fed_*; ")
    assert default_in_words("kernel_start", "clients") == "clients"
    assert default_in_words("burn_in_rounds", None) == ""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_record_gives_the_same_config_and_holds_nothing_of_other_algorithms(tmp_path, algorithm):
    fitting = {"estimator": "anchored", "optimizer": "momentum"}  # `forgetful` and `momentum` are of these.
    given = {name: fitting.get(name, x) for name, x in own_options(algorithm).items()}
    given |= {"evaluate_clients": True} if "client_noise" in given else {}
    given |= {"kind": "flipout"} if "variance_bits" in given else {}
    config = make_config(None, {"algorithm": algorithm, "pretrain_share": "0.2", **given})
    record = yaml.safe_load(config.record())
    assert {name for name in record if takers(name)} == set(own_options(algorithm))
    for text in (config.record(), yaml.safe_dump(config.model_dump())):
        assert make_config(write(tmp_path, text), {}) == config


def test_a_flag_resets_what_a_file_sets(tmp_path):
    path = write(tmp_path, "algorithm: fl_swag\npretrain_share: 0.2\nlast_layer: true\n")
    assert make_config(path, {}).last_layer is True
    assert make_config(path, {"last_layer": False}).last_layer is False


@pytest.mark.parametrize(
    "text",
    ["rounds: [1", "- a", "", "just words", b"\xff\xfe\x00\x01", "1: 2", "a: !!python/object:os.system {}", "{" * 5000],
)
def test_bad_files(tmp_path, text):
    with pytest.raises(InvalidArgument, match=r"The config .*run\.yaml") as caught:
        make_config(write(tmp_path, text), {})
    assert "\n" not in str(caught.value)


def test_none_resets_what_a_file_sets(tmp_path):
    path = write(tmp_path, "cohort_size: 3\n")
    assert make_config(path, {}).cohort_size == 3
    assert make_config(path, {"cohort_size": "none"}).cohort_size is None
    assert make_config(None, {"normalization": "none"}).normalization == "none"
    assert make_config(None, {"algorithm": "qlsd", "compressor": "none"}).compressor == "none"
    path = write(tmp_path, "algorithm: fed_opt\nserver_optimizer: none\n")
    assert make_config(path, {}).server_optimizer is None


@pytest.mark.parametrize(
    "options",
    [
        {"robust": "clip:2.5", "weighting": "max_discrepancy"},
        {"robust": "trimmed:0.2", "weighting": "distance"},
        {"robust": "median", "kind": "deterministic"},
        {"robust": "none", "weighting": "max_discrepancy"},
        {"robust": "clip:1", "algorithm": "fed_kp"},
        {"robust": "median", "algorithm": "fed_opt", "kind": "flipout", "weighting": "distance"},
    ],
)
def test_defences_that_fit(options):
    assert make_config(None, options).robust == (None if options["robust"] == "none" else options["robust"])


def test_absent_file(tmp_path):
    with pytest.raises(InvalidArgument, match="can't be read: No such file"):
        make_config(tmp_path / "none.yaml", {})


def test_a_file_must_be_small_and_without_aliases(tmp_path):
    with pytest.raises(InvalidArgument, match="too large: it may have at most 65536 bytes"):
        make_config(write(tmp_path, "rounds: 3\n" + "#" * 65536), {})
    with pytest.raises(InvalidArgument, match="is not YAML"):
        make_config(write(tmp_path, "rounds: &a 3\nclients: *a\n"), {})


@pytest.mark.parametrize("text", ["rounds: 3\nclients: 2\nrounds: 4\n", "rounds: 3\n\n'rounds': 4\n"])
def test_a_file_names_an_option_once(tmp_path, text):
    with pytest.raises(InvalidArgument, match="names 'rounds' twice, the second time in line 3: remove or rename"):
        make_config(write(tmp_path, text), {})
