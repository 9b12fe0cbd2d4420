"""The bandwidth study: what it pools, and its table and figure from made stacks."""

import csv
import json

import numpy as np
from click.testing import CliRunner

import tfp_bfl as bfl
from experiments.kernel_posterior import bandwidths, client_stacks, config
from tfp_bfl.algorithms.kernel import rule as kernel
from tfp_bfl.bench.cells import SUMMARY


def test_every_bandwidth_and_scale_is_pooled_once():
    found = bandwidths.poolings("tiny")
    assert len(set(found)) == len(found)
    assert {x.bandwidth for x in found} == {bandwidths.MEAN, *kernel.BANDWIDTHS}
    assert {(x.start, x.kernel, x.scale) for x in found if x.bandwidth == "silverman"} == {
        (start, k, scale) for start in kernel.STARTS for k in kernel.KERNELS for scale in (1.0, 100.0)
    }


def test_the_mean_and_the_modes_of_a_group():
    stack = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    mean, counts = bandwidths.pool(stack, bandwidths.Pooling())
    np.testing.assert_array_equal(mean, stack.mean(0))
    assert counts == {}
    mode, counts = bandwidths.pool(stack, bandwidths.Pooling("clients", "gaussian", "scott", 2.0))
    np.testing.assert_array_equal(mode, bfl.algorithms.kernel.kernel_mode(stack, "clients", "gaussian", "scott", 2.0))
    assert counts["num_zero_spread"] == 0


def test_a_table_and_a_figure_from_stacks_that_are_there(tmp_path, monkeypatch):
    def load(name, split="train"):
        rng = np.random.default_rng(3)
        features, labels = rng.integers(256, size=(600, 28, 28, 1)).astype(np.uint8), np.arange(600) % 10
        return bfl.data.Source(name, split, features, labels.astype(np.int32), tuple("0123456789"))

    monkeypatch.setattr(bfl.data, "load", load)
    # Two poolings, so that it is quick: the mean and one so wide that it is the mean.
    wide = bandwidths.Pooling("mean", "epanechnikov", "silverman", 1e4)
    monkeypatch.setattr(bandwidths, "poolings", lambda size: [bandwidths.Pooling(), wide])
    rng, stacks = np.random.default_rng(0), tmp_path / "stacks" / "tiny"
    num_weights = sum(
        w.shape.num_elements() for w in client_stacks.model_of({"network": "mnist_network", "seed": 0}).weights
    )
    for setting in client_stacks.settings("tiny"):
        cell = client_stacks.cell_of(setting, "tiny", 0)
        of_stack = client_stacks.stack_of(cell, setting)
        for f, own in ((client_stacks.global_folder, cell), (client_stacks.stack_folder, of_stack)):
            folder = f(stacks, setting, 0)
            if not folder.exists():
                folder.mkdir(parents=True)
                (folder / SUMMARY).write_text(json.dumps({"options": own, "accuracy": {}}))
        start = client_stacks.global_folder(stacks, setting, 0) / client_stacks.GLOBAL
        np.savez(start, **{str(number): np.zeros(num_weights, np.float32) for number in (1, 2)})
        np.save(folder / client_stacks.STACK, 0.1 * rng.normal(size=(12, num_weights)).astype(np.float32))
    options = ["--size", "tiny", "--output", str(tmp_path / "out"), "--stacks", str(tmp_path / "stacks")]
    result = CliRunner().invoke(bandwidths.main, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    header, mean, mode = csv.reader((tmp_path / "out" / "tiny" / "bandwidths.csv").read_text().splitlines())
    assert mean[header.index("bandwidth")] == bandwidths.MEAN
    gain = mode[header.index("less the mean's")].split(" +- ")
    assert len(gain) == 2 and abs(float(gain[0])) <= 0.002  # Of 600 images one more or less, from rounding.
    assert (tmp_path / "out" / "tiny" / "figures" / "bandwidth_scales.png").stat().st_size > 1000
    cell = tmp_path / "out" / "tiny" / f"alpha={config.BANDWIDTH_STUDY['tiny']['alphas'][0]:g}" / SUMMARY
    assert len(json.loads(cell.read_text())["rows"]) == 4  # two groups of six clients
    before = cell.stat().st_mtime_ns
    assert CliRunner().invoke(bandwidths.main, options).exit_code == 0 and cell.stat().st_mtime_ns == before
    for where in ("scales", "examples"):  # of the study itself, and of the clients that it shares
        changed = config.BANDWIDTH_STUDY if where == "scales" else config.NORMALITY
        with monkeypatch.context() as patch:
            patch.setitem(changed, "tiny", {**changed["tiny"], where: [3.0] if where == "scales" else 33})
            refused = CliRunner().invoke(bandwidths.main, options)
            assert refused.exit_code == 2 and f"is of other options ({where}" in refused.output
