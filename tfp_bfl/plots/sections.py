"""The sections of a report: what each shows, and how to read it."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from tfp_bfl.plots import score_tables, tables
from tfp_bfl.plots.data_figures import are_images, client_labels, extremes
from tfp_bfl.plots.figures import (
    regression_figures,
    reliability_diagram,
    retention_comparison,
    retention_curves,
    uncertainty_density,
)
from tfp_bfl.plots.learning import learning_comparison
from tfp_bfl.plots.page import Example, Gallery, Picture, Section, picture, uri
from tfp_bfl.plots.results import RunResults, run_figures
from tfp_bfl.plots.score_tables import Repeated

RELIABILITY = (
    "Bars that end on the dashed line mean that accuracy equals confidence. Lower bars mean overconfidence, higher "
    "bars underconfidence. The range about the line is two standard deviations of chance: wide in bins of few examples."
)
# The figures of a regression, by their headings, and how to read each.
_OF_NUMBERS = {"predicted_against_true": "Predictions", "interval_coverage": "Coverage"}
_OF_NUMBERS["error_retention"] = "RMSE and coverage"
_HOW_OF_NUMBERS = (
    "Each dot is an example of the test set. Nine of ten intervals should reach the dashed line.",
    "A line on the diagonal means that observed coverage equals nominal coverage; below it intervals are too narrow, "
    "above it too wide. The band is two standard deviations of chance.",
    "A line that falls to the left means that the uncertainty detects large errors: the RMSE is lower on the examples "
    "of lower uncertainty.",
)


def sections(
    runs: Sequence[RunResults], other: str, drawn: Mapping[str, Figure] | None = None, repeated: Sequence[Repeated] = ()
) -> Iterator[Section]:
    """Yield the sections on runs, of classes, numbers or an edge, in the order of the page."""
    single, drawn = len(runs) == 1, drawn or {}
    costs = tables.costs(runs)
    how = f"As far as the run{'' if single else 's'} recorded them."
    spent = [Section(costs.title, how, tables=[costs], is_wide=not single)] if costs.rows else []
    if repeated:
        yield from _over_seeds(repeated)
    if not single:
        yield from _scores(runs, beside=bool(repeated))
        yield from spent
    yield from _baselines(runs)
    if any(run.rounds for run in runs):
        yield _learning(runs, drawn.get("learning_curve"))
    of_numbers, of_edge = any(run.numbers is not None for run in runs), runs[0].sections
    if of_numbers:
        yield from _regression(runs, drawn)
    elif of_edge is not None:
        yield from of_edge
    else:
        yield from _of_classes(runs, drawn)
    yield from _client_scores(runs)
    if not of_numbers and of_edge is None:
        yield from _clients(runs, drawn.get("client_labels"))
    outside = [_out_of_distribution(runs, other)] if any(run.out_of_distribution for run in runs) else []
    if of_numbers:
        yield from outside
    if single:
        yield from spent
        further = tables.results(runs)
        if further.rows:
            yield Section("Further results", "All other scores of the final model.", tables=[further])
    if not of_numbers and of_edge is None:
        yield from outside
        yield from _examples(runs)
    yield from _records(runs)


def _of_classes(runs: Sequence[RunResults], drawn: Mapping[str, Figure]) -> Iterator[Section]:
    single = len(runs) == 1
    if single:
        words, of_classes = tables.of_classes(runs[0])
        yield Section("Classes", words, tables=of_classes)
    yield _retention(runs, drawn.get("retention_curves"))
    name = "reliability_diagram"
    figures = [drawn.get(name) or reliability_diagram(run.probabilities, run.labels) for run in runs]
    heading = f"Reliability diagram{'' if single else 's'}"
    yield Section(heading, RELIABILITY, pictures=_each(runs, figures), is_wide=not single)


def _each(runs: Sequence[RunResults], figures: Sequence[Figure]) -> list[Picture]:
    """Return a picture for each run, with its name where there are several."""
    return [picture(figure, run.name if len(runs) > 1 else "") for run, figure in zip(runs, figures)]


def _over_seeds(repeated: Sequence[Repeated]) -> Iterator[Section]:
    """Return the section on all seeds; figures and the other sections are of one."""
    keys = score_tables.keys_of(repeated)
    yield Section(
        "Results over seeds",
        "On the test set: mean ± standard deviation over the seeds. Bold: better than every group that is not bold; "
        "the 95 % intervals of these paired differences over the same seeds exclude 0. Learning curves are means over "
        "the seeds, with bands of 95 % intervals (Student's t); the other sections show the first seed.",
        tables=[score_tables.scores(repeated, keys)],
        is_wide=True,
    )
    if len(repeated) > 1:
        yield Section(
            f"Differences to {repeated[0].name}",
            "Paired by seed: mean and 95 % interval (Student's t). Bold: the interval excludes 0. A dash: fewer than "
            "two common seeds.",
            tables=[score_tables.differences(repeated, keys)],
            is_wide=True,
        )


def _scores(runs: Sequence[RunResults], beside: bool) -> Iterator[Section]:
    if not beside:
        how = "On the test set, one seed each. Use `--seeds 0..4` for intervals of the differences."
        yield Section("Results", how, tables=[tables.results(runs)], is_wide=True)
    differing = tables.settings(runs, differing=True)
    how = "All other options are the same." if differing.rows else "The runs have the same options."
    yield Section("Options that differ", how, tables=[differing] if differing.rows else [], is_wide=True)


def _baselines(runs: Sequence[RunResults]) -> Iterator[Section]:
    table = tables.baselines(runs)
    if table.rows:
        how = (
            "The model beside predictions without a network from the same training data: a useful model is better than "
            "each. The linear model, for rows of a table, is logistic or linear regression on the rows of all clients; "
            "with client intercepts, each client has an intercept of its own, and the model knows whose each row is."
        )
        yield Section("Baselines", how, tables=[table], is_wide=len(runs) > 1)


def _learning(runs: Sequence[RunResults], drawn: Figure | None) -> Section:
    first = "Accuracy should rise and the loss fall" if runs[0].numbers is None else "Error and loss should fall"
    how = f"{first} until both level off. Posterior standard deviations that fall to zero mean a collapsed posterior."
    if len(runs) == 1:
        return Section("Learning curve", how, pictures=[picture(drawn or run_figures(runs[0])["learning_curve"])])
    figure = drawn or learning_comparison({run.name: run.rounds for run in runs if run.rounds})
    return Section("Learning curves", how, pictures=[picture(figure)])


def _retention(runs: Sequence[RunResults], drawn: Figure | None) -> Section:
    errors = "A line that rises to the left means that the uncertainty detects errors"
    how = f"{errors}: accuracy is higher on the examples of lower uncertainty."
    if len(runs) == 1:
        figure = drawn or retention_curves(runs[0].probabilities, runs[0].labels, runs[0].uncertainties)
    else:
        models = {run.name: (run.probabilities, run.labels, run.uncertainties["entropy"]) for run in runs}
        figure = retention_comparison(models)
    return Section("Retention curves", how, pictures=[picture(figure)])


def _regression(runs: Sequence[RunResults], drawn: Mapping[str, Figure]) -> Iterator[Section]:
    """Return the section on runs that predict numbers."""
    of_numbers = [(run.numbers, run.labels) for run in runs if run.numbers is not None]
    figures = [drawn] if len(runs) == 1 and drawn else [regression_figures(*own) for own in of_numbers]
    for (name, heading), how in zip(_OF_NUMBERS.items(), _HOW_OF_NUMBERS):
        yield Section(heading, how, pictures=_each(runs, [own[name] for own in figures]), is_wide=len(runs) > 1)


def _out_of_distribution(runs: Sequence[RunResults], other: str) -> Section:
    names = {
        **{"entropy": "entropy", "stddev": "standard deviation", "epistemic": "epistemic part"},
        **{"mutual_information": "mutual information", "unusual": "score of unusual examples"},
    }
    compared = [run for run in runs if run.out_of_distribution]
    is_recorded = lambda run, key: all(x is not None for x in tables.of_both(run, key))
    quantities = {key: name for key, name in names.items() if any(is_recorded(run, key) for run in compared)}
    pictures = []
    for run in compared:
        for quantity, name in quantities.items():
            inside, outside = tables.of_both(run, quantity)
            if inside is None or outside is None or not (np.any(inside) or np.any(outside)):
                continue  # A deterministic model has no epistemic part.
            upper, outer = 1.0 if quantity == "entropy" else None, other or "elsewhere"
            options: dict[str, Any] = {"quantity": name, "name_in": "test set", "name_out": outer, "upper": upper}
            figure = uncertainty_density(inside, outside, **options)
            pictures.append(picture(figure, run.name if len(runs) > 1 else ""))
    sizes = [(len(run.labels), len(next(iter((run.out_of_distribution or {}).values())))) for run in compared]
    base = ", ".join(sorted({f"{outside / (inside + outside):.2f}" for inside, outside in sizes}))
    return Section(
        "Out of distribution",
        f"Scores of examples from {other or 'elsewhere'}, on which the model was not trained: the less the two "
        "histograms overlap, the better. AUROC is the probability that such an example has the higher score (1 is "
        f"perfect, 0.5 is chance), with its 95 % interval; AUPR by chance is {base}.",
        pictures=pictures,
        tables=[tables.out_of_distribution_scores(compared, quantities)],
        is_wide=True,
    )


def _clients(runs: Sequence[RunResults], drawn: Figure | None) -> Iterator[Section]:
    groups = _alike(runs)
    labels = lambda run: client_labels(run.label_counts, run.class_names, run.client_names)
    name = lambda group: ", ".join(run.name for run in group) if len(groups) > 1 else ""
    how = "Each column is a client, each row a class: the more alike the columns, the more alike the clients' data."
    if len(groups) == 1 and len(runs) > 1:
        how += " All runs have the same clients."
    if groups:
        pictures = [picture(drawn or labels(group[0]), name(group)) for group in groups]
        yield Section("Labels of the clients", how, pictures=pictures, is_wide=len(groups) > 1)


def _alike(runs: Sequence[RunResults]) -> list[list[RunResults]]:
    """Return the runs with numbers of labels in groups with the same examples on the clients."""
    groups: dict[object, list[RunResults]] = {}
    for run in runs:
        if run.label_counts is not None:
            counts = np.asarray(run.label_counts, np.float64)
            groups.setdefault((*run.class_names, counts.shape, counts.tobytes()), []).append(run)
    return [*groups.values()]


def _client_scores(runs: Sequence[RunResults]) -> Iterator[Section]:
    """Yield the section on the scores of single clients, or on their sizes where no test rows belong to clients."""
    scored = [run for run in runs if run.summary.get("clients")]
    if not scored:
        groups = [own[0] for own in _alike([run for run in runs if run.numbers is None])]
        title = lambda run: run.name if len(groups) > 1 else "Clients"
        content = [tables.client_sizes(run)._replace(title=title(run)) for run in groups]
        how = (
            "No test rows belong to a client, so that there are no scores of single clients. --evaluate-clients "
            "gives the clients of an artificial partition a part of the test set."
        )
        if groups:
            yield Section("Clients", how + _cut(groups), tables=content)
        return
    how = (
        "Each client on its own test rows, worst first. Brackets: 95 % intervals (Wilson for proportions, Student's t "
        "for the RMSE). p: Fisher's exact test of the client against all others, two-sided, of the right predictions "
        "or of the errors above the upper quartile, adjusted for the number of clients (Bonferroni)."
    )
    first = runs[0]
    if len(runs) > 1:
        content = tables.clients_beside(scored)
    elif first.summary.get("adapted_clients"):
        adapted = tables.clients(first, "adapted_clients")._replace(title="After a step of adaptation")
        content = [tables.clients(first)._replace(title="Models of the clients"), adapted]
    else:
        content = [tables.clients(first)]
    if any("coverage" in row for run in scored for row in run.summary["clients"]):
        what = "intervals" if scored[0].numbers is not None else "prediction sets, calibrated on held-out examples"
        how += f" Coverage: of 90 % {what}."
    yield Section("Clients", how + _cut(scored), tables=content, is_wide=True)


def _cut(runs: Sequence[RunResults]) -> str:
    """Return a sentence on clients that the tables leave out; "" for none."""
    sizes = [len(run.summary.get("clients") or run.label_counts) for run in runs]  # type: ignore[arg-type]
    return f" The first {tables.MOST_CLIENTS} clients." if max(sizes) > tables.MOST_CLIENTS else ""


def _examples(runs: Sequence[RunResults]) -> Iterator[Section]:
    shown = [run for run in runs if run.features is not None and are_images(run.features)]
    extreme = lambda run: extremes(np.asarray(run.uncertainties["entropy"]), 8)
    groups = lambda run: [(title, [_example(run, i) for i in chosen]) for title, chosen in extreme(run)]
    if shown:
        yield Section(
            "Images of lowest and highest uncertainty",
            "Test images by predictive entropy (0 is certain, 1 is uniform). Images of low uncertainty should be easy "
            "to classify by eye, images of high uncertainty hard.",
            galleries=[Gallery(run.name if len(runs) > 1 else "", groups(run)) for run in shown],
            is_wide=True,
        )


def _example(run: RunResults, number: int) -> Example:
    p, truth = run.probabilities[number], int(run.labels[number])
    guess, names, data = int(p.argmax()), run.class_names, io.BytesIO()
    confidence = f"{100 * float(p[guess]):.0f}\u00a0%"
    image = run.features[number]  # type: ignore[index]
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(data, format="png", optimize=True)
    return Example(
        source=uri("image/png", data.getvalue()),
        alt=f"Test image {number} of the class {names[truth]}",
        guess=str(names[guess]),
        confidence=confidence,
        truth=str(names[truth]),
        is_right=guess == truth,
        entropy=f"{float(run.uncertainties['entropy'][number]):.3f}",
    )


def _records(runs: Sequence[RunResults]) -> Iterator[Section]:
    """Yield the sections of all settings and measurements."""
    single = len(runs) == 1
    settings = tables.settings(runs, differing=None if single else False)
    if settings.rows:
        own, common = ("Configuration", "The options of this run."), ("Common options", "Options of all runs.")
        yield Section(*(own if single else common), tables=[settings], is_folded=True)
    for run in runs:
        if run.rounds:
            heading = f"Rounds ({len(run.rounds)})" + ("" if single else f" of {run.name}")
            how = "One row per round. A dash: the round was not evaluated."
            yield Section(heading, how, tables=[tables.rounds(run)], is_folded=True)
