"""The kernel posterior as the rule of a round: its graph goes to a worker as any other does."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import federated, rules, servers
from tfp_bfl.algorithms.kernel import KernelModes, kernel_mode, kernel_posterior

from .test_process import CLIENTS, EVERYONE, SIZES, by_size, model_fn, run_round, shift


@pytest.mark.deep(after="tests/algorithms/test_contract.py")
@pytest.mark.parametrize(("start", "bandwidth"), [("mean", "cross_validated"), ("clients", "plug_in")])
def test_a_round(runtime, start, bandwidth):
    rule = kernel_posterior(start, bandwidth=bandwidth, weighting="kernels")
    process = federated.build_process(
        model_fn, client_work=lambda: shift, weigh=by_size, rule=rules.gathered(rule), server_step=servers.replace()
    )
    state = process.initialize()
    output = run_round(process, state=state)
    amounts = [CLIENTS.examples(k).features.mean() for k in EVERYONE]
    before, after = (tf.nest.flatten((w.posterior.mean, w.point)) for w in (state.weights, output.state.weights))
    for old, new in zip(before, after, strict=True):
        values = (np.ravel(old) + np.array(amounts)[:, np.newaxis]).astype(np.float32)
        wanted = kernel_mode(values, start, bandwidth=bandwidth, weights=SIZES)
        np.testing.assert_allclose(np.ravel(new), wanted, rtol=1e-4)
    assert set(KernelModes._fields[1:]) <= set(output.metrics)
