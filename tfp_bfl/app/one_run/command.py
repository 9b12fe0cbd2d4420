"""The commands on runs: calibrate, drift, export, laplace, last-layer, predict, watch. The work is elsewhere."""

import contextlib
import functools
import pathlib
from typing import Any

import click

from tfp_bfl.app.options.afterwards import after_options as check_after
from tfp_bfl.app.options.command import after_options, code_options
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.output import Record, in_formats

EXPORT_EXAMPLES = """
\b
Examples:
  tfp-bfl export my_run digits_model
  tfp-bfl export my_run digits.tflite --tflite --num-samples 10
  tfp-bfl export my_meta_vd_run model_of_client_3 --client 3
"""

PREDICT_EXAMPLES = """
\b
Examples:
  tfp-bfl predict digits_model scan.png
  tfp-bfl predict digits_model scans/ more.npz --max-uncertainty 0.3
  tfp-bfl predict digits_model scans/ --format csv > predictions.csv
  tfp-bfl predict hospitals_run new_patients.csv

\b
Exit status: 0; 1 if some of the images could not be read, which are listed
at the end; 2 if nothing could be predicted.
"""

CALIBRATE_EXAMPLES = """
\b
Examples:
  tfp-bfl run --dataset patients.csv --model mlp --hold-out 0.2 --output run
  tfp-bfl calibrate run model --accuracy 0.95
  tfp-bfl calibrate run model --each-client
  tfp-bfl calibrate run model --coverage 0.8 --by epistemic --sets 0.99
  tfp-bfl predict model new_patients.csv
"""


LAPLACE_EXAMPLES = """
\b
Examples:
  tfp-bfl run --algorithm fed_opt --output averaged
  tfp-bfl laplace averaged --structure last_layer --output with_posterior
  tfp-bfl predict with_posterior scans/
  tfp-bfl clients remove with_posterior 3 --output without_3
"""


LAST_LAYER_EXAMPLES = """
\b
Examples:
  tfp-bfl run --dataset diabetes --model mlp --algorithm fed_opt --output net
  tfp-bfl last-layer net --output exact
  tfp-bfl predict exact new_patients.csv
  tfp-bfl clients remove exact 3 --output without_3
"""


DRIFT_EXAMPLES = """
\b
Examples:
  tfp-bfl drift hospitals_run new_patients.csv
  tfp-bfl drift my_run scans/ --level 0.001

\b
Exit status: 0 if no drift is found; 3 if drift is found; 2 on bad input.
"""
DRIFT_FOUND = 3


def _num_samples(default: str) -> Any:
    words = f"Weight samples of a prediction.  [default: {default}]"
    return click.option("--num-samples", type=int, metavar="NUMBER", help=words)


_seed = click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), metavar="NUMBER", help="Random seed of the samples.  [default: 0]"
)


@click.command("export", epilog=EXPORT_EXAMPLES)
@click.argument("run", metavar="RUN")
@click.argument("path", metavar="PATH")
@click.option("--tflite", is_flag=True, help="One file for TensorFlow Lite, its weight samples drawn now.")
@click.option(
    "--client",
    type=click.IntRange(0, 2**31 - 1),
    metavar="NUMBER",
    help="The own model of a client, of a run of meta_vd; if not given the one for all.",
)
@_num_samples("20; for a calibrated model the number of its calibration")
@_seed
@functools.partial(code_options, purpose=" for --client")
def export_model(run: str, path: str, tflite: bool, client: int | None, code: dict[str, str], **drawn: Any) -> None:
    """Write the SavedModel of a run to PATH; or with --tflite a file for devices without TensorFlow."""
    import tfp_bfl as bfl
    from tfp_bfl.export.paths import new_file, new_folder

    options = {name: value for name, value in drawn.items() if value is not None}
    if options and not tflite:
        raise InvalidArgument(
            f"--{next(iter(options)).replace('_', '-')} is for --tflite: who calls a SavedModel says it then."
        )
    if code and client is None:
        raise InvalidArgument(f"--{next(iter(code))} is for --client: a SavedModel is copied without its code.")
    found = bfl.export.find(run)  # Early, as it needs no TensorFlow.
    if options:
        from tfp_bfl.app.one_run.predict import check_draws

        check_draws(bfl.export.read_info(found), options)
    (new_file if tflite else new_folder)(path)
    source: Any = run
    info = None
    if client is not None:
        from tfp_bfl.app.one_run.after import client_model

        source, info = client_model(run, client, code)
    if tflite:
        bfl.export.save_tflite(source, path, **options)
        click.echo(f"{path} predicts with TensorFlow Lite's own operations.")
        return
    bfl.export.save(source, path, info)
    click.echo(f"{path} predicts with uncertainty; {path}/model_card.md says what it is and how to call it.")


