import re
import warnings

import matplotlib
import numpy as np
import pytest
import scipy.integrate
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy import stats

from experiments.figures import accuracy_confidence
from tests.kit import refuses
from tfp_bfl import plots
from tfp_bfl.plots import style
from tfp_bfl.plots.forest import Estimate, forest_plot

NAMES = ["cat", "dog", "ship"]


def predictions(size=30, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet([0.7] * 3, size=size), rng.integers(0, 3, size), rng.uniform(size=size)


def row(number, evaluated=True, posterior=True):
    values = {"round": number, "train_seconds": 1.0, "seconds": 1.5, "nll": 2.0 / number, "kl": 3.0}
    if posterior:
        values.update(stddev_q05=0.001, stddev_median=0.002, stddev_q95=0.004)
    if evaluated:
        values.update(accuracy=1 - 0.5 / number, test_nll=2.2 / number, ece=0.1)
    return values


def draw(figure):
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    return figure


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in [axes.title, *axes.texts]]


def test_learning_curve_with_rounds_that_were_not_evaluated():
    figure = draw(plots.learning_curve([row(n, evaluated=n % 2 == 0) for n in range(1, 7)]))
    assert titles(figure) == ["Accuracy on the test set", "Negative log-likelihood", "Posterior standard deviations"]
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [2, 4, 6])
    np.testing.assert_array_equal(figure.axes[1].lines[1].get_xdata(), range(1, 7))
    assert figure.axes[2].get_yscale() == "log"


@pytest.mark.parametrize("last", [0.0031, 0.0046, 0.01])
def test_a_narrow_spread_has_few_and_plain_numbers_beside_it(last):
    rounds = [{"round": n, "stddev_median": value} for n, value in enumerate(np.geomspace(0.003, last, 15), 1)]
    axes = draw(plots.learning_comparison({"run": rounds})).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels(which="both")]
    low, high = axes.get_ylim()
    inside = [text for text in labels if text and low <= float(text) <= high]
    assert 2 <= len(set(inside)) == len(inside) <= 6


def test_learning_curve_leaves_out_panels_without_data():
    rounds = [row(n, posterior=False) for n in (1, 2)]
    assert len(draw(plots.learning_curve(rounds)).axes) == 2
    assert len(draw(plots.learning_curve([row(1)])).axes) == 3
    rounds = [{"round": 1, "nll": 1.0, "accuracy": None}, {"round": 2, "nll": float("nan")}]
    assert titles(draw(plots.learning_curve(rounds))) == ["Negative log-likelihood in training"]


def test_extremes_are_drawn():
    draw(plots.learning_curve([{**row(n), "stddev_q05": 0.0, "stddev_median": 0.0} for n in (1, 2)]))
    nothing = dict.fromkeys(("stddev_q05", "stddev_median", "stddev_q95"), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw(plots.learning_curve([{**row(n), **nothing} for n in (1, 2)]))
    assert figure.axes[2].get_yscale() == "linear"
    draw(plots.client_labels(np.ones((2, 2)), [r"$\frac{$", "<script>"]))  # Matplotlib would parse both.
    draw(plots.uncertain_examples(np.zeros((1, 4, 4, 1), np.uint8), [0], [[0.5, 0.3, 0.2]], [1.0], NAMES))


def test_reliability_diagram():
    p = np.array([[0.82, 0.18], [0.88, 0.12], [0.6, 0.4]])
    figure = draw(plots.reliability_diagram(p, [0, 1, 0], num_bins=10))
    # By hand: 2/3 * |0.5 - 0.85| + 1/3 * |1 - 0.6|, and the larger of the two gaps.
    assert titles(figure)[0] == "Calibration: ECE 0.367, MCE 0.400"
    draw(plots.reliability_diagram(*predictions()[:2]))
    draw(plots.reliability_diagram(p[:1], [0]))
    draw(plots.reliability_diagram(p, [0, 1, 0], over="classes"))


def test_retention_curves():
    p, y, u = predictions()
    figure = draw(plots.retention_curves(p, y, {"entropy": u, "cost in $ and $": -u}))
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert len(labels) == 3
    assert labels[0].startswith("entropy (area 0.")
    assert labels[2].startswith("random")


def test_accuracy_confidence():
    p, y, _ = predictions()
    figure = draw(accuracy_confidence({"one": p, "another in $": p[::-1]}, y))
    top, bottom = figure.axes
    assert top.get_legend_handles_labels()[1] == ["one", r"another in \$"]
    assert top.lines[0].get_ydata()[0] == pytest.approx(np.mean(p.argmax(1) == y))
    assert bottom.lines[0].get_ydata()[0] == 100
    sure = np.eye(3)[y]
    draw(accuracy_confidence({"always sure": sure, "never sure": np.full((30, 3), 1 / 3)}, y))
    draw(accuracy_confidence({str(i): p for i in range(9)}, y, title="many"))


@pytest.mark.parametrize(("clients", "classes"), [(1, 3), (10, 10), (100, 10), (3, 100), (1, 1)])
def test_client_labels(clients, classes):
    counts = np.arange(clients * classes).reshape(clients, classes)
    figure = draw(plots.client_labels(counts, [f"class {c}" for c in range(classes)]))
    assert figure.get_figheight() < 12
    picture = figure.axes[1].images[0].get_array()
    np.testing.assert_array_equal(picture, counts.T)


def test_client_labels_numbers_stand_out_from_their_cells():
    counts = np.arange(1, 11).reshape(2, 5)
    figure = draw(plots.client_labels(counts, NAMES[:1] * 5))
    for text in figure.axes[1].texts:
        opacity = int(text.get_text()) / 10
        cell = 1 + opacity * (np.array(to_rgb(style.BLUE)) - 1)
        # WCAG asks 3 of large letters, and more is not to be had at the shade where dark and light are alike.
        assert contrast(to_rgb(text.get_color()), cell) > 3.5


def contrast(*colors):
    """WCAG 2.1's ratio of two colours' relative luminances."""
    linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in map(np.asarray, colors)]
    dark, light = sorted(float(c @ [0.2126, 0.7152, 0.0722]) for c in linear)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("clients", [1, 10, 12, 13, 40, 41, 1000])
