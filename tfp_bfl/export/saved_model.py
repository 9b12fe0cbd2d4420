"""SavedModels that say how sure they are."""

import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from tfp_bfl import files, keras
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.evaluation import Unusual
from tfp_bfl.export import info as information
from tfp_bfl.export import loading, model_card
from tfp_bfl.export.calibrated import serving
from tfp_bfl.export.info import Info
from tfp_bfl.export.paths import find, new_folder
from tfp_bfl.export.rows import NAME as ROWS
from tfp_bfl.export.signatures import INPUTS, make_functions, make_signatures
from tfp_bfl.files import Path
from tfp_bfl.files.writing import begun, space
from tfp_bfl.weights.model_weights import check_keras_2

logger = logging.getLogger(__name__)

Source: TypeAlias = keras.Model | str | os.PathLike[str] | Any

# What a round records of how it went, not of the model.
_BOOKKEEPING = {
    *("num_clients", "num_examples", "num_faulty", "num_dropped"),
    *("retries", "restarts", "train_seconds", "seconds"),
}


def save(
    model_or_run: Source,
    path: Path,
    info: Info | None = None,
    unusual: Unusual | None = None,
    backbone: keras.Model | None = None,
) -> None:
    """Write a SavedModel that predicts with uncertainty, and needs nothing but TensorFlow.

        loaded = tf.saved_model.load("saved/")
        loaded.predict(images)["epistemic"]                   # 20 samples, seed 0

    It has five functions, which are serving signatures as well; `serving_default` is `serve` without settings:

        mean(images): one pass at the posterior's mean -> probabilities [B, C], entropy [B], label [B]
        sample(images, num_samples, seed) -> probabilities [S, B, C]
        predict(images, num_samples, seed) -> probabilities [B, C], entropy, aleatoric, epistemic, label [B]
        abstain(images, num_samples, seed, max_uncertainty) -> as predict; label is -1 where entropy exceeds the limit
        serve(images) -> as `tfp-bfl predict`, by `info.calibration`; settings have defaults, and are [] or [B]

    Of a model of numbers (`info.data` with a target, as of a run on labels that are numbers) they give

        mean: mean, stddev [B];   sample: mean, stddev [S, B]
        predict: mean, stddev, aleatoric and epistemic (variances), low and high (of the central 90 % interval) [B]
        abstain: as predict; mean is NaN where stddev exceeds the limit

    Of a table with categories or empty cells (`info.data` with an encoding) there is one more, and its signature:

        predict_rows({column: [B]}, num_samples, seed) -> as predict

    It and `serving_default` accept the columns as they are, text as strings and numbers as float32: "" and NaN are
    empty cells. An unknown category is rare, or empty if training had no rare ones. Other `images` are encoded.

    Inputs: images [B, ...], floats in [0, 1] or raw pixels as uint8, int32 or int64, which are scaled inside; other
    numbers, and numbers that are not finite, are refused. Rows of a table [B, D] are standardised inside by the columns
    that `info.data` names. The functions accept float64 too, standardise it in float64 and then predict numbers in
    float64; a warning names columns that float32 rounds visibly. A signature takes one type: those named above float32,
    for images "predict_uint8" and the like uint8. num_samples and seed are int32 scalars, max_uncertainty a float32
    one; the same seed gives the same answer. Outputs: probabilities (of predict also as `mean`, their name in
    `tfp_bfl.evaluation.decompose`); entropy, normalised to [0, 1]; aleatoric and epistemic, the traces of its matrices;
    label, int32. Each weight sample is one pass, the same for the whole batch; Monte Carlo dropout stays on (but in
    `mean`), BatchNorm uses its moving statistics.

    Beside the graph lie assets/info.json, with what is known of the model, model_card.md, which says it in words, and
    sha256sums.txt, the checksums of all other files, by which `load` and `sha256sum --check` find what was changed.

    Args:
      model_or_run: a Keras model that returns logits [B, C], what `tfp_bfl.simulate` returned, or the folder of a
        complete run (or a SavedModel of this library); its SavedModel is then copied.
      path: a folder that doesn't exist or is empty.
      info: what is known of the model: class names, configuration, metrics, data. What it leaves out is taken from the
        run; of a Keras model it stays unknown.
      unusual: of `evaluation.fit_unusual`: mean, predict and abstain then have a further output unusual [B], which
        exceeds 1 for examples unlike the training data. A folder is copied with its own: it is refused there.
      backbone: of `models.features`, for images of one size: the functions take images, the model their features.

    Raises:
      InvalidArgument: there is something at `path`, or an argument is not what is described above.
      OSError: the folder can't be written, such as to a full disk; nothing is left at `path` then.

    Example:
      >>> model = bfl.models.mlp("flipout", input_shape=(30,), num_classes=2, seed=0)
      >>> folder = bfl.export.save(model, "saved")
      >>> bfl.export.load("saved").predict(np.zeros((1, 30), np.float32))["label"].numpy()
      array([0], dtype=int32)
    """
    if info is not None:
        information.check(info)
    if unusual is not None and not isinstance(unusual, Unusual):
        raise InvalidArgument(f"unusual is {shown(unusual)}, but must be the result of evaluation.fit_unusual.")
    folder = new_folder(path)
    if isinstance(model_or_run, (str, os.PathLike)):
        _check_copied(model_or_run, unusual=unusual, backbone=backbone)
        source = find(model_or_run)
        loaded = loading.load(source)
        known = loading.read_info(source)
        whole = information.merged(info, known)._replace(model=known.model)
        texts = {} if info is None else _texts(whole)
        write: Callable[[], Any] = lambda: [shutil.copyfile(source / x, folder / x) for x in loading.FILES]
        if whole.calibration != known.calibration:
            write = lambda: _write(_copied(loaded), loaded.signatures, folder, texts, whole)
    else:
        model, known = model_of(model_or_run)
        whole = _described(information.merged(info, known), model, unusual, backbone)
        information.features_of(whole)  # Refused, if they are none, before anything is written.
        texts = _texts(whole)
        write = lambda: _write(*_made(model, whole, unusual, backbone), folder, texts, whole)
    if note := model_card.rounding(information.merged(info, known)):
        logger.warning(note)
    with begun(folder):
        try:
            for name in loading.FILES:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", error)
            raise InvalidArgument(f"{files.name(folder)} can't be made ({problem}): choose another folder.") from None
        write()
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        loading.write_manifest(folder)


