"""The images of a run with the lowest and the highest uncertainty, as a page holds them."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from tfp_bfl.plots.examples import extremes
from tfp_bfl.plots.page import Example, uri
from tfp_bfl.plots.results import RunResults


def galleries(run: RunResults, count: int = 8) -> list[tuple[str, list[Example]]]:
    """Return the test images with the lowest and the highest uncertainty, each group under its heading."""
    entropy = np.asarray(run.uncertainties["entropy"])
    return [(title, [_example(run, i) for i in chosen]) for title, chosen in extremes(entropy, count)]


def _example(run: RunResults, number: int) -> Example:
    p, truth = run.probabilities[number], int(run.labels[number])
    guess = int(p.argmax())
    confidence = f"{100 * float(p[guess]):.0f}\u00a0%"
    names: Sequence[str] = run.class_names
    return Example(
        source=_png(run.features[number]),  # type: ignore[index]
        alt=f"Test image {number} of the class {names[truth]}",
        guess=str(names[guess]),
        confidence=confidence,
        truth=str(names[truth]),
        is_right=guess == truth,
        entropy=f"{float(run.uncertainties['entropy'][number]):.3f}",
    )


def _png(image: np.ndarray) -> str:
    data = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(data, format="png", optimize=True)
    return uri("image/png", data.getvalue())