def test_client_sizes(clients):
    sizes = np.arange(clients) * 7
    figure = draw(plots.client_sizes(sizes))
    axes = figure.axes[0]
    if clients <= 40:
        np.testing.assert_array_equal([bar.get_height() for bar in axes.patches], sizes)
    else:
        np.testing.assert_array_equal(axes.patches[0].get_data().values, sizes)
    assert [t.get_text() for t in axes.texts] == ([str(size) for size in sizes] if clients <= 12 else [])
    assert titles(figure) == [f"Sizes of {clients:,} client{'s' * (clients > 1)}"]


@pytest.mark.parametrize("channels", [1, 3])
def test_uncertain_examples_shows_the_extremes(channels):
    p = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6], [0.4, 0.3, 0.3]])
    images = np.arange(4 * 4 * 4 * channels, dtype=np.uint8).reshape(4, 4, 4, channels)
    figure = plots.uncertain_examples(images, [0, 1, 2, 2], p, [0.3, 0.1, 0.4, 0.2], NAMES, count=1)
    assert [t for t in texts(draw(figure)) if t] == ["dog 70%\ncorrect", "ship 60%\ncorrect"]
    figure = plots.uncertain_examples(images, [0, 1, 2, 2], p, [0.3, 0.1, 0.4, 0.2], NAMES)
    assert sorted(t for t in texts(draw(figure)) if t)[1] == "cat 80%\ncorrect"
    assert "cat 40%\nlabel ship" in texts(figure)
    for other in (np.zeros((4, 7)), np.zeros((4, 8, 8, 3), np.float32), np.zeros((4, 8, 8, 5), np.uint8)):
        assert plots.uncertain_examples(other, [0, 1, 2, 2], p, [0.3, 0.1, 0.4, 0.2], NAMES) is None


def test_uncertainty_density_is_of_shares_in_common_bins():
    figure = draw(plots.uncertainty_density([0.0, 0.1, 0.1, 0.9], [0.9, 1.0], upper=1.0, num_bins=2, name_out="$ out"))
    filled = [patch.get_data() for patch in figure.axes[0].patches]
    np.testing.assert_allclose(filled[0].values, [0.75, 0.25])
    np.testing.assert_allclose(filled[2].values, [0.0, 1.0])
    for data in filled:
        np.testing.assert_allclose(data.edges, [0, 0.5, 1])
    # Of the eight pairs out wins seven and draws one; of the scores from 0.9 on two of three are out.
    assert titles(figure) == ["Entropy: AUROC 0.938, AUPR 0.833"]
    assert figure.axes[0].get_legend_handles_labels()[1] == ["in distribution (4)", r"\$ out (2)"]
    figure = draw(plots.uncertainty_density([0.0, 0.001], [0.002, 0.004], quantity="epistemic part"))
    assert figure.axes[0].get_xlim() == pytest.approx((0, 0.004))
    assert sum(figure.axes[0].patches[0].get_data().values) == pytest.approx(1.0)
    draw(plots.uncertainty_density([0.0, 0.0], [0.0]))


