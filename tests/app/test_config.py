"""The configuration: defaults, files, flags that win, and what it refuses."""

import re

import pytest
import yaml

from tfp_bfl.app.options.algorithms import ALGORITHMS, default_in_words, in_words, serves, takers
from tfp_bfl.app.options.config import fields, make_config
from tfp_bfl.errors import InvalidArgument


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_default_is_valid_and_flipout_on_digits():
    config = make_config(None, {})
    assert (config.dataset, config.model, config.kind, config.partition) == (
        "digits",
        "lenet",
        "flipout",
        "dirichlet:0.5",
    )


def test_file_then_flags(tmp_path):
    path = write(tmp_path, "rounds: 7\nrule: linear_pool\n")
    assert make_config(path, {}).rounds == 7
    config = make_config(path, {"rounds": "3"})
    assert (config.rounds, config.rule) == (3, "linear_pool")


def test_full_record_gives_the_same_config(tmp_path):
    config = make_config(None, {"rounds": "3", "learning_rate": "0.01", "cohort_size": "4"})
    again = make_config(write(tmp_path, yaml.safe_dump(config.model_dump())), {})
    assert again == config
    assert set(config.model_dump()) == {name for name in fields() if serves(name, "variational")}


# Of every option that is not of all algorithms, a value other than any default.
OWN = {
    "rule": "conflation",
    "weighting": "equal",
    "robust": "median",
    "max_change_norm": 1.0,
    "prior_stddev": 1.0,
    "inference": "natural",
    "noise": "flipout",
    "temperature": 0.5,
    "kl": "client",
    "damping": 0.25,
    "admm_step_size": 0.25,
    "update_prior": True,
    "pretrained": True,
    "schedule": "exponential",
    "learning_rate_decay": 0.1,
    "silent_rounds": 1,
    "last_layer": True,
    "diagonal_only": False,
    "between_clients": False,
    "curvature": False,
    "min_examples": 5,
    "burn_in_epochs": 1,
    "collect_every": 1,
    "max_columns": 5,
    "min_variance": 0.1,
    "momentum": 0.5,
    "optimizer": "momentum",
    "weight_decay": 0.1,
    "server_optimizer": "sgd",
    "server_learning_rate": 0.5,
    "server_momentum": 0.5,
    "proximal": 0.5,
    "alpha": 0.5,
    "unlabelled_share": 0.2,
    "shrinkage": 0.5,
    "burn_in_rounds": 1,
    "step_size": 1e-5,
    "max_samples": 5,
    "kernel_start": "mean",
    "kernel": "gaussian",
    "bandwidth": "scott",
    "bandwidth_scale": 2.0,
    "local_epochs": 2,
    "learning_rate": 0.02,
    "class_weight": "balanced",
    "empty_sites": True,
    "keep_every": 7,
    "estimator": "plain",
    "per_tensor": True,
    "error_memory": True,
    "compressor": "none",
    "participation": 0.5,
    "forgetful": True,
    "refresh_every": 7,
    "potential_curvature": 50.0,
    "coupling": 0.5,
    "local_steps": 2,
    "surrogate_steps": 7,
    "augmentation": "crop_and_flip:1",
    "learner": "hessian_free_maml",
    "inner_rate": 0.5,
    "clip_norm": 0.5,
    "difference": 0.5,
    "kl_reduction": "mean",
    "kl_weight": 0.5,
    "evaluate_clients": True,
    "unseen_clients": 2,
    "client_noise": "none",
    "variances": "free_variances",
    "embedding_size": 3,
    "initial_rate": 0.3,
    "logit_rate": 2.0,
    "variational_initializer": "uniform",
    "variance_range": "clamped",
    "uncapped": True,
    "absent_decay": True,
    "pruning_threshold": 0.5,
    "privacy_clip_norm": 2.0,
    "privacy_noise": 0.5,
    "privacy_variance_clip_norm": 0.5,
    "privacy_delta": 1e-6,
    "example_clip_norm": 2.0,
    "example_noise": 0.5,
}


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
    assert make_config(None, {"algorithm": "variational"}) == make_config(None, {})
    config = make_config(None, {"algorithm": "fed_kppa"})
    assert (config.kind, config.rounds, config.momentum, config.kernel_start) == ("deterministic", 30, 0.9, "clients")


