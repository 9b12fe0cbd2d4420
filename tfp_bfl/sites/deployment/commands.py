"""Commands for federations of real sites: deploy init, check, start, run and demo."""

import contextlib
import functools
import json
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import click

from tfp_bfl.app.options.command import Grouped, config_options
from tfp_bfl.app.options.refusals import OF_ONE_PLACE
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.faces import Later
from tfp_bfl.files import name as path_name
from tfp_bfl.glm.command import model_options, names_of

_kits, _runs = Later("tfp_bfl.sites.deployment.kits"), Later("tfp_bfl.sites.deployment.submit")
_kit = click.argument("kit", metavar="ADMIN_KIT")
_of_sites = functools.partial(click.option, multiple=True, metavar="SITE")
_report = functools.partial(click.echo, err=True)
DEPLOY_EXAMPLES = """
\b
Examples:
  tfp-bfl deploy demo --output demo           three sites on this machine
  tfp-bfl deploy init kits --host fl.example.org --site north --site south
  tfp-bfl deploy check north                  at a site: its file and data
  tfp-bfl deploy start north                  at each site, and at the server
  tfp-bfl deploy run admin --name first --model mlp --rounds 20 --output first
  tfp-bfl deploy glm admin --name second --outcome age --output second
  tfp-bfl deploy follow admin first           another shell; also runs, stop

\b
NVIDIA FLARE carries the messages. In a clone of tfp_bfl, `make deployment`
builds an environment with it, .venvs/deployment.
"""


@contextlib.contextmanager
def ends_with_cleanup() -> Iterator[None]:
    """Raise SystemExit at SIGTERM and SIGHUP within the context, so that cleanup runs; the exit status is 128 + number.

    A further signal during the cleanup is ignored. Outside the main thread the context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [x for x in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(x) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@click.group("deploy", epilog=DEPLOY_EXAMPLES, invoke_without_command=True)
@click.pass_context
def deploy(context: click.Context) -> None:
    """Run federations of sites, each with its own host, data and key."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@deploy.command("init")
@click.argument("folder", metavar="FOLDER")
@click.option("--host", required=True, metavar="NAME", help="Host name at which the sites reach the server.")
@click.option("--port", type=click.IntRange(1, 65535), default=8002, show_default=True, help="Port of the server.")
@_of_sites("--site", "sites", help="Name of a site; repeat the option for each site (at least one).", metavar="NAME")
def init(folder: str, host: str, port: int, sites: Sequence[str]) -> None:
    """Write a folder for the server, for the administrator, and for each site, with certificates."""
    for kit in _kits.make_kits(folder, host, port, sites):
        click.echo(str(kit))
    click.echo("Send each folder to its owner over a confidential channel. Keep the folder authority to yourself.")


@deploy.command("check")
@click.argument("kit", metavar="KIT")
@click.option("--drop", metavar="COLUMNS", help="Columns that the run leaves out, separated by commas.")
@click.option("--only", metavar="COLUMNS", help="Columns that the run uses, separated by commas.")
@click.option("--categorical", metavar="COLUMNS", help="Columns that are categories in the run.")
@click.option("--date-unit", metavar="UNIT", help="Unit of dates in the run.")
def check(kit: str, **of_run: str | None) -> None:
    """Check the file and data of a site, and print exactly what the site would send to a server."""
    from tfp_bfl.sites.deployment.jobs import table_options
    from tfp_bfl.sites.deployment.site import check as check_site

    if _kits.role_of(kit)["role"] != "party":
        raise InvalidArgument(f"{kit} is not the folder of a site: only sites have data.")
    click.echo(check_site(pathlib.Path(kit) / "local", table_options(of_run)))


@deploy.command("start")
@click.argument("kit", metavar="KIT")
def start(kit: str) -> None:
    """Run the server or the site of a folder until Ctrl-C."""
    _kits.start(kit)