def test_learning_comparison_draws_what_each_run_has():
    runs = {"_one": [row(n) for n in (1, 2, 3)], "other in $": [row(n, posterior=False) for n in (1, 2)]}
    figure = draw(plots.learning_comparison(runs))
    assert [len(axes.lines[1].get_xdata()) for axes in figure.axes] == [2, 2, 0]
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [0.5, 0.75, 1 - 0.5 / 3])
    assert figure.axes[0].get_legend_handles_labels()[1] == [" _one", r"other in \$"]
    only = plots.learning_comparison({"a": [row(1, evaluated=False)], "b": [row(1, evaluated=False)]})
    assert titles(draw(only)) == ["Posterior standard deviations"]
    # A wide spread has few numbers beside it.
    wide = [{**row(n), "stddev_median": 10.0**-n} for n in range(1, 9)]
    axes = draw(plots.learning_comparison({"a": wide, "b": [row(1)]})).axes[2]
    assert 3 <= len([label for label in axes.get_yticklabels(which="both") if label.get_text()]) <= 12


def test_learning_curves_over_seeds_are_means_with_students_interval():
    """In the rounds that all seeds evaluated; two rounds by hand, sd sqrt(2) 0.1 of two seeds, t_1(0.975) = 12.706."""
    of = lambda *scores: [{"round": n, "accuracy": x} for n, x in enumerate(scores, 1)]
    figure = draw(plots.learning_comparison({"a $": [of(0.5, 0.7, None), of(0.7, 0.9, 1.0)], "b": of(0.4, 0.5)}))
    (axes,) = figure.axes
    np.testing.assert_allclose(np.array(axes.lines[0].get_xydata()), [[1, 0.6], [2, 0.8]])
    np.testing.assert_allclose(np.array(axes.lines[1].get_xydata()), [[1, 0.4], [2, 0.5]])
    band = axes.collections[0].get_paths()[0].vertices
    half, low = 12.7062 * np.sqrt(2) * 0.1 / np.sqrt(2), axes.get_ylim()[0]
    assert {*np.round(band[:, 1], 4)} == {*np.round([low, 0.6 + half, 0.8 + half], 4)}
    assert low < 0.4 and 0.9 < axes.get_ylim()[1] < 1  # All seeds are inside, the band is not.
    assert axes.get_legend_handles_labels()[1] == [r"a \$", "b", "95 % interval of the mean"]
    draw(plots.learning_comparison({"never in one round": [of(None, 0.5), of(0.5, None)], "b": of(0.4)}))
    refuses("needs at least one round", plots.learning_comparison, {"a": []})


def test_a_saved_figure_is_the_same_file_and_holds_its_texts(tmp_path):
    runs = {"Linear": [[row(1), row(2)], [row(1), row(3), row(2)]]}
    for name in ("a", "b"):
        style.save_all({name: plots.learning_comparison(runs)}, tmp_path, ["png", "pdf", "svg"])
    a, b = ([(tmp_path / f"{name}.{form}").read_bytes() for form in ("png", "pdf", "svg")] for name in ("a", "b"))
    assert a == b and a[0].startswith(b"\x89PNG") and b"/CreationDate" not in a[1] and b"<dc:date>" not in a[2]
    assert b"/Subtype /Type0" in a[1] and b"/FontFile2" in a[1] and b"/Type3" not in a[1]
    assert all(f">{text}</text>".encode() in a[2] for text in ("Linear", "round", "Accuracy on the test set"))
    style.save_all({"alone": plots.learning_comparison(runs)}, tmp_path, ["pdf"])
    assert (tmp_path / "alone.pdf").read_bytes() == a[1]
    with matplotlib.rc_context({"pdf.compression": 0}):
        style.save(plots.learning_comparison(runs), tmp_path / "c.pdf", "pdf")
    shown = re.sub(rb"\)\s[-\d.]+\s\(|\x00", b"", (tmp_path / "c.pdf").read_bytes())  # Without kerning.
    assert all(f"({text})".encode() in shown for text in ("Linear", "round", "Accuracy on the test set"))


