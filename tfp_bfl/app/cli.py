"""The commands of `tfp-bfl`. The work itself is in `one_run`, `doctor` and the edges."""

import difflib
import errno
import functools
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich.console import Console
from rich.logging import RichHandler

from tfp_bfl import __version__, data, edges
from tfp_bfl.app.one_run.command import COMMANDS, find_posterior, scores_in_words
from tfp_bfl.app.options.afterwards import split_after
from tfp_bfl.app.options.command import Grouped, after_options, code_options, config_options
from tfp_bfl.app.options.config import make_config
from tfp_bfl.app.options.config_schema import config_schema
from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.refusals import OF_ONE_PLACE
from tfp_bfl.errors import Error, InvalidArgument, MissingDependency, lookup, missing_package
from tfp_bfl.files import name as path_name
from tfp_bfl.files.code import failure, place_of
from tfp_bfl.files.writing import system_error
from tfp_bfl.options import choices
from tfp_bfl.options.methods import ALGORITHMS, POSTERIORS
from tfp_bfl.output import Record, asks_for_json, error_record, in_formats

EXAMPLES = """
\b
Examples:
  tfp-bfl run
  tfp-bfl run --rule linear_pool --rounds 20 --output my_run
  tfp-bfl run --config my_run/config.yaml --seed 1
  tfp-bfl run --seeds 0..4 --output five_seeds
  tfp-bfl run --resume my_run
  tfp-bfl run --algorithm fl_swag --model mlp
  tfp-bfl run --algorithm fed_kp --bandwidth scott
  tfp-bfl run --algorithm qlsd --model mlp --compressor quantiser:16
  tfp-bfl run --algorithm meta_vd --model conv_net --width 8 --batch-size 16
  tfp-bfl run --dataset cifar10 --model resnet20 --rounds 400 --local-epochs 1
  tfp-bfl run --dataset patients.csv --client-column hospital --model mlp
"""

OVERVIEW = """
\b
Examples:
  tfp-bfl doctor                     is this machine ready?
  tfp-bfl run --output my_run        train, evaluate, export, report
  tfp-bfl run --config my_run/config.yaml --seed 1
  tfp-bfl sweep --vary rule=linear_pool,conflation --seeds 0..4 --output two
  tfp-bfl tune --space "learning-rate=0.001..0.3 log" --output tuned
                                     the best of trials on held-out rows
  tfp-bfl bench methods.yaml --output methods
                                     many methods by settings, tuned alike
  tfp-bfl runs                       what runs there are
  tfp-bfl list                       what --dataset, --rule and others take
  tfp-bfl watch my_run               its rounds while it trains, as a page
  tfp-bfl calibrate my_run my_model  a limit by which it may abstain
  tfp-bfl laplace my_run --output q  a posterior at the run's weights
  tfp-bfl last-layer my_run --output q  the exact one of its last layer
  tfp-bfl predict my_run scans/      what the run's model says of images
  tfp-bfl drift my_run new.csv       are new data like the training data?
  tfp-bfl export my_run my_model     its SavedModel; --tflite for devices
  tfp-bfl glm radon.csv --outcome log.radon --client-column county
                                     a linear model from sums of clients
  tfp-bfl deploy demo                three sites, all on this machine
  eval "$(tfp-bfl completion bash)"  complete by Tab

\b
Exit status:
  0    done
  1    the run failed, a check of doctor did, or predict could not read
       some images
  2    bad input, or a package is missing; no work was begun
  3    drift found drift
  130  interrupted by Ctrl-C
"""

COMPLETION_EXAMPLES = """
\b
For good:
  echo 'eval "$(tfp-bfl completion bash)"' >> ~/.bashrc
  echo 'eval "$(tfp-bfl completion zsh)"' >> ~/.zshrc
  tfp-bfl completion fish > ~/.config/fish/completions/tfp-bfl.fish
"""

