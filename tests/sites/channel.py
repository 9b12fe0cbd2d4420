"""Sites in this process as a channel, without NVIDIA FLARE."""

import pyarrow.csv
import pyarrow.parquet
from rich.console import Console

from tests.kit import lines_of
from tfp_bfl.app.one_run.run_folder import reporter
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.sites.deployment.attendance import Submission
from tfp_bfl.sites.deployment.channel import Counted, Refusal
from tfp_bfl.sites.deployment.party_file import FILE
from tfp_bfl.sites.deployment.server import serve

SILENCE = "silence"
OPTIONS = {"model": "mlp", "rounds": 2, "local_epochs": 2}


def faults_of(done):
    """The sites that were left out of each round, with the reasons."""
    return [row["faulty_clients"] for row in lines_of(done / "metrics.jsonl")]


class Channel:
    """Sites by their names, and what was sent to them: (task, name, content) in order.

    `lies` are replies in the place of a site's: (task, name), or (task, name, how many times the task was asked before)
    -> bytes, a refusal, `SILENCE`, or a function of the honest reply. `before` is called before each question.
    """

    before = staticmethod(lambda task, number: None)

    def __init__(self, sites, lies=None):
        self.sites, self.lies, self.sent, self.asked = sites, lies or {}, [], []

    @property
    def names(self):
        return list(self.sites)

    def ask(self, task, what):
        number = self.asked.count(task)
        self.before(task, number)
        self.asked.append(task)
        for name, content in what.items():
            self.sent.append((task, name, content))
            lie = self.lies.get((task, name), self.lies.get((task, name, number)))
            if lie == SILENCE:
                continue
            if name not in self.sites:
                yield name, Refusal("it is not connected")
                continue
            try:
                honest = lie if lie and not callable(lie) else self.reply(task, self.sites[name], content)
                yield name, lie(honest) if callable(lie) else honest
            except InvalidArgument as error:
                yield name, Refusal(str(error))

    def reply(self, task, site, content):
        return site.reply(task, content)


def run(folder, channel, name="first", options=OPTIONS, quorum=2, **how):
    with reporter(Console(quiet=True), "none", 2) as tell:
        return serve(options, Submission(name, folder / "runs" / name, Counted(channel), quorum, tell, **how))


def put(folder, name, table, more="", suffix=".parquet", test=None):
    (local := folder / name / "local").mkdir(parents=True, exist_ok=True)
    write = pyarrow.csv.write_csv if suffix == ".csv" else pyarrow.parquet.write_table
    for file, content in {"rows": table, "test": test}.items():
        if content is not None:
            write(content, local / f"{file}{suffix}")
    held = "" if test is None else f"test_data: test{suffix}\n"
    (local / FILE).write_text(f"data: rows{suffix}\nlabel: disease\n{held}{more}", encoding="utf-8")
    return local


def add_line(local, line):
    """Add a line to the file of a site, which is returned."""
    (local / FILE).write_text((local / FILE).read_text() + line + "\n")
    return local / FILE