@click.command("predict", epilog=PREDICT_EXAMPLES)
@click.argument("model", metavar="SAVEDMODEL")
@click.argument("images", metavar="FILES...", nargs=-1, required=True)
@_num_samples("20; for a calibrated model the number of its calibration")
@_seed
@click.option(
    "--max-uncertainty",
    type=float,
    metavar="LIMIT",
    help="Abstention threshold on the entropy (0 to 1), or what the calibration uses; on the sd in regression.",
)
@click.option(
    "--separator", metavar="TEXT", help="Column separator of .csv files; default: the separator of the header."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Format of the output; csv and json have all digits.",
)
def predict_images(model: str, images: tuple[str, ...], max_uncertainty: float | None, form: str, **drawn: Any) -> int:
    """Predict images or rows of a table with uncertainty.

    FILES are image files, folders of them or .npz archives, with images of the model's size; or tables with the columns
    that the model was trained on. SAVEDMODEL is a folder written by export, or the folder of a run. The method and the
    posterior temperature of the model are stated above a table, and for csv and json on the standard error.
    """
    from tfp_bfl.app.one_run.predict import FORMATS, predict, stated_by

    options = {name: value for name, value in drawn.items() if value is not None}
    predictions = predict(model, list(images), max_uncertainty=max_uncertainty, **options)
    if stated := stated_by(model):
        click.echo(f"{stated}\n" if form == "table" else f"tfp-bfl: {stated}", err=form != "table")
    click.echo(FORMATS[form](predictions))
    for note in predictions.notes:
        click.echo(f"tfp-bfl: {note}", err=True)
    for name, reason in predictions.failures:
        click.echo(f"tfp-bfl: {name} {reason}.", err=True)
    return 1 if predictions.failures else 0