REVISE_EXAMPLES = """
\b
Examples:
  tfp-bfl run --algorithm fl_swag --output hospitals
  tfp-bfl clients show hospitals
  tfp-bfl clients remove hospitals 3 --output without_3
  tfp-bfl clients add without_3 hospitals 3 --output with_3_again
"""


class _Commands(click.Group):
    """A group of commands that suggests the nearest name for an unknown one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if not args or args[0].startswith("-"):
                raise
            if args[0] not in _SYNONYMS:
                lookup(self.commands, args[0], "command")
            raise click.UsageError(f"There is no command {args[0]!r}: did you mean {_SYNONYMS[args[0]]!r}?") from None


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    epilog=OVERVIEW,
)
@click.version_option(__version__, prog_name="tfp-bfl")
@click.pass_context
def cli(context: click.Context) -> None:
    """Bayesian federated learning: simulate, evaluate, export."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (*COMMANDS, *edges.commands()):
    cli.add_command(_command)


# What other programs call an option or a command.
_SYNONYMS = {
    **{"--lr": "--learning-rate", "--epochs": "--local-epochs", "--num-clients": "--clients", "--data": "--dataset"},
    **{"--strategy": "--algorithm", "--num-rounds": "--rounds", "--out": "--output", "--outdir": "--output"},
    **{"--mu": "--proximal", "--verbose": "--progress", "--quiet": "--progress"},
    **{"train": "run", "fit": "run", "simulate": "run", "evaluate": "report", "eval": "report", "serve": "predict"},
    **{"benchmark": "bench", "compare": "bench", "optimize": "tune", "search": "tune"},
}


@cli.command(cls=Grouped, epilog=EXAMPLES)
@click.option(
    "--config", "config_file", metavar="FILE", help="YAML file of options; options of the command line override it."
)
@click.option("--resume", "resumed", metavar="RUN", help="Resume an interrupted run; accepts no other option.")
@click.option(
    "--progress",
    metavar="FORM",
    help="Form of the progress report on standard error; by default a bar in a terminal, lines elsewhere.",
)
@click.option(
    "--seeds",
    metavar="SEEDS",
    help="Seeds, such as 0..4 or 0,1,7: one run for each, and one report with means and standard deviations.",
)
@click.option(
    "--start",
    metavar="RUN",
    help="Complete run at whose weights --algorithm laplace or last_layer finds a posterior, or head a last layer.",
)
@after_options("")
@config_options
@in_formats
def run(config_file: str | None, resumed: str | None, progress: str | None, seeds: str | None, **given: Any) -> Record:
    """Simulate federated training and write a run folder: metrics, figures, report, SavedModel."""
    if progress is not None:
        choices.FORMS.check(progress)
    given = {name: value for name, value in given.items() if value is not None}
    start, algorithm, code, of_posterior = split_after(given)
    if start is not None:
        for name, value in {"config": config_file, "resume": resumed, "seeds": seeds}.items():
            if value is not None:
                raise InvalidArgument(f"--start takes the data and the model of a run: leave --{name} out.")
        return find_posterior(algorithm, start, code, of_posterior)
    if resumed and (config_file or seeds or set(given) - set(CODE)):
        own = [name for name in given if name not in CODE]
        other = "config" if config_file else "seeds" if seeds else own[0].replace("_", "-")
        raise InvalidArgument(
            f"--resume continues a run with its recorded options: leave --{other} out, or start a new run."
        )
    if seeds is not None:
        for run_many in edges.parts("run_many"):
            return run_many(config_file, given, [{}], seeds, progress=progress)
        raise edges.missing("--seeds", "bench")
    config = None if resumed else make_config(config_file, given)
    # Late, as a refusal or the help need not wait for it.
    from tfp_bfl.app.one_run.records import in_a_line
    from tfp_bfl.app.one_run.run import execute, resume

    console = Console(stderr=True)
    shown: dict[str, Any] = {"console": console, "progress": progress}
    folder = execute(config, **shown) if config else resume(str(resumed), **given, **shown)
    summary = json.loads((folder / "summary.json").read_text())
    click.echo(in_a_line(summary))
    click.echo(f"{folder / 'report.html'} shows the run; {folder / 'saved_model'} predicts with uncertainty.")
    return lambda: {"run": str(folder), **summary}


