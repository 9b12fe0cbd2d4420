"""Images of any size, resized to one."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tfp_bfl.data.sources import Source
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.faces import tf

Size: TypeAlias = tuple[int, int]
_BATCH = 256
# Of pixels of an image that is decoded to be resized.
MOST_PIXELS = 2**26
# Of the height or width to which images are resized.
_MOST_SIDE = 4096


def parse_size(value: str | Sequence[int] | None) -> Size | None:
    """Return height and width, two numbers or text such as "224,224"; None for None."""
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, (tuple, list)) else []
    numbers = [int(x) for x in parts if str(x).strip().isdecimal()]
    if len(parts) != 2 or len(numbers) != 2 or min(numbers) < 1 or max(numbers) > _MOST_SIDE:
        must = f"two whole numbers of 1 to {_MOST_SIDE:,}, HEIGHT,WIDTH, such as 224,224"
        raise InvalidArgument(f"image_size is {shown(value)}, but must be {must}.")
    return numbers[0], numbers[1]


def resized(images: np.ndarray, size: Size) -> np.ndarray:
    """Resize images [N, height, width, C] bilinearly, with antialiasing (`tf.image.resize`); bytes stay bytes."""
    if images.shape[1:3] == size:
        return images
    found = np.empty((len(images), *size, images.shape[3]), images.dtype)
    for start in range(0, len(images), _BATCH):
        part = slice(start, start + _BATCH)
        values = tf.image.resize(images[part], size, antialias=True).numpy()
        found[part] = np.rint(values) if images.dtype == np.uint8 else values
    return found


def resizing(size: Size) -> Callable[[Any, Any], Any]:
    """Return the function that resizes an image of bytes beside a label, in a graph, as `resized` does."""

    def pair(image: Any, label: Any) -> Any:
        return tf.cast(tf.round(tf.image.resize(image, size, antialias=True)), tf.uint8), label

    return pair


def at_size(source: Source, size: Size | None) -> Source:
    """Return the source with its images resized; the same for None."""
    if size is None:
        return source
    if source.features.ndim != 4:
        raise InvalidArgument(f"image_size belongs to images, and {source.name} has none: leave it out.")
    return dataclasses.replace(source, features=resized(source.features, size))
