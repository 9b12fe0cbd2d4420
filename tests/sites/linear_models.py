"""A federation of linear models in this process, without NVIDIA FLARE, and the fit of all rows in one place."""

import json

import numpy as np
import pyarrow

from tests.glm.test_agreement import table
from tests.sites import channel
from tfp_bfl import glm
from tfp_bfl.files.arrays import stored_arrays, to_bytes
from tfp_bfl.glm.design import BESIDE, Outcome, read_design
from tfp_bfl.sites.deployment.channel import SUMS, TALK
from tfp_bfl.sites.deployment.glm_site import GlmSite
from tfp_bfl.sites.deployment.jobs import GLM

SITES = ("s0", "s1", "s2")
WHOLE = table()
ILL = {"outcome": "ill", "family": "bernoulli", "prior_stddev": 2.0, "categorical": ["stage"], "missing": "indicate"}


class Channel(channel.Channel):
    """The sites of linear models in this process; a lie is a reply, or a function of its numbers."""

    def __init__(self, folder, lies=None):
        lies = {key: of_sums(lie) if callable(lie) else lie for key, lie in (lies or {}).items()}
        super().__init__({name: GlmSite(folder / name / "local") for name in SITES}, lies)
        self.replies = []

    def reply(self, task, site, content):
        found = site.reply(task, content)
        if task != TALK:
            self.replies.append(found)
        return found


def begins(channel, site="s0"):
    """The first message to a site that begins a run."""
    return next(x for task, name, x in channel.sent if (task, name) == (TALK, site) and b'"begin"' in x)


def questions(channel):
    """The questions for sums of a run, as arrays."""
    return [dict(stored_arrays(content, "message", 2**30)) for task, _, content in channel.sent if task == SUMS]


def described(channel, site="s1", options=ILL, secure_sums=False):
    """The description that a site sends."""
    message = {"step": "describe", "options": options, "secure_sums": secure_sums}
    return json.loads(channel.sites[site].converse(json.dumps(message).encode()))


def refusal_of(done, site="s1"):
    """Why a site is left out."""
    return json.loads((done / "parties.json").read_text())[site]["refused"]


def of_sums(lie):
    """Return a lie about the numbers of an answer."""
    return lambda reply: to_bytes({"sums": lie(stored_arrays(reply, "answer", 2**30)["sums"])})


def run(folder, sites, options=ILL, name="first", quorum=2, **how):
    return channel.run(folder, sites, name, {GLM: options}, quorum, **how)


def pooled(options, without=()):
    """The fit of all rows in one place."""
    keep = np.isin(np.array(WHOLE["site"].to_pylist()), [site for site in SITES if site not in without])
    beside = {name: options.get(name) for name in BESIDE}
    of = Outcome(options["outcome"], options.get("family", "gaussian"), **beside)
    design = read_design(
        WHOLE.filter(pyarrow.array(keep)), of, "site", categorical=options.get("categorical", ()),
        missing=options.get("missing", "drop"),
    )  # fmt: skip
    priors = {"prior_stddev": options.get("prior_stddev"), "names": design.names, "offset": design.offset}
    if options.get("random"):
        return glm.fit_hierarchical(design.clients, of.family, random=options["random"], **priors)
    return glm.fit(design.clients, of.family, stratified=options.get("stratified", False), **priors)


def check_equal(folder, posterior, tolerance=1e-8):
    found = json.loads((folder / "posterior.json").read_text())
    assert found["names"] == list(posterior.names) and found["rows"] == posterior.count
    np.testing.assert_allclose((found["mean"] - posterior.mean) / posterior.stddev, 0, atol=tolerance)
    np.testing.assert_allclose(np.sqrt(np.diag(found["covariance"])), posterior.stddev, rtol=1e-6)
