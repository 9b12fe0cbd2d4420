"""Features of images by a frozen network, computed once and kept in files."""

import contextlib
import hashlib
import io
import os
import pathlib
import threading

import numpy as np
import tensorflow as tf

from tfp_bfl import files, keras
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.writing import write_bytes
from tfp_bfl.models.backbones import backbone_of

# Images in a file, of which each is used as a whole; and images in memory as the network takes them.
_BLOCK, _BATCH = 1000, 50
# Of the numbers that the code here computes: another one makes all files anew.
_VERSION = 1


def cache_folder() -> pathlib.Path:
    """Return the folder of the cache: TFP_BFL_CACHE, or tfp_bfl in XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("TFP_BFL_CACHE")
    return pathlib.Path(own or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "tfp_bfl")).expanduser()


def cached_features(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Compute the features of images, or read them from the cache.

    The cache has a file for each 1,000 images, in the order in which they are given. Its name is the SHA-256 sum of the
    backbone's weights and settings, the images and the version of TensorFlow, so that a file never has features of
    something else. A file is written under another name and then renamed: processes that compute the same features at
    the same time end with the same file. Files can be deleted at any time. Features say much about images: the folder
    is readable by its owner alone.

    Args:
      model: of `features`, taking these images (`backbones.taking`).
      images: [N, height, width, channels], uint8 or floats in [0, 1].

    Returns:
      float32 [N, F].

    Raises:
      InvalidArgument: the folder of the cache can't be written, or a feature is not finite.
    """
    folder = cache_folder() / "features"
    found = np.empty((len(images), model.output_shape[-1]), np.float32)
    compute = tf.function(lambda x: model(x, training=False), autograph=False, reduce_retracing=True)
    for start in range(0, len(images), _BLOCK):
        block = np.ascontiguousarray(images[start : start + _BLOCK])
        path = folder / f"{_key(model, block)}.npy"
        rows = found[start : start + _BLOCK]
        stored = _read(path, rows.shape)
        if stored is None:
            for i in range(0, len(block), _BATCH):
                rows[i : i + _BATCH] = compute(tf.constant(block[i : i + _BATCH]))
            bad = ~np.isfinite(rows).all(1)
            if bad.any():
                worst = start + int(np.argmax(bad))
                raise InvalidArgument(
                    f"The backbone gives numbers that are not finite for image {worst}: give another one."
                )
            _write(path, rows)
        else:
            rows[:] = stored
    return found


def _key(model: keras.Model, block: np.ndarray) -> str:
    settings = (_VERSION, tf.__version__, backbone_of(model).digest, block.dtype.str, block.shape)
    total = hashlib.sha256(repr(settings).encode())
    total.update(block.data)
    return total.hexdigest()


def _read(path: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the features in a file; None where there is none, or a damaged one."""
    with contextlib.suppress(InvalidArgument, OSError, ValueError, EOFError):
        content = files.read_regular(path, "file of features", int(np.prod(shape)) * 4 + 4096)
        stored = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        if stored.shape == shape and stored.dtype == np.float32 and np.isfinite(stored).all():
            return stored
    return None


def _write(path: pathlib.Path, rows: np.ndarray) -> None:
    content = io.BytesIO()
    np.lib.format.write_array(content, rows, allow_pickle=False)
    draft = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.npy")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_bytes(draft, content.getvalue())
        draft.replace(path)
    except OSError as error:
        raise InvalidArgument(
            f"The cache of features {files.name(path.parent)} can't be written ({error.strerror}): set TFP_BFL_CACHE "
            "to another folder."
        ) from None