def _check_copied(folder: Path, **parts: object) -> None:
    """Check that nothing is given that would change the graph of a folder, which is copied."""
    for name, value in parts.items():
        if value is not None:
            what = f"{files.name(folder)} is a folder, of which the graph is copied"
            raise InvalidArgument(f"{name} is for a Keras model, and {what}: leave it out, or give the model.")


def _described(info: Info, model: keras.Model, unusual: Unusual | None, backbone: keras.Model | None) -> Info:
    """Return what is known of a model, with its own facts and the rate of unusual examples."""
    target = information.target_of(info._replace(model=None))
    data = {name: x for name, x in (info.data or {}).items() if name != "unusual"}
    if unusual is not None:
        data["unusual"] = {"rate": unusual.rate, "number": unusual.number}
    return info._replace(model=information.describe(model, target, backbone), data=data or None)


def _texts(info: Info) -> dict[str, str]:
    """Return the descriptive files, by name."""
    info = information.check(info)
    return {loading.INFO: information.to_json(info), model_card.NAME: model_card.card(info)}


def _made(
    model: keras.Model, info: Info, unusual: Unusual | None, backbone: keras.Model | None
) -> tuple[tf.Module, Mapping[str, Any]]:
    features = information.features_of(info)
    columns, target = information.columns_of(info), information.target_of(info)
    module = make_functions(model, columns, target, features, unusual, backbone)
    return module, make_signatures(module, (backbone or model).input_shape[1:], features)


def _copied(loaded: Any) -> tf.Module:
    """Return a module with the functions and weights of a loaded one, to which another calibration can be given."""
    module = tf.Module()
    for name in (*INPUTS, "draw", *({ROWS} & {*loaded.signatures})):
        setattr(module, name, getattr(loaded, name))
    module.weights = list(loaded.weights)
    return module


def _write(
    module: tf.Module, signatures: Mapping[str, Any], folder: pathlib.Path, texts: dict[str, str], info: Info
) -> None:
    signatures = {**signatures, **serving(module, info)}
    with tempfile.TemporaryDirectory() as draft:
        asset = pathlib.Path(draft) / information.NAME
        asset.write_text(texts[loading.INFO], encoding="utf-8")
        module.info = tf.saved_model.Asset(str(asset))
        with space(folder, writes=True):
            tf.saved_model.save(module, str(folder), signatures=signatures)


def model_of(model_or_run: object) -> tuple[keras.Model, Info]:
    """Return a Keras model, and what is known of it."""
    check_keras_2(model_or_run)
    if isinstance(model_or_run, keras.Model):
        return model_or_run, Info()
    model = getattr(model_or_run, "model", None)
    if not isinstance(model, keras.Model):
        raise InvalidArgument(f"{shown(model_or_run)} can't be exported: give a Keras model, result or run's folder.")
    rows = getattr(model_or_run, "rounds", None) or [{}]
    # Where the model is not that of the last round.
    other = getattr(model_or_run, "averaged", None) or getattr(model_or_run, "ensemble", None)
    recorded = {k: x for k, x in (other.metrics if other else rows[-1]).items() if k not in _BOOKKEEPING}
    metrics = {k: x for k, x in recorded.items() if isinstance(x, (int, float)) and not isinstance(x, bool)}
    return model, Info(metrics=metrics or None)
