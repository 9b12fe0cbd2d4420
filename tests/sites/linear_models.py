"""A federation of linear models in this process, without NVIDIA FLARE, and the fit of all rows in one place."""

import json

import numpy as np
import pyarrow
from rich.console import Console

from tests.glm.test_agreement import table
from tfp_bfl import glm
from tfp_bfl.app.one_run.progress import reporter
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.arrays import stored_arrays, to_bytes
from tfp_bfl.glm.design import Outcome, read_design
from tfp_bfl.sites.deployment.channel import TALK, Refusal
from tfp_bfl.sites.deployment.glm_server import serve_glm
from tfp_bfl.sites.deployment.glm_site import GlmSite

SITES = ("s0", "s1", "s2")
WHOLE = table()
ILL = {"outcome": "ill", "family": "bernoulli", "prior_stddev": 2.0, "categorical": ["stage"], "missing": "indicate"}


class Channel:
    """Sites in this process; `lies` are replies in the place of a site's, or functions of its sums."""

    def __init__(self, folder, lies=None):
        self.sites = {name: GlmSite(folder / name / "local") for name in SITES}
        self.lies, self.sent, self.replies = lies or {}, [], []

    @property
    def names(self):
        return list(self.sites)

    def ask(self, task, what):
        number = sum(1 for one, _ in self.sent if one == task)
        self.sent.append((task, what))
        for name, content in what.items():
            lie = self.lies.get((task, name, number))
            if lie == "silence":
                continue
            if name not in self.sites:
                yield name, Refusal("it is not connected")
                continue
            try:
                reply = lie or self.reply(task, self.sites[name], content)
                if callable(lie):
                    numbers = stored_arrays(self.reply(task, self.sites[name], content), "answer", 2**30)["sums"]
                    reply = to_bytes({"sums": lie(numbers)})
                yield name, reply
            except InvalidArgument as error:
                yield name, Refusal(str(error))

    def reply(self, task, site, content):
        if task == TALK:
            return site.converse(content)
        found = to_bytes(site.sums(stored_arrays(content, "message", 2**30)))
        self.replies.append(found)
        return found


def run(folder, channel, options=ILL, name="first", quorum=2, **how):
    with reporter(Console(quiet=True), "none", 0) as tell:
        return serve_glm(options, name, folder / "runs" / name, channel, quorum, tell, **how)


def pooled(options, without=()):
    """The fit of all rows in one place."""
    keep = np.isin(np.array(WHOLE["site"].to_pylist()), [site for site in SITES if site not in without])
    of = Outcome(options["outcome"], options.get("family", "gaussian"), options.get("event"))
    design = read_design(
        WHOLE.filter(pyarrow.array(keep)), of, "site", categorical=options.get("categorical", ()),
        missing=options.get("missing", "drop"),
    )  # fmt: skip
    priors = {"prior_stddev": options.get("prior_stddev"), "names": design.names}
    if options.get("random"):
        return glm.fit_hierarchical(design.clients, of.family, random=options["random"], **priors)
    return glm.fit(design.clients, of.family, stratified=options.get("stratified", False), **priors)


def check_equal(folder, posterior, tolerance=1e-8):
    found = json.loads((folder / "posterior.json").read_text())
    assert found["names"] == list(posterior.names) and found["rows"] == posterior.count
    np.testing.assert_allclose((found["mean"] - posterior.mean) / posterior.stddev, 0, atol=tolerance)
    np.testing.assert_allclose(np.sqrt(np.diag(found["covariance"])), posterior.stddev, rtol=1e-6)