def _submission(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of every submission; those of `submit.submit` come as one argument, `how`."""

    @_kit
    @click.option("--name", required=True, metavar="NAME", help="Name of the run; the same name resumes it.")
    @click.option("--output", required=True, metavar="FOLDER", help="New folder for the result.")
    @click.option(
        "--quorum", type=click.IntRange(1), default=2, show_default=True, help="Smallest number of sites in a round."
    )
    @click.option(
        "--deadline",
        type=click.FloatRange(1),
        default=600.0,
        show_default=True,
        callback=lambda context, option, value: check_number(value, "--deadline"),  # It accepts nan and inf.
        help="Time limit for the answer of a site, in seconds.",
    )
    @click.option(
        "--secure-sums",
        is_flag=True,
        help="Mask the sites' messages: the server reads only the sum over the sites that answer.",
    )
    @_of_sites("--without", help="Name of a site to leave out; repeat the option for each site.")
    @functools.wraps(function)
    def command(quorum: int, deadline: float, secure_sums: bool, without: Sequence[str], **rest: Any) -> None:
        how = {"quorum": quorum, "deadline": deadline, "secure_sums": secure_sums, "without": without}
        function(how={**how, "progress": _report}, **rest)

    return command


class _DeployRun(Grouped):
    first = (
        *("name", "output", "quorum", "deadline", "secure_sums", "max_examples", "without"),
        *("model", "algorithm", "rule", "rounds"),
    )


@deploy.command("run", cls=_DeployRun)
@_submission
@click.option(
    "--max-examples",
    type=click.IntRange(1),
    metavar="N",
    help="Upper bound on the number of examples that weights a site.",
)
@click.option("--config", "config_file", metavar="FILE", help="Options from a YAML file; flags win.")
@functools.partial(config_options, without=OF_ONE_PLACE)
def run(
    kit: str,
    name: str,
    output: str,
    how: dict[str, Any],
    max_examples: int | None,
    config_file: str | None,
    **given: object,
) -> None:
    """Submit a run to the server, print its progress, and download its folder."""
    from tfp_bfl.app.options.config import read_yaml

    options = {**(read_yaml(config_file) if config_file else {}), **{k: x for k, x in given.items() if x is not None}}
    with ends_with_cleanup():
        click.echo(str(_runs.submit(kit, name, options, output, max_examples=max_examples, **how)))


@deploy.command("glm")
@_submission
@model_options
def linear_model(kit: str, name: str, output: str, how: dict[str, Any], **given: Any) -> None:
    """Fit a generalised linear model over the tables of the sites, print its progress, and download its folder."""
    lists = ("event_value", "only", "drop", "categorical", "random")
    _submit_model(kit, name, {**given, **{option: names_of(given[option]) for option in lists}}, output, how)


@deploy.command("glm-revise")
@_submission
@click.argument("fit", metavar="FOLDER")
@_of_sites("--add", help="Name of a site that joins; repeat the option for each site.")
@_of_sites("--remove", help="Name of a site that leaves; repeat the option for each site.")
def revised_model(
    kit: str, fit: str, name: str, output: str, how: dict[str, Any], add: Sequence[str], remove: Sequence[str]
) -> None:
    """Add sites to the fit of `deploy glm` in FOLDER, and remove others, by their sums; no other site computes."""
    path = pathlib.Path(fit) / "posterior.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        options = {**record["options"], "revise": {"record": record, "add": list(add), "remove": list(remove)}}
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidArgument(
            f"{path_name(path)} is not the posterior.json of `deploy glm`: give its folder."
        ) from None
    _submit_model(kit, name, options, output, how)


def _submit_model(kit: str, name: str, options: dict[str, Any], output: str, how: dict[str, Any]) -> None:
    with ends_with_cleanup():
        done = _runs.submit(kit, name, {"glm": options}, output, **how)
    for line in json.loads((done / "summary.json").read_text(encoding="utf-8"))["lines"]:
        click.echo(line)
    click.echo(str(done))


@deploy.command("runs")
@_kit
def runs(kit: str) -> None:
    """List the runs of the server, the newest first, with their status."""
    for line in _runs.list_runs(kit, _report):
        click.echo(line)


@deploy.command("follow")
@_kit
@click.argument("name", metavar="RUN")
def follow(kit: str, name: str) -> None:
    """Print the progress of a run until it ends; Ctrl-C ends the command and not the run."""
    _runs.follow_run(kit, name, click.echo)


@deploy.command("stop")
@_kit
@click.argument("name", metavar="RUN")
def stop(kit: str, name: str) -> None:
    """Stop a run; its checkpoints stay, and submitting it again resumes it."""
    _runs.stop_run(kit, name, _report)
    click.echo(f"{name} is stopped.")


@deploy.command("demo")
@click.option("--output", default="federation_demo", show_default=True, metavar="FOLDER", help="New folder.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True, help="Number of rounds.")
@click.option("--port", type=click.IntRange(1, 65535), default=8402, show_default=True, help="Port of the server.")
def demo(output: str, rounds: int, port: int) -> None:
    """Run a server and three hospitals on this machine, each hospital with a third of the breast cancer data."""
    from tfp_bfl.sites.deployment.demo import run_demo

    with ends_with_cleanup():
        run_demo(output, rounds, port, _report)
