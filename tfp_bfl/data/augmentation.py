"""Random changes of images that leave their labels, as functions of a seed."""

from collections.abc import Callable

from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.faces import tf
from tfp_bfl.named import Table, WithArgument, parse

# (features [B, ...], a seed [2]) -> features.
Augmentation = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]


def crop_and_flip(padding: int = 4) -> Augmentation:
    """Return (images [B, H, W, C], a seed [2]) -> the same, each padded by zeros, cropped anywhere and mirrored or not.

    out[i, j] = padded[i + a, j + b] or its mirror image,   a, b ~ U{0, ..., 2 padding},   mirrored with probability 1/2

    Each image has its own a, b and mirror. Equal seeds give equal images.

    `padding` is in pixels on each side; 0 mirrors alone.

    Source: Krizhevsky et al. 2012, section 4.1; with padding by He et al. 2016 (arXiv:1512.03385), section 4.2.
    """
    check_count(padding, "padding", 0)

    def augment(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if len(images.shape) != 4:
            raise InvalidArgument(f"crop_and_flip is of images, but features have the shape {images.shape}: drop it.")
        number, height, width = tf.shape(images)[0], images.shape[1], images.shape[2]
        key = tf.random.experimental.stateless_split(seed, 2)
        start = tf.random.stateless_uniform([2, number, 1], key[0], 0, 2 * padding + 1, tf.int32)
        mirrored = tf.random.stateless_uniform([number, 1], key[1]) < 0.5
        rows, columns = start[0] + tf.range(height), start[1] + tf.range(width)
        columns = tf.where(mirrored, columns[:, ::-1], columns)
        padded = tf.pad(images, [[0, 0], [padding, padding], [padding, padding], [0, 0]])
        return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)

    return augment


# A new augmentation is one function here and one line in this table.
AUGMENTATIONS: Table = {
    "crop_and_flip": WithArgument(crop_and_flip, "padding", int, lambda n: check_count(n, "padding", 0))
}


def parse_augmentation(text: str) -> Augmentation:
    """Return "crop_and_flip:PADDING" as an augmentation."""
    return parse(AUGMENTATIONS, text, "augmentation")()