def test_options_by_client_are_text_with_commas_or_lists():
    text = {"compressor": "quantiser:4,none,none", "participation": "0.5,0.75,1"}
    lists = {"compressor": ["quantiser:4", "none", "none"], "participation": [0.5, 0.75, 1]}
    of = lambda given: make_config(None, {"algorithm": "qlsd", "clients": 3, **given})
    assert of(lists).compressor == of(text).compressor == text["compressor"]
    assert of(lists).own_options().compressors() == lists["compressor"]


def test_every_option_of_an_algorithm_is_tried():
    assert set(OWN) == {name for name in fields() if takers(name)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_options_of_other_algorithms_are_refused(algorithm):
    for name, value in OWN.items():
        server = {"server_optimizer": "sgd"} if name in ("server_learning_rate", "server_momentum") else {}
        server |= {"compressor": "none"} if name in ("per_tensor", "error_memory") and algorithm in takers(name) else {}
        server |= {"privacy_clip_norm": "1"} if name.startswith("privacy_") else {}
        server |= {"update_prior": "true"} if name == "pretrained" and algorithm in takers(name) else {}
        server |= {"example_clip_norm": "1"} if name == "example_noise" and algorithm in takers(name) else {}
        server |= {"evaluate_clients": "true"} if name == "client_noise" and algorithm in takers(name) else {}
        options = {"algorithm": algorithm, name: str(value)}
        if algorithm in takers(name):
            assert getattr(make_config(None, {"pretrain_share": "0.1", **server, **options}), name) == value
        else:
            message = f"{name} is an option of {in_words(takers(name))}, and this is {algorithm}: leave it out."
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
    assert in_words(ALGORITHMS) == (
        "variational, partitioned_vi, bayesian_admm, fl_swag, scaffold, qlsd, dg_sgld, fsgld, meta_learning, "
        "meta_vd, p_fed_bayes and fed_*"
    )
    assert (
        default_in_words("rounds", 60)
        == "60; 1 for fl_swag; 30 for scaffold and fed_*; 2000 for qlsd, dg_sgld and fsgld"
    )
    assert default_in_words("kernel_start", "clients") == "clients"
    assert default_in_words("burn_in_rounds", None) == ""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_record_gives_the_same_config_and_holds_nothing_of_other_algorithms(tmp_path, algorithm):
    given = own_options(algorithm) | ({"estimator": "anchored"} if algorithm == "qlsd" else {})  # For `forgetful`.
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
    ("options", "message"),
    [
        ({"rule": "conflaton"}, "no rule 'conflaton': did you mean 'conflation'"),
        ({"model": "resnet"}, "no model 'resnet': did you mean 'resnet20'"),
        ({"kind": "flip_out"}, "did you mean 'flipout'"),
        ({"weighting": "size"}, "no weighting 'size'"),
        ({"normalization": "bach"}, "did you mean 'batch'"),
        ({"partition": "dirchlet:1"}, "did you mean 'dirichlet'"),
        ({"partition": "dirichlet:-1"}, "alpha"),
        ({"partition": "noniid_datasets:2"}, "other_interest"),
        ({"rounds": "0"}, "rounds is '0', but must be at least 1."),
        ({"rounds": "x"}, "rounds is 'x', but must be a whole number."),
        ({"rounds": 2.5}, "rounds is 2.5, but must be a whole number."),
        ({"rounds": "9" * 5000}, ", but must be a whole number."),
        ({"tensorboard": "perhaps"}, "tensorboard is 'perhaps', but must be true or false."),
        ({"engine": "tf"}, "no engine 'tf': did you mean 'tff'"),
        ({"learning_rate": "nan"}, "learning_rate is 'nan', but must be a finite number."),
        ({"learning_rate": []}, "learning_rate is [], but must be a number."),
        ({"dropout_rate": "1"}, "dropout_rate is '1'"),
        ({"seed": "-1"}, "seed is '-1'"),
        ({"clients": str(2**31)}, "clients is '2147483648', but must be at most 2147483647."),
        ({"data_dir": "a\0b"}, r"data_dir is 'a\x00b', but must be at most 4096 printable characters"),
        ({"cohort_size": "11"}, "cohort_size is 11"),
        ({"initial_stddev": "0.05", "min_stddev": "0.1"}, "initial_stddev must not be below min_stddev"),
        ({"weighting": "distance", "kind": "mc_dropout"}, "use kind 'flipout'"),
        ({"weighting": "max_discrepancy", "kind": "deterministic"}, "use kind 'flipout'"),
        ({"robust": "trimed:0.2"}, "no robust aggregator 'trimed': did you mean 'trimmed'"),
        ({"robust": "clip:0"}, "max_norm is 0.0"),
        ({"robust": "trimmed"}, "lacks its share: write trimmed:SHARE"),
        ({"update_prior": True, "kind": "mc_dropout"}, "update_prior makes the posterior the prior"),
        ({"pretrained": True}, "pretrained makes the start a prior for update_prior, which is not given"),
        ({"pretrain_share": "1"}, "pretrain_share is '1'"),
        ({"learning_rate_decay": "-1"}, "learning_rate_decay is '-1'"),
        ({"ruel": "conflation"}, "no option 'ruel': did you mean 'rule'"),
        ({"algorithm": "fl_swag", "kind": "flipout"}, "fl_swag finds a posterior over point weights: use kind 'det"),
        ({"algorithm": "fl_swag", "last_layer": True}, "last_layer freezes all that lies below, which would be random"),
        ({"algorithm": "fl_swag", "max_columns": "1"}, "max_columns is '1', but must be at least 2."),
        ({"algorithm": "fl_swag", "momentum": "1"}, "momentum is '1', but must be below 1."),
        ({"algorithm": "fl_swag", "min_variance": "0"}, "min_variance is '0', but must be above 0."),
        ({"algorithm": "fl_swag", "burn_in_epochs": "-1"}, "burn_in_epochs is '-1'"),
        ({"algorithm": "fed_ag", "kind": "flipout"}, "fed_ag finds a posterior over point weights: use kind 'det"),
        ({"algorithm": "fed_pa", "burn_in_rounds": "30"}, "burn_in_rounds is 30, but must be below the number of rou"),
        ({"algorithm": "fed_sgld", "rounds": "2", "burn_in_rounds": "3"}, "must be below the number of rounds, 2: "),
        ({"algorithm": "qlsd", "compressor": "quantiser:0"}, "levels"),
        ({"algorithm": "qlsd", "compressor": "gzip"}, "no compressor 'gzip'"),
        ({"algorithm": "qlsd", "compressor": "largest:0.1"}, "which is biased, and so would the chain be"),
        ({"algorithm": "fed_opt", "compressor": "largest:0.1"}, "leaves the same values out for good: give error_mem"),
        ({"algorithm": "fed_opt", "compressor": "largest:2", "error_memory": "true"}, "share is 2"),
        ({"algorithm": "fed_opt", "error_memory": "true"}, "there is none: give compressor"),
        ({"algorithm": "qlsd", "estimator": "fixed_point"}, "clients.find_mode finds in a program: use 'anchored'"),
        ({"algorithm": "qlsd", "participation": "0"}, "participation is '0', but must be probabilities above 0 and at"),
        ({"algorithm": "qlsd", "participation": "0.5,2", "clients": 2}, "participation is '0.5,2', but must be probab"),
        ({"algorithm": "qlsd", "participation": "0.5,one"}, "participation is '0.5,one', but must be probabilities"),
        ({"algorithm": "qlsd", "participation": "0.5,1", "clients": 3}, "participation has 2 entries, but there are 3"),
        ({"algorithm": "qlsd", "compressor": "none,none", "clients": 3}, "compressor has 2 entries, but there are 3"),
        ({"algorithm": "qlsd", "compressor": "none,gzip", "clients": 2}, "no compressor 'gzip'"),
        (
            {"algorithm": "qlsd", "compressor": "none,largest:1", "clients": 2},
            "which is biased, and so would the chain",
        ),
        ({"algorithm": "qlsd", "potential_curvature": "0"}, "potential_curvature is '0', but must be above 0"),
        ({"algorithm": "qlsd", "potential_curvature": "guess"}, "potential_curvature is 'guess', but must be a n"),
        ({"algorithm": "qlsd", "prior_stddev": "fan_in"}, "give a number, not 'fan_in'"),
        ({"algorithm": "qlsd", "local_epochs": "2"}, "local_epochs is an option of all but qlsd, dg_sgld and fsgld"),
        ({"algorithm": "qlsd", "kind": "flipout"}, "qlsd finds a posterior over point weights"),
        ({"algorithm": "dg_sgld", "step_size": "0.2", "coupling": "0.1"}, "must be below 2 coupling, 0.2"),
        (
            {"algorithm": "fsgld", "cohort_size": "2"},
            "cohort_size is 2, but in fsgld one client runs the chain in each",
        ),
        ({"algorithm": "fed_sgld", "step_size": "0"}, "step_size is '0', but must be above 0."),
        ({"algorithm": "fed_pa", "shrinkage": "-1"}, "shrinkage is '-1'"),
        ({"algorithm": "fed_prox", "proximal": "inf"}, "proximal is 'inf'"),
        ({"algorithm": "fed_ag", "weighting": "distance"}, "which fed_ag does not: use 'equal' or 'train_size'"),
        ({"algorithm": "fed_opt", "weighting": "distance"}, "kind 'deterministic' has none: use kind 'flipout'"),
        ({"algorithm": "fed_opt", "server_optimizer": "adm"}, "no server optimizer 'adm': did you mean 'adam'"),
        (
            {"algorithm": "fed_opt", "server_learning_rate": "1"},
            "server_learning_rate is of the server's optimizer, an",
        ),
        ({"algorithm": "fed_opt", "server_momentum": "0.5"}, "server_momentum is of the server's optimizer, and there"),
        (
            {"algorithm": "fed_opt", "server_optimizer": "yogi", "server_momentum": "0.5"},
            "server_momentum is of the server optimizer sgd, and this is yogi",
        ),
        ({"algorithm": "fed_kp", "kernel": "gausian"}, "no kernel 'gausian': did you mean 'gaussian'"),
        ({"algorithm": "fed_kp", "kernel_start": "mode"}, "no start 'mode'"),
        ({"algorithm": "fed_kppa", "bandwidth": "scot"}, "no bandwidth 'scot': did you mean 'scott'"),
        ({"algorithm": "fed_kp", "bandwidth_scale": "0"}, "bandwidth_scale is '0'"),
        ({"algorithm": "fed_be", "unlabelled_share": "1"}, "unlabelled_share is '1'"),
        ({"algorithm": "fed_be", "unlabelled_share": "0.5", "pretrain_share": "0.5"}, "together they must be below 1"),
        ({"algorithm": "meta_vd", "kind": "flipout"}, "kind 'flipout' learns none: use kind 'variational_dropout'."),
        ({"algorithm": "meta_vd", "kind": "deterministic"}, "kind 'deterministic' learns none"),
        ({"algorithm": "meta_vd", "pruning_threshold": "0"}, "pruning_threshold is '0', but must be above 0.0."),
        ({"algorithm": "meta_vd", "pruning_threshold": "1"}, "pruning_threshold is '1', but must be below 1.0."),
        ({"algorithm": "meta_vd", "weighting": "distance"}, "variances of the clients' own: use 'equal' or 'train_s"),
        ({"algorithm": "meta_vd", "variances": "hypernet"}, "no source of variances 'hypernet'"),
        ({"algorithm": "meta_vd", "variance_range": "smoth"}, "no range of variances 'smoth': did you mean 'smooth'"),
        (
            {"algorithm": "fl_swag", "robust": "median"},
            "robust is an option of variational, scaffold, meta_learning, meta_vd, p_fed_bayes and fed_*",
        ),
        ({"augmentation": "mixup"}, "no augmentation 'mixup'"),
        ({"algorithm": "p_fed_bayes", "kind": "deterministic"}, "use kind 'flipout'"),
        ({"algorithm": "fl_swag", "max_change_norm": "1"}, "max_change_norm is an option of all but fl_swag, "),
        ({"algorithm": "meta_learning", "learner": "mamal"}, "no learner 'mamal': did you mean 'maml'"),
        ({"algorithm": "meta_learning", "kl_reduction": "total"}, "no reduction of the KL 'total'"),
        ({"algorithm": "meta_learning", "kl_weight": "-1"}, "kl_weight is '-1', but must be at least 0."),
        ({"algorithm": "meta_learning", "server_momentum": "0.5"}, "there is none: give server_optimizer."),
        (
            {"algorithm": "meta_vd", "client_noise": "none"},
            "scores of single clients: give evaluate_clients too",
        ),
        (
            {"algorithm": "meta_learning", "client_noise": "another", "evaluate_clients": "true"},
            "but all clients of this run have the same noise: use p_fed_bayes, or",
        ),
        (
            {
                **{"algorithm": "meta_vd", "variances": "constant_variances"},
                **{"client_noise": "another", "evaluate_clients": "true"},
            },
            "but all clients of this run have the same noise",
        ),
        (
            {
                **{"algorithm": "p_fed_bayes", "unseen_clients": "1"},
                **{"client_noise": "another", "evaluate_clients": "true"},
            },
            "give at least two of them, and no unseen_clients",
        ),
        ({"algorithm": "qlsd", "estimator": "plain", "forgetful": "true"}, "forgetful is of the estimator 'anchored'"),
        ({"algorithm": "qlsd", "estimator": "plain", "refresh_every": "7"}, "refresh_every is of the estimator 'anc"),
        (
            {"algorithm": "fed_opt", "compressor": "quantiser:4,none"},
            "compressor is 'quantiser:4,none', but only qlsd takes one for each client: give one for all.",
        ),
        ({"parametrization": "log_var"}, "no parametrization 'log_var': did you mean 'log_variance'"),
        ({"width": "8"}, "width is of the model conv_net, and this is lenet: leave it out."),
        ({"model": "conv_net", "width": "0"}, "width is '0', but must be at least 1."),
        ({"popularity": "0"}, "popularity is '0'"),
        ({"popularity": "inf"}, "popularity is 'inf'"),
        ({"algorithm": "fl_swg"}, "no algorithm 'fl_swg': did you mean 'fl_swag'"),
        ({"algorithm": ["fl_swag"]}, "algorithm is ['fl_swag'], but must be text."),
        ({"algorithm": {"fl_swag": 1}}, "algorithm is {'fl_swag': 1}, but must be text."),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)) as caught:
        make_config(None, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["rounds: [1", "- a", "", "just words", b"\xff\xfe\x00\x01", "1: 2", "a: !!python/object:os.system {}", "{" * 5000],
)
def test_bad_files(tmp_path, text):
    with pytest.raises(InvalidArgument, match=r"The config .*run\.yaml") as caught:
        make_config(write(tmp_path, text), {})
    assert "\n" not in str(caught.value)


