"""Broken YAML files: a configuration or one sentence."""

import os

import hypothesis.strategies as st
import pytest
import yaml

from tests.fuzz.harness import assert_one_sentence, attempt, fuzz
from tests.fuzz.mutations import mutated
from tfp_bfl.app.options.config import MOST_LETTERS, RunConfig, fields, make_config
from tfp_bfl.errors import InvalidArgument

FULL = yaml.safe_dump(make_config(None, {}).model_dump(), sort_keys=False).encode()
VALID = [FULL, b"rounds: 7\nrule: linear_pool\n", b"{dataset: digits, model: mlp, cohort_size: 3}", b"partition: iid\n"]
TOKENS = [
    *(b"%b:" % name.encode() for name in fields()),
    *[b"none", b"null", b"~", b"true", b"no", b".inf", b"-.inf", b".nan", b"1e400", b"-1", b"0", b"0x" + b"f" * 5000],
    *[b"9" * 5000, b"1_0", b"0b101", b"59:59:59", b"2001-01-01", b"2001-99-99", b"2001-01-01T00:00:00+99:99", b"1.0"],
    *[b"&a ", b"*a", b"&a *a", b"<<: *a", b"<<: {rounds: 1}"],
    *[b"!!python/object:os.system ", b"!!python/name:os.system "],
    *(b"!!%b " % kind for kind in b"binary set omap timestamp int float bool null str".split()),
    *[b"? ", b": ", b"- ", b"|\n ", b">\n ", b"%YAML 9.9\n---\n", b"---\n", b"...\n", b"#"],
    *[b"'", b'"', b'"\\0"', b'"\\ud800"', b"\0", b"\t", b"\r", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe2\x80\xa8"],
    *[b"[" * 400, b"{" * 400, b"- " * 400, b"? " * 400, b"a" * 5000],
    *b"dirichlet:1e-320 label_skew:2 lda:inf noniid_datasets:1e-320 resnet20 flipout mc_dropout".split(),
]
HOSTILE = {
    "aliases": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % (n + 1, n + 1, *[n] * 8) for n in range(97, 115)),
    "alias as a value": b"rounds: &a [1, 2]\nclients: *a\n",
    "an anchor in itself": b"rounds: &a [*a]\n",
    "deep lists": b"rounds: " + b"[" * 20000,
    "deep mappings": b"rounds: " + b"{a: " * 10000,
    "many digits": b"rounds: " + b"9" * 60000,
    "many hexadecimal digits": b"rounds: 0x" + b"f" * 60000,
    "base sixty": b"rounds: 1" + b":59" * 20000,
    "infinite": b"seed: .inf\n",
    "not a number": b"learning_rate: .nan\n",
    "too many clients": b"clients: 99999999999\n",
    "NUL": b"data_dir: \0\n",
    "NUL as an escape": b'data_dir: "a\\0b"\n',
    "a lone surrogate": b'data_dir: "\\ud800"\n',
    "a line break": b'output: "a\\nb"\n',
    "a long name": b"rule: " + b"a" * 60000,
    "a long option": b"a" * 60000 + b": 1",
    "not UTF-8": b"rule: \xff\n",
    "binary": bytes(range(256)) * 10,
    "bytes for a name": b"rule: !!binary AAEC\n",
    "a list as a key": b"? [1, 2]\n: 3\n",
    "a mapping as a key": b"{a: 1}: 2\n",
    "a number as a key": b"1: 2\n",
    "an object": b"rounds: !!python/object/apply:os.system ['touch made']\n",
    "a date": b"rounds: 2001-01-01\n",
    "no date": b"rounds: 2001-13-77\n",
    "a wrong !!int": b"rounds: !!int x\n",
    "a wrong !!float": b"learning_rate: !!float {}\n",
    "a wrong !!bool": b"output_dropout: !!bool perhaps\n",
    "two documents": b"rounds: 1\n---\nrounds: 2\n",
    "too long": b"# " + b"x" * 70000 + b"\nrounds: 1\n",
    "empty": b"",
}


def assert_valid(config):
    assert isinstance(config, RunConfig)
    assert make_config(None, config.model_dump()) == config
    for name, value in config:
        default = fields()[name].default
        assert default is None or type(value) is type(default), name
        if isinstance(value, str):
            assert value.isprintable() and len(value) <= MOST_LETTERS
        elif isinstance(value, (int, float)):
            assert 0 <= value < 2**31 or (isinstance(value, float) and value < float("inf")), name


def read(folder, content):
    path = folder / "run.yaml"
    path.write_bytes(content)
    return attempt(folder, make_config, path, {})


def lines():
    """Files of a few options, each with its default, or with a value that another option or none would take."""
    others = st.one_of(st.sampled_from(TOKENS), st.sampled_from(FULL.split()), st.integers().map(lambda n: b"%d" % n))
    default = st.sampled_from(FULL.splitlines(keepends=True))
    names = st.sampled_from([name.encode() for name in fields()])
    other = st.tuples(names, others).map(lambda pair: b"%b: %b\n" % pair)
    return st.lists(st.one_of(default, default, other), min_size=1, max_size=5).map(b"".join)


def test_mutated_files(tmp_path):
    strategy = st.one_of(st.sampled_from(VALID).flatmap(lambda valid: mutated(valid, VALID, TOKENS)), lines())
    fuzz("config", 0.42, strategy, lambda content: read(tmp_path, content), lambda _, config: assert_valid(config))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path, name):
    assert isinstance(read(tmp_path, HOSTILE[name]), InvalidArgument)


@pytest.mark.parametrize("what", ["pipe", "folder", "device", "link in a circle", "absent"])
def test_what_is_not_a_file(tmp_path, what):
    path = tmp_path / "run.yaml"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "link in a circle":
        path.symlink_to(path)
    error = attempt(tmp_path, make_config, "/dev/zero" if what == "device" else path, {})
    assert isinstance(error, InvalidArgument) and "can't be read" in str(error)


@pytest.mark.parametrize("path", ["a\0b", "", "a\nb", "\ud800", 10**6, b"\xff"])
def test_what_is_not_a_path(path):
    with pytest.raises(InvalidArgument) as caught:
        make_config(path, {})
    assert_one_sentence(str(caught.value))