@click.command("calibrate", epilog=CALIBRATE_EXAMPLES)
@click.argument("run", metavar="RUN")
@click.argument("path", metavar="PATH")
@click.option("--accuracy", type=float, metavar="SHARE", help="Accuracy on retained new examples.  [default: 0.95]")
@click.option("--coverage", type=float, metavar="SHARE", help="Fraction of examples to retain, instead of an accuracy.")
@click.option(
    "--confidence",
    type=float,
    metavar="SHARE",
    help="Confidence in that accuracy, and in the coverage of a client's sets.  [default: 0.9]",
)
@click.option("--by", metavar="NAME", help="Measure of the threshold: entropy or epistemic.  [default: entropy]")
@click.option(
    "--sets",
    "set_coverage",
    type=float,
    metavar="SHARE",
    help="Coverage of the prediction sets.  [default: 0.9]",
)
@click.option(
    "--set-score",
    metavar="NAME",
    help="Score of the prediction sets: probability, aps or raps:PENALTY.  [default: probability]",
)
@click.option(
    "--each-client",
    is_flag=True,
    help="Find prediction sets for each client that the data name too, and for new clients.",
)
@click.option("--figure", metavar="FILE", help="File for a figure of risk and threshold by coverage.")
@in_formats
def calibrate_model(run: str, path: str, figure: str | None, **given: Any) -> Record:
    """Write the SavedModel of a run to PATH, with an abstention threshold from the run's held-out examples."""
    from tfp_bfl.app.one_run.calibrate import calibrate, clients_in_words

    result = calibrate(run, path, figure=figure, **{name: x for name, x in given.items() if x is not None})
    if result.limit is None:
        click.echo(
            f"{path} never abstains: no threshold has accuracy {result.at_least:g} with confidence "
            f"{result.confidence:g}. From {result.number:,} held-out examples {result.best_accuracy:g} can be "
            f"promised, keeping {result.best_coverage:.0%} of them: --accuracy {result.best_accuracy:g}."
        )
    else:
        bound = (
            "" if result.at_least is None else f" (on new examples >= {result.at_least:g} at {result.confidence:.0%})"
        )
        click.echo(
            f"{path} abstains if the {result.by} exceeds {result.limit:.4g}: coverage {result.coverage:.1%}, accuracy "
            f"{result.accuracy:.4f}{bound}, from {result.number:,} held-out examples."
        )
    click.echo(
        f"softmax temperature {result.temperature:.3g}; prediction sets: {result.set_score} >= {result.set_limit:.4g}, "
        f"coverage >= {result.set_coverage:.0%}."
    )
    if given["each_client"]:
        new = result.unseen_set_limit
        of_new = "too few clients for a bound" if new is None else f"{result.set_score} >= {new:.4g}"
        click.echo(
            f"Sets of each client: coverage >= {result.set_coverage:.0%} with confidence {result.confidence:.0%}, an "
            f"approximation that is worse with few clients; clients never seen: {of_new}."
        )
    if result.clients:
        click.echo(clients_in_words(result.clients))
    return lambda: {"model": path, **result._asdict()}


def _after_training(algorithm: str, **words: Any) -> Any:
    """Return a command that is `run --algorithm ALGORITHM --start RUN`."""

    @in_formats
    def command(run: str, code: dict[str, str], **given: Any) -> Record:
        return find_posterior(algorithm, run, code, given)

    command.__doc__ = words.pop("words")
    output = click.option("--output", required=True, metavar="FOLDER", help="The new folder; RUN itself stays.")
    with_options = after_options(algorithm)(output(code_options(command)))
    return click.command(algorithm.replace("_", "-"), **words)(click.argument("run", metavar="RUN")(with_options))


laplace_model = _after_training(
    "laplace",
    epilog=LAPLACE_EXAMPLES,
    words="""Write a run with a posterior at its weights to a new folder: Laplace's approximation by one more round.

    RUN is a complete run that trains point weights, such as one of --algorithm fed_opt.
    """,
)
last_layer_model = _after_training(
    "last_layer",
    epilog=LAST_LAYER_EXAMPLES,
    words="""Write a run with the exact posterior of its last layer to a new folder, from sums of its clients.

    RUN is a complete run that trains point weights, such as one of --algorithm fed_opt. The layers below the last one
    stay as they are. For regression the posterior is exact after one message from each client.
    """,
)


def find_posterior(algorithm: str, start: str, code: dict[str, str], given: dict[str, Any]) -> Record:
    """Find the posterior of an algorithm at the weights of a complete run, and show what was found."""
    options = check_after(algorithm, {name: x for name, x in given.items() if x is not None and name != "output"})
    from tfp_bfl.app.one_run import after  # Late, as it imports TensorFlow: a bad value is answered at once.

    output = given.get("output") or after.free_folder(start, algorithm)
    summary = after.find_posterior(start, output, options, code)
    _show_posterior(summary, output)
    return lambda: {"run": str(output), **summary}


def scores_in_words(summary: dict[str, Any], prefix: str = "") -> str:
    """Return the scores of a summary on the test set, of names that begin with `prefix`; "" if there are none."""
    names = {"accuracy": "accuracy", "NLL": "test_nll", "ECE": "ece", "RMSE": "rmse"}
    scores = {label: summary[prefix + name] for label, name in names.items() if prefix + name in summary}
    return "  ".join(f"{label} {value:.4f}" for label, value in scores.items())