def test_a_file_may_hold_every_option(tmp_path):
    path = write(tmp_path, "data_dir: /data\ntensorboard: true\noutput: there\ncohort_size: 3\n")
    config = make_config(path, {})
    assert (config.data_dir, config.tensorboard, config.output) == ("/data", True, "there")


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
        {"robust": "clip:1", "algorithm": "fed_kp", "weighting": "equal"},
        {"robust": "median", "algorithm": "fed_opt", "kind": "flipout", "weighting": "distance"},
    ],
)
def test_defences_that_fit(options):
    assert make_config(None, options).robust == (None if options["robust"] == "none" else options["robust"])


def test_absent_file(tmp_path):
    with pytest.raises(InvalidArgument, match="can't be read: No such file"):
        make_config(tmp_path / "none.yaml", {})


def test_many_clients_cost_nothing():
    assert make_config(None, {"clients": str(2**31 - 1)}).clients == 2**31 - 1


def test_a_file_must_be_small_and_without_aliases(tmp_path):
    with pytest.raises(InvalidArgument, match="too large: it may have at most 65536 bytes"):
        make_config(write(tmp_path, "rounds: 3\n" + "#" * 65536), {})
    with pytest.raises(InvalidArgument, match="is not YAML"):
        make_config(write(tmp_path, "rounds: &a 3\nclients: *a\n"), {})


@pytest.mark.parametrize("text", ["rounds: 3\nclients: 2\nrounds: 4\n", "rounds: 3\n\n'rounds': 4\n"])
def test_a_file_names_an_option_once(tmp_path, text):
    with pytest.raises(InvalidArgument, match="names 'rounds' twice, the second time in line 3: remove or rename"):
        make_config(write(tmp_path, text), {})
