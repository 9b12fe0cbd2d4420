"""Thousands of writers made from MNIST: a substitute for FEMNIST, which is not always available for download.

Each writer has a slant, a thickness and a size, and as many characters as EMNIST's writers have
(204 +- 80). Images are made when they are asked for: what is held is MNIST itself and two numbers an example.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

import tfp_bfl as bfl

MEAN_SIZE, SD_SIZE, LEAST, MOST = 204, 80, 20, 480


class StyledDigits:
    """Images [N, 28, 28, 1] uint8, an array of NumPy as far as `tfp_bfl.data.Source` asks: shape, dtype, indexing."""

    dtype = np.dtype(np.uint8)

    def __init__(self, digits: np.ndarray, which: np.ndarray, writer: np.ndarray, styles: np.ndarray):
        self._digits, self._which, self._writer, self._styles = digits, which, writer, styles
        self.shape = (len(which), 28, 28, 1)

    def __len__(self) -> int:
        return len(self._which)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        rows = np.asarray(rows)
        images = self._digits[self._which[rows], ..., 0]
        styles = self._styles[self._writer[rows]]
        return np.stack([restyle(image, *style) for image, style in zip(images, styles)])[..., np.newaxis]


def restyle(image: np.ndarray, slant: float, thickness: float, size: float) -> np.ndarray:
    """Return a digit [28, 28] in a writer's hand.

    Args:
      slant: columns that the digit leans to the right for each row upwards.
      thickness: above 0 strokes grow, below 0 they shrink: the weight of a 3 x 3 maximum or minimum.
      size: of the digit, 1 as it is.
    """
    centre = np.full(2, 13.5)
    back = np.array([[1 / size, 0.0], [slant / size, 1 / size]])
    moved = ndimage.affine_transform(image.astype(np.float32), back, centre - back @ centre, order=1)
    extreme = ndimage.grey_dilation(moved, 3) if thickness > 0 else ndimage.grey_erosion(moved, 3)
    share = min(abs(thickness), 1.0)
    return np.clip((1 - share) * moved + share * extreme, 0, 255).astype(np.uint8)


def writers(num_writers: int, seed: int) -> bfl.data.Clients:
    """Return clients, each a writer."""
    mnist = bfl.data.load("mnist")
    rng = np.random.default_rng([seed, 6])
    styles = np.stack(
        [rng.normal(0, 0.25, num_writers), rng.normal(0, 0.4, num_writers), rng.uniform(0.75, 1.15, num_writers)], 1
    )
    sizes = np.clip(np.rint(rng.normal(MEAN_SIZE, SD_SIZE, num_writers)), LEAST, MOST).astype(int)
    which = rng.integers(mnist.num_examples, size=sizes.sum())
    writer = np.repeat(np.arange(num_writers), sizes)
    images = StyledDigits(mnist.features, which, writer, styles)
    source = bfl.data.Source("mnist_writers", "train", images, mnist.labels[which], mnist.class_names)  # type: ignore[arg-type]
    return bfl.data.Clients(source, np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))


def unseen_writers(num_writers: int, num_examples: int, seed: int) -> bfl.data.Source:
    """Return a test set from MNIST's test digits by writers that are not clients."""
    mnist = bfl.data.load("mnist", split="test")
    rng = np.random.default_rng([seed, 7])
    styles = np.stack(
        [rng.normal(0, 0.25, num_writers), rng.normal(0, 0.4, num_writers), rng.uniform(0.75, 1.15, num_writers)], 1
    )
    which, writer = rng.permutation(mnist.num_examples)[:num_examples], rng.integers(num_writers, size=num_examples)
    images = StyledDigits(mnist.features, which, writer, styles)[np.arange(num_examples)]
    return bfl.data.Source("mnist_writers", "test", images, mnist.labels[which], mnist.class_names)