def test_retention_comparison():
    p, y, u = predictions()
    figure = draw(plots.retention_comparison({"one": (p, y, u), "other": (p[:20], y[:20], u[:20])}))
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert [label.split(" (")[0] for label in labels] == ["one", "other"]
    assert figure.axes[0].lines[1].get_ydata()[-1] == pytest.approx(np.mean(p[:20].argmax(1) == y[:20]))


def test_lines_differ_in_colour_or_style():
    looks = [tuple(style.line(i).values()) for i in range(24)]
    assert len(set(looks)) == 24


def test_chain_traces_show_each_chain_and_say_whether_they_agree():
    rng = np.random.default_rng(0)
    alike, apart = rng.normal(size=(2, 400)), rng.normal([[0.0], [5.0]], size=(2, 400))
    figure = plots.chain_traces({"alike": alike, "apart": apart}, range(10, 410))
    first, shares, second, _ = figure.axes
    assert [len(line.get_xdata()) for line in first.lines] == [400, 400] and first.lines[0].get_xdata()[0] == 10
    np.testing.assert_array_equal(first.lines[1].get_ydata(), alike[1])
    for patch in shares.patches:  # Shares of a chain's own rounds add up to 1.
        widths = patch.get_xy()[:, 0]
        assert widths.max() < 0.2 and np.sum(widths[1:-1:2]) == pytest.approx(1)
    r_hat = [float(axes.get_title(loc="left").split("R-hat ")[1].split(",")[0]) for axes in (first, second)]
    assert r_hat[0] < 1.02 and r_hat[1] > 2


def test_labels_are_inside_the_figure_and_names_that_differ_at_their_end_stay_apart():
    names = [f"algorithm=distributed_consolidation,learning_rate={rate}" for rate in (0.01, 0.1)]
    figure = draw(plots.retention_comparison({name: predictions() for name in names}, "epistemic uncertainty"))
    labels = [axes.xaxis.label for axes in figure.axes] + [axes.yaxis.label for axes in figure.axes]
    for text in [*labels, *(text for legend in figure.legends for text in legend.get_texts())]:
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, text.get_text()
    assert len({text.get_text() for text in figure.legends[0].get_texts()}) == 2


def estimate(label, mean, **options):
    mean = np.array(mean, float)
    return Estimate(label, mean, mean - 1, mean + 1, **options)


def test_each_client_has_a_line_in_each_panel():
    estimates = [estimate("a", [1, 2]), estimate("b", [np.nan, 3]), estimate("pooled", [1.5, 2.5], is_pooled=True)]
    figure = forest_plot(["age", "dose"], estimates)
    first, second = figure.axes
    # Two artists for each finite estimate, and the line of the pooled one.
    assert (len(first.lines), len(second.lines)) == (5, 7)
    assert [text.get_text() for text in first.get_yticklabels()] == ["a", "b", "pooled"]
    assert first.get_title(loc="left") == "age"


P, Y, U = predictions(4)
IMAGES = np.zeros((4, 4, 4, 1), np.uint8)