@cli.group(epilog=REVISE_EXAMPLES)
def clients() -> None:
    """Show, add, replace or remove the clients of a run of fl_swag, partitioned_vi, laplace or last-layer."""


@clients.command("show")
@click.argument("run_folder", metavar="RUN")
def show_clients(run_folder: str) -> None:
    """List the clients of a run."""
    from tfp_bfl.app.one_run.after import describe, read_state

    click.echo(describe(read_state(run_folder)))


_output = click.option("--output", required=True, metavar="FOLDER", help="The new folder; RUN itself stays as it is.")


@clients.command("add")
@click.argument("run_folder", metavar="RUN")
@click.argument("other_folder", metavar="OTHER")
@click.argument("names", metavar="[CLIENT]...", nargs=-1)
@click.option("--replace", is_flag=True, help="Clients of the same name get the new posterior for their old one.")
@_output
@code_options
def add_clients(
    run_folder: str, other_folder: str, names: tuple[str, ...], replace: bool, output: str, code: dict[str, str]
) -> None:
    """Add clients of another run, all of them or those named; with --replace those that are there are updated."""
    from tfp_bfl.app.one_run.after import add, revise

    _show_revised(revise(run_folder, add(other_folder, names, replace), output, code), output)


@clients.command("remove")
@click.argument("run_folder", metavar="RUN")
@click.argument("names", metavar="CLIENT...", nargs=-1, required=True)
@_output
@code_options
def remove_clients(run_folder: str, names: tuple[str, ...], output: str, code: dict[str, str]) -> None:
    """Remove clients, as if they had never taken part (unlearning)."""
    from tfp_bfl.app.one_run.after import remove, revise

    _show_revised(revise(run_folder, remove(names), output, code), output)


def _show_revised(summary: dict[str, Any], output: str) -> None:
    click.echo(f"{len(summary['clients'])} clients: {scores_in_words(summary)}")
    click.echo(f"{output} holds the new state and its saved_model.")


@cli.command()
@in_formats
def doctor() -> tuple[Record, int]:
    """Check Python, the stack, a worker, cores and memory."""
    from tfp_bfl.app.doctor import examine

    checks = examine(Console())
    passed = all(check.passed for check in checks)
    return lambda: {"passed": passed, "checks": checks}, int(not passed)


@cli.command()
def schema() -> None:
    """Print the JSON Schema of a file for `run --config`, by which editors complete and check it."""
    click.echo(json.dumps(config_schema(), indent=2))


@cli.command("list")
@in_formats
def list_choices() -> Record:
    """List the algorithms, datasets, models, kinds, rules, weightings, partitions, kernels and more."""
    click.echo("algorithms:")
    summaries = {name: x.summary for name, x in {**ALGORITHMS, **POSTERIORS}.items()}
    for name, summary in summaries.items():
        click.echo(f"  {name.ljust(max(map(len, summaries)))}  {summary}")
    click.echo(f"datasets: {', '.join(data.list_sources())}, any image-classification dataset of TFDS")
    tables = {
        "models": choices.MODELS,
        "kinds": choices.KINDS,
        "rules": choices.RULES,
        "weightings": choices.WEIGHTINGS,
        "robust aggregators": choices.ROBUST,
        "partitions": choices.PARTITIONS,
        "kernels": choices.KERNELS,
        "bandwidths": choices.BANDWIDTHS,
        "inferences": choices.INFERENCES,
        "kl": choices.KLS,
        "estimators": choices.ESTIMATORS,
        "learners": choices.LEARNERS,
        "sources of variances": choices.PERSONAL_VARIANCES,
        "compressors": choices.COMPRESSORS,
        "engines": choices.ENGINES,
        "rules for one round, not for many": choices.ONE_SHOT,
    }
    for title, table in tables.items():
        click.echo(f"{title}: {', '.join(table.entries)}")
    rates = choices.SERVER_OPTIMIZERS.numbers()
    click.echo(f"server optimizers: {', '.join(f'{name} ({rate:g})' for name, rate in rates.items())}")
    lists = {title.partition(",")[0].replace(" ", "_"): [*table.entries] for title, table in tables.items()}
    return lambda: {"algorithms": summaries, "datasets": data.list_sources(), **lists, "server_optimizers": rates}