def _show_posterior(summary: dict[str, Any], output: str) -> None:
    click.echo(scores_in_words(summary))
    if linearised := scores_in_words(summary, "linearised_"):
        click.echo(f"linearised: {linearised}")
    if "head" in summary:
        click.echo(
            f"head {summary['head']}; log marginal likelihood {summary['log_marginal_likelihood']:.1f} nats; "
            if "log_marginal_likelihood" in summary
            else f"head {summary['head']}; ",
            nl=False,
        )
        click.echo(f"softmax temperature {summary['softmax_temperature']:.3g} of the examples that clients hold back")
        return click.echo(f"{output} holds the clients' sums and its saved_model.")
    stddevs = ", ".join(f"{x:.3g}" for x in summary["prior_stddev"])
    noise = f"noise standard deviation {summary['noise_stddev']:.4g}; " if "noise_stddev" in summary else ""
    click.echo(
        f"{noise}prior standard deviation {stddevs}; log marginal likelihood "
        f"{summary['log_marginal_likelihood']:.1f} nats; {summary['effective_parameters']:.1f} effective parameters"
    )
    click.echo(f"posterior temperature {summary['temperature']:g}: {summary['temperature_by']}")
    click.echo(f"{output} holds the clients' sums and its saved_model.")


@click.command("drift", epilog=DRIFT_EXAMPLES)
@click.argument("run", metavar="RUN")
@click.argument("paths", metavar="FILES...", nargs=-1, required=True)
@click.option(
    "--level",
    type=float,
    default=0.01,
    show_default=True,
    metavar="SHARE",
    help="Probability of finding drift where there is none, over all rows.",
)
@click.option(
    "--separator", metavar="TEXT", help="Column separator of .csv files; default: the separator of the header."
)
@in_formats
def find_drift(run: str, paths: tuple[str, ...], **options: Any) -> tuple[Record, int]:
    """Compare FILES with the training data of a run: each feature, and the scores of the model.

    FILES are as of predict. Features are compared with histograms that the run recorded of all clients together, by a
    permutation test for fewer than 100 examples and the chi-square test for more; p-values are adjusted for the number
    of rows (Holm).
    """
    from tfp_bfl.app.one_run.drift import drift

    report = drift(run, list(paths), **options)
    width = max(len("feature"), *(len(row.name) for row in report.rows))
    click.echo(
        f"{report.number:,} examples, {report.of_training:,} in training; scores against {report.reference}; level "
        f"{report.level:g} over all {len(report.rows)} rows (Holm)"
    )
    click.echo(f"{'feature':<{width}}  distance   p-value  drift")
    for row in report.rows:
        verdict = "yes" if row.found else "too few" if row.too_few else "no"
        click.echo(f"{row.name:<{width}}  {row.distance:8.3f}  {row.p_value:8.2g}  {verdict}")
    few = sum(row.too_few for row in report.rows)
    if few:
        enough = "no number at this level" if report.needed is None else f"{report.needed:,} examples"
        click.echo(f"Too few examples to decide in {few} of the rows: {enough} would do.")
    for name, reason in report.failures:
        click.echo(f"tfp-bfl: {name} {reason}.", err=True)
    return lambda: {"found": report.found, **report._asdict()}, DRIFT_FOUND if report.found else 0


@click.command("watch")
@click.argument("run", metavar="RUN")
@click.option("--port", type=click.IntRange(0, 65535), metavar="NUMBER", default=0, help="Port; a free one by default.")
def watch_run(run: str, port: int) -> None:
    """Show the page of RUN in a browser of this machine: its rounds while it trains, then its report.

    The page is read only and draws itself anew every five seconds. Ctrl-C ends the command, not the run.
    """
    from tfp_bfl.app.one_run.watch import watch

    shown = lambda address: click.echo(f"{address} shows {run}; Ctrl-C ends this page.")
    with contextlib.suppress(KeyboardInterrupt):
        watch(pathlib.Path(run), port, shown)


COMMANDS = (calibrate_model, export_model, find_drift, laplace_model, last_layer_model, predict_images, watch_run)