@pytest.mark.parametrize(
    ("figure", "arguments", "options", "message"),
    [
        (plots.learning_curve, ([],), {}, "at least one round"),
        (plots.learning_curve, ([{"nll": 1.0}],), {}, "'round'"),
        (plots.learning_curve, ([{"round": 1}],), {}, "nothing to draw"),
        (plots.learning_comparison, ({},), {}, "needs at least one"),
        (plots.retention_comparison, ({},), {}, "needs at least one"),
        (plots.retention_curves, (P, Y, {}), {}, "at least one uncertainty"),
        (accuracy_confidence, ({}, Y), {}, "at least one model"),
        (plots.client_labels, (np.ones(3), NAMES), {}, "shape"),
        (plots.client_labels, (np.ones((0, 3)), NAMES), {}, "shape"),
        (plots.client_labels, (np.full((1, 3), -1), NAMES), {}, "not negative"),
        (plots.client_labels, (np.ones((2, 2)), NAMES), {}, "a name for each of the 2 classes"),
        (plots.client_sizes, (np.ones((2, 3)),), {}, "shape"),
        (plots.client_sizes, ([],), {}, "shape"),
        (plots.client_sizes, (["many"],), {}, "Numbers"),
        (plots.client_sizes, ([3, -1],), {}, "not negative"),
        (plots.client_sizes, ([3.0, np.nan],), {}, "finite"),
        (plots.uncertain_examples, (IMAGES[:3], Y, P, U, NAMES), {}, "an image for each"),
        (plots.uncertain_examples, (IMAGES, Y, P, U, NAMES[:2]), {}, "a name for each"),
        (plots.uncertain_examples, (IMAGES, Y, P, U, NAMES), {"count": 0}, "count is 0, but must be"),
        (plots.uncertainty_density, ([0.1], [1.2]), {"upper": 1.0}, r"lie in \[0, 1\], but they span \[0.1, 1.2\]"),
        (plots.uncertainty_density, ([-0.1], [0.2]), {}, r"must lie in \[0, infinity\]"),
        (plots.uncertainty_density, ([], [0.2]), {}, "scores_in must have at least one"),
        (plots.uncertainty_density, ([0.1], [0.2]), {"num_bins": 0}, "num_bins is 0, but must be"),
        *[
            (forest_plot, x, {}, "A forest plot needs")
            for x in (([], []), (["a"], []), (["a"], [estimate("x", [1, 2])]))
        ],
        (plots.chain_traces, ({},), {}, "nothing to draw"),
        (plots.chain_traces, ({"nll": np.zeros(9)},), {}, r"shape \[M, R\]"),
        (plots.chain_traces, ({"nll": np.zeros((2, 3))},), {}, "at least 4"),
        (plots.chain_traces, ({"nll": np.full((2, 9), np.nan)},), {}, "not finite"),
        (plots.chain_traces, ({"nll": np.zeros((2, 9))}, range(8)), {}, "9 rounds, but 8"),
    ],
)
def test_refused(figure, arguments, options, message):
    refuses(message, figure, *arguments, **options)


VALUES = np.random.default_rng(0).normal(0.1, 0.01, size=30)
CURVES = {"Epanechnikov": ("epanechnikov", 0.004), "Gaussian in $": ("gaussian", 0.003)}


def curve(figure, label):
    return next(line for line in figure.axes[0].lines if line.get_label() == label).get_xydata().T


def test_kernel_density_is_a_density_and_scipy_s():
    figure = draw(plots.kernel_density(VALUES, CURVES, {"mean": VALUES.mean()}, title="$w"))
    x, y = curve(figure, "Epanechnikov")
    assert scipy.integrate.trapezoid(y, x) == pytest.approx(1, abs=1e-4)
    x, y = curve(figure, r"Gaussian in \$")
    wanted = stats.gaussian_kde(VALUES, 0.003 / VALUES.std(ddof=1))(x)
    np.testing.assert_allclose(y, wanted, rtol=1e-8, atol=1e-8 * wanted.max())
    assert figure.axes[0].get_title(loc="left") == r"\$w"
    np.testing.assert_array_equal(curve(figure, "mean")[0], 2 * [VALUES.mean()])
    # The rug has every client below zero.
    (rug,) = (c for c in figure.axes[0].collections if c.get_label() == "clients")
    lines = np.array(rug.get_segments())
    np.testing.assert_allclose(lines[:, 0, 0], VALUES)
    assert (lines[..., 1] < 0).all()


def test_kernel_density_of_extremes():
    many = {str(i): ("epanechnikov", 0.001 * i) for i in range(1, 9)}
    for values, curves, marks in (
        ([1, 2], {"narrow": ("gaussian", 1e-6)}, {}),
        (1e-12 * VALUES, {"wide": ("epanechnikov", 10.0)}, {}),
        (VALUES, many, dict.fromkeys("abcde", 0)),
    ):
        figure = draw(plots.kernel_density(values, curves, marks))
        for name in (*curves, *marks):
            assert np.isfinite(curve(figure, name)).all()


@pytest.mark.parametrize(
    ("values", "curves", "marks", "message"),
    [
        (np.ones([2, 2]), CURVES, {}, r"shape \[S\]"),
        ([1.0, np.nan], CURVES, {}, "finite numbers"),
        (["a", "b"], CURVES, {}, "finite numbers"),
        ([2.0, 2.0], CURVES, {}, "clients who differ"),
        ([], CURVES, {}, "clients who differ"),
        (VALUES, {}, {}, "at least one curve"),
        (VALUES, {"a": ("epanechnikof", 1.0)}, {}, "did you mean 'epanechnikov'"),
        (VALUES, {"a": ("gaussian", 0.0)}, {}, "bandwidth is 0.0, but must be"),
        (VALUES, CURVES, {"mode": np.nan}, "'mode': nan"),
    ],
)
def test_kernel_density_of_bad_input(values, curves, marks, message):
    refuses(message, plots.kernel_density, values, curves, marks)