@cli.command(epilog=COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands and options."""
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None  # click has one for each of the choices
    click.echo(script(cli, {}, "tfp-bfl", "_TFP_BFL_COMPLETE").source())


def run_command_line(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status: 0, 2 for bad input, 1 for a failed run, 130 for Ctrl-C."""
    console = Console(stderr=True)
    # A terminal gets the log beside the progress bar; a file gets plain lines.
    handler = RichHandler(console=console, show_path=False) if console.is_terminal else logging.StreamHandler()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    fail = functools.partial(_fail, asks_for_json(arguments))
    empty = [a for a, b in zip(arguments, [*arguments[1:], "-"]) if a[:2] == "--" and (not b or a[-1] == "=")]
    if empty:
        return fail(f"{empty[0].rstrip('=')} is empty: give it a value, or leave it out.", 2)
    try:
        status = cli.main(list(arguments), prog_name="tfp-bfl", standalone_mode=False, obj=list(arguments))
    except (InvalidArgument, MissingDependency) as error:
        return fail(error, 2)
    except click.NoSuchOption as error:
        name = error.option_name
        near = (
            [_SYNONYMS[name]]
            if name in _SYNONYMS
            else difflib.get_close_matches(name, error.possibilities or (), 1, 0.75)
        )
        of_run = name.lstrip("-").replace("-", "_") in OF_ONE_PLACE
        where = "it belongs to tfp-bfl run, of data in one place." if of_run else "--help lists those that there are."
        advice = f"did you mean {near[0]!r}?" if near else where
        return fail(f"There is no option {name!r}: {advice}", error.exit_code)
    except click.ClickException as error:
        return fail(error.format_message(), error.exit_code)
    except Error as error:
        return fail(error, 1)
    except ModuleNotFoundError as error:
        return fail(missing_package(error.name), 1)
    except (KeyboardInterrupt, click.Abort):
        logging.getLogger("tensorflow").setLevel(logging.CRITICAL)  # Which complains of what it was not let do.
        return fail("interrupted.", 130)
    except Exception as error:
        if of_system := system_error(error):
            return fail(_of_the_system(of_system), 1)
        if isinstance(error, MemoryError):
            cause = f" ({error})" if str(error) else ""
            return fail(f"there is not enough memory{cause}: give fewer or smaller examples.", 1)
        if not place_of(error) or sys.flags.dev_mode:
            raise
        return fail(f"User-supplied code fails: {failure(error)}.", 1)
    return status if isinstance(status, int) else 0


def _of_the_system(error: OSError) -> str:
    where = f" for {path_name(error.filename)}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"there is no space left on the disk{where}: make some, then try again."
    reason = (error.strerror or str(error) or type(error).__name__).rstrip(".")
    return f"the system says{where}: {reason}. Files saved before remain; fix the cause, then try again."


def _fail(as_json: bool, problem: object, status: int) -> int:
    record = error_record(problem, status, {*_options(cli)}) if as_json else None
    click.echo(json.dumps(record) if record else f"tfp-bfl: {problem}", err=True)
    return status


def _options(command: click.Command) -> Iterator[str]:
    """Return the names of all options of a command and of those in it."""
    yield from (name for parameter in command.params for name in parameter.opts)
    for inner in getattr(command, "commands", {}).values():
        yield from _options(inner)
