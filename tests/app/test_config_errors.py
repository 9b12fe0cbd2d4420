"""Options that are refused, each in one sentence: by their declarations, and by what they do not fit."""

import re

import pytest

from tests.kit import refusal
from tfp_bfl.app.options.config import class_of, fields, make_config
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options.group import extra
from tfp_bfl.options.methods import ALGORITHMS, POINT, serves

BEYOND = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_numbers_and_names_beyond_their_declarations_are_refused(algorithm):
    schema = class_of(algorithm).model_json_schema()["properties"]
    for name, field in class_of(algorithm).model_fields.items():
        bounds = {key: x for part in schema[name].get("anyOf", [schema[name]]) for key, x in part.items()}
        for value in [x + BEYOND[key] for key, x in bounds.items() if key in BEYOND]:
            with pytest.raises(InvalidArgument, match=rf"^{name} is '{value}', but must be (at|above|below)"):
                make_config(None, {"algorithm": algorithm, name: str(value)})
        if names := extra(field, "names"):
            with pytest.raises(InvalidArgument, match=f"no {names.what} 'nosuch'"):
                make_config(None, {"algorithm": algorithm, name: "nosuch"})


@pytest.mark.parametrize("algorithm", [name for name, method in ALGORITHMS.items() if method.requires])
def test_kinds_that_an_algorithm_can_not_train_are_refused(algorithm):
    kind = "flipout" if POINT in ALGORITHMS[algorithm].requires else "deterministic"
    with pytest.raises(InvalidArgument, match=f"^{algorithm} .*: use kind '"):
        make_config(None, {"algorithm": algorithm, "kind": kind})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "dirichlet:-1"}, "alpha"),
        ({"partition": "noniid_datasets:2"}, "other_interest"),
        ({"rounds": "x"}, "rounds is 'x', but must be a whole number."),
        ({"rounds": 2.5}, "rounds is 2.5, but must be a whole number."),
        ({"rounds": "9" * 5000}, ", but must be a whole number."),
        ({"output_dropout": "perhaps"}, "output_dropout is 'perhaps', but must be true or false."),
        ({"tracker": "tensorbord"}, "no tracker 'tensorbord': did you mean 'tensorboard'"),
        ({"learning_rate": []}, "learning_rate is [], but must be a number."),
        ({"data_dir": "a\0b"}, r"data_dir is 'a\x00b', but must be 1 to 4096 printable characters"),
        ({"freeze": ""}, "freeze is '', but must be 1 to 4096 printable characters"),
        ({"cohort_size": "11"}, "cohort_size is 11"),
        ({"initial_stddev": "0.05", "min_stddev": "0.1"}, "initial_stddev must not be below min_stddev"),
        ({"weighting": "distance", "kind": "mc_dropout"}, "use kind 'flipout'"),
        ({"weighting": "max_discrepancy", "kind": "deterministic"}, "use kind 'flipout'"),
        ({"robust": "clip:0"}, "max_norm is 0.0"),
        ({"robust": "trimmed"}, "lacks its share: write trimmed:SHARE"),
        ({"update_prior": True, "kind": "mc_dropout"}, "update_prior makes the posterior the prior"),
        ({"pretrained": True}, "pretrained makes the start a prior for update_prior, which is not given"),
        ({"ruel": "conflation"}, "no option 'ruel': did you mean 'rule'"),
        ({"algorithm": "fl_swag", "last_layer": True}, "last_layer freezes all that lies below, which would be random"),
        ({"algorithm": "fed_pa", "burn_in_rounds": "30"}, "burn_in_rounds is 30, but must be below the number of rou"),
        ({"algorithm": "fed_sgld", "rounds": "2", "burn_in_rounds": "3"}, "must be below the number of rounds, 2: "),
        ({"algorithm": "qlsd", "compressor": "quantiser:0"}, "levels"),
        ({"algorithm": "qlsd", "compressor": "largest:0.1"}, "which is biased, and so would the chain be"),
        ({"algorithm": "fed_opt", "compressor": "largest:0.1"}, "leaves the same values out for good: give error_mem"),
        ({"algorithm": "fed_opt", "compressor": "largest:2", "error_memory": "true"}, "share is 2"),
        ({"algorithm": "fed_opt", "error_memory": "true"}, "there is none: give compressor"),
        ({"variance_bits": "16"}, "variance_bits is 16, but must be 8 or 32"),
        ({"algorithm": "fed_opt", "variance_bits": "8"}, "kind 'deterministic' has none: use kind 'flipout'"),
        ({"algorithm": "qlsd", "estimator": "fixed_point"}, "training.find_mode finds in a program: use 'anchored'"),
        ({"algorithm": "qlsd", "participation": "0"}, "participation is '0', but must be probabilities above 0 and at"),
        ({"algorithm": "qlsd", "participation": "0.5,2", "clients": 2}, "participation is '0.5,2', but must be probab"),
        ({"algorithm": "qlsd", "participation": "0.5,one"}, "participation is '0.5,one', but must be probabilities"),
        ({"algorithm": "qlsd", "participation": "0.5,1", "clients": 3}, "participation has 2 entries, but there are 3"),
        ({"algorithm": "qlsd", "compressor": "none,none", "clients": 3}, "compressor has 2 entries, but there are 3"),
        ({"algorithm": "qlsd", "compressor": "none,gzip", "clients": 2}, "no compressor 'gzip'"),
        ({"algorithm": "qlsd", "compressor": "none,largest:1", "clients": 2}, "which is biased, and so would the"),
        ({"algorithm": "qlsd", "potential_curvature": "guess"}, "potential_curvature is 'guess', but must be a n"),
        ({"algorithm": "qlsd", "potential_curvature": "9", "dropout": 0.5}, "cohorts and clients that drop out lower"),
        ({"algorithm": "qlsd", "potential_curvature": "9", "cohort_size": 2}, "leave out either it, or cohort_size"),
        ({"algorithm": "qlsd", "cohort_size": 2, "popularity": "1"}, "popularity draws clients unevenly, and the"),
        ({"algorithm": "fed_sgld", "cohort_size": 2, "popularity": "1"}, "popularity draws clients unevenly, and the"),
        ({"algorithm": "fsgld", "popularity": "1"}, "popularity draws clients unevenly, and the chain"),
        ({"algorithm": "qlsd", "prior_stddev": "fan_in"}, "give a number, not 'fan_in'"),
        ({"algorithm": "dg_sgld", "step_size": "0.2", "coupling": "0.1"}, "must be below 2 coupling, 0.2"),
        ({"algorithm": "fsgld", "cohort_size": "2"}, "cohort_size is 2, but in fsgld one client runs the chain in"),
        ({"algorithm": "fed_ag", "weighting": "distance"}, "which fed_ag does not: use 'equal' or 'train_size'"),
        ({"algorithm": "fed_opt", "weighting": "distance"}, "kind 'deterministic' has none: use kind 'flipout'"),
        ({"algorithm": "fed_opt", "server_learning_rate": "1"}, "server_learning_rate is of the server's optimizer,"),
        ({"algorithm": "fed_opt", "server_momentum": "0.5"}, "server_momentum is of the server's optimizer, and there"),
        ({"algorithm": "fed_opt", "server_optimizer": "yogi", "server_momentum": "0.5"}, "server_momentum is of the"),
        (
            {"server_schedule": "cosine"},
            "server_schedule is of the server's optimizer, and there is none: give server_o",
        ),
        ({"algorithm": "fed_be", "unlabelled_share": "0.5", "pretrain_share": "0.5"}, "together they must be below 1"),
        ({"algorithm": "meta_vd", "weighting": "distance"}, "variances of the clients' own: use 'equal' or 'train_s"),
        ({"algorithm": "meta_learning", "server_momentum": "0.5"}, "there is none: give server_optimizer."),
        ({"algorithm": "meta_vd", "client_noise": "none"}, "scores of single clients: give evaluate_clients too"),
        (
            {"algorithm": "meta_learning", "client_noise": "another", "evaluate_clients": "true"},
            "all clients of this run have the same",
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
        ({"algorithm": "fed_opt", "compressor": "quantiser:4,none"}, "compressor is 'quantiser:4,none', but only"),
        ({"width": "8"}, "width is of the model conv_net, and this is lenet: leave it out."),
        ({"algorithm": "fl_swg"}, "no algorithm 'fl_swg': did you mean 'fl_swag'"),
        ({"algorithm": ["fl_swag"]}, "algorithm is ['fl_swag'], but must be text."),
        ({"algorithm": {"fl_swag": 1}}, "algorithm is {'fl_swag': 1}, but must be text."),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)) as caught:
        make_config(None, options)
    assert "\n" not in str(caught.value)


def test_an_empty_value_is_no_option_left_out(capsys):
    """On the command line, in files and from Python; an empty list of names is none."""
    for name, field in fields().items():
        if "str" in str(field.annotation) and serves(name, "variational"):
            with pytest.raises(InvalidArgument, match=name):
                make_config(None, {"algorithm": "variational", name: ""})
    for arguments in (
        ["run", "--freeze", ""],
        ["glm", "t.csv", "--only="],
        ["predict", "r", "x.csv", "--separator", ""],
    ):
        assert "is empty: give it a value, or leave it out." in refusal(capsys, *arguments)
    assert make_config(None, {"freeze": []}).freeze is None
