"""Files for TensorFlow Lite: the same answers on devices that have no TensorFlow."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tfp_bfl import files
from tfp_bfl.errors import InvalidArgument, check_count, shown
from tfp_bfl.evaluation import is_stochastic, sample_seeds
from tfp_bfl.export import loading, rows
from tfp_bfl.export.calibrated import answer_of, settings_of
from tfp_bfl.export.info import MOST_OFFSET, columns_of, features_of, offsets_of, target_of
from tfp_bfl.export.paths import find, new_file
from tfp_bfl.export.saved_model import Source, model_of
from tfp_bfl.export.signatures import SERVING_DEFAULT, OutputHead, head, image_types, make_functions
from tfp_bfl.files import Path
from tfp_bfl.files.writing import space, write_bytes
from tfp_bfl.layers import as_floats
from tfp_bfl.logs import quiet
from tfp_bfl.weights import num_members

MOST_BYTES = 2**31 - 2**20


def save_tflite(model_or_run: Source, path: Path, num_samples: int | None = None, seed: int = 0) -> None:
    """Write a TensorFlow Lite file that predicts with uncertainty, from weight samples that are drawn now.

        interpreter = ai_edge_litert.interpreter.Interpreter("model.tflite")
        interpreter.get_signature_runner("predict_uint8")(images=pixels)["epistemic"]

    Its signatures are `mean`, `predict` and `serving_default`, for images with `_uint8` too. They take images [B, ...]
    alone, and give what those of the SavedModel give: for these `num_samples` and `seed`. It needs
    the interpreter's own operations and no others. TensorFlow Lite has no generator of random numbers with a seed but
    through TensorFlow's own ("select TF ops"), which small devices lack; so the file holds num_samples models, and has
    their size.

    A model of a table with categories or empty cells has the signature `predict_rows` too, which accepts the columns of
    the table as they are, text as strings with at most four spaces before and after it.

    Args:
      model_or_run: as `tfp_bfl.export.save` takes it.
      path: a new file.
      num_samples: S, of `predict`; None for that of the calibration, otherwise 20.
    """
    check_count(1 if num_samples is None else num_samples, "num_samples")
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**31) <= seed < 2**31:
        raise InvalidArgument(f"seed is {shown(seed)}, but must be an integer of 32 bits.")
    file = new_file(path)
    if isinstance(model_or_run, (str, os.PathLike)):
        folder = find(model_or_run)
        module = loading.load(folder)
        known = loading.read_info(folder)
        facts: Any = known.model
        shape, stochastic, members = facts["input_shape"], facts["stochastic"], facts.get("members", 1)
    else:
        model, known = model_of(model_or_run)
        module = make_functions(model, columns_of(known), target_of(known), features_of(known))
        shape, stochastic, members = model.input_shape[1:], is_stochastic(model), num_members(model)
    settings = settings_of(known)
    num_samples = int(settings["num_samples"]) if num_samples is None else num_samples
    if num_samples < members:
        raise InvalidArgument(f"num_samples is {num_samples}, but the ensemble has {members} members: give that many.")
    if offsets := offsets_of(known, MOST_OFFSET):
        name, offset = next(iter(offsets.items()))
        what = f"The mean of {shown(name)} is {offset:.3g} standard deviations from zero"
        advice = "subtract a constant in the table and train again"
        raise InvalidArgument(f"{what}, which the float32 of TensorFlow Lite rounds away: {advice}.")
    fixed = _Fixed(module, shape, seed, num_samples if stochastic else 1, head(target_of(known)))
    answer, limits = answer_of(known), [tf.constant([x]) for x in list(settings.values())[2:]]
    fixed.serving_default = tf.function(lambda images: answer(fixed.predict(images), *limits))
    signatures = {
        f"{name}{suffix}": getattr(fixed, name).get_concrete_function(tf.TensorSpec([None, *shape], dtype, "images"))
        for name in ("mean", "predict", SERVING_DEFAULT)
        for suffix, dtype in image_types(shape).items()
    }
    if inputs := rows.inputs_of(features := features_of(known), shape):
        encode = rows.encoder(features, columns_of(known), has_rules=False)
        of_rows = lambda function: tf.function(lambda columns: function(encode(columns))).get_concrete_function(inputs)
        signatures |= {rows.NAME: of_rows(fixed.predict), SERVING_DEFAULT: of_rows(fixed.serving_default)}
    with tempfile.TemporaryDirectory() as draft:
        with quiet("tensorflow"), space(draft, writes=True):
            tf.saved_model.save(fixed, draft, signatures=signatures)
        content = tf.lite.TFLiteConverter.from_saved_model(draft, signature_keys=list(signatures)).convert()
    try:
        write_bytes(file, content)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", error)
        raise InvalidArgument(f"{files.name(file)} can't be written ({problem}): choose another file.") from None


class _Fixed(tf.Module):
    """The functions `mean` and `predict`, of images alone, with the samples of a seed."""

    def __init__(self, module: Any, shape: Any, seed: int, num_samples: int, answers: OutputHead):
        super().__init__()
        self.weights = list(module.weights)
        rest, fixed, drawn = _split(module.draw, tf.TensorSpec([None, *shape], tf.float32, "images"))
        # All samples have the size of the first: known before memory is taken for the rest.
        num_bytes = _num_bytes(fixed) + num_samples * _num_bytes(drawn(sample_seeds(seed, 1)[0]))
        if num_bytes > MOST_BYTES:
            most = f"a file of TensorFlow Lite holds at most {MOST_BYTES}"
            raise InvalidArgument(f"{num_samples} weight samples have {num_bytes} bytes, but {most}: take fewer.")
        samples = [drawn(each) for each in sample_seeds(seed, num_samples)]

        def predict(images: tf.Tensor) -> dict[str, tf.Tensor]:
            images = as_floats(images)
            # Made once in the graph: the samples share them in the file.
            shared = [tf.constant(value.numpy()) for value in fixed]
            draws = [rest(images, *shared, *(tf.constant(value.numpy()) for value in sample)) for sample in samples]
            scores = {name: x for name, x in module.mean(images).items() if name == "unusual"}
            return {**answers.summary(tf.stack([draw[0] for draw in draws])), **scores}

        self.mean = tf.function(lambda images: module.mean(as_floats(images)))
        self.predict = tf.function(predict)


def _num_bytes(values: list[tf.Tensor]) -> int:
    return sum(value.shape.num_elements() * value.dtype.size for value in values)


def _split(
    draw: Any, images_spec: tf.TensorSpec
) -> tuple[Any, list[tf.Tensor], Callable[[tf.Tensor], list[tf.Tensor]]]:
    """Return `draw(images, seed)` in two parts, at the tensors between what depends on the images and what does not.

    rest: (images, *fixed, *drawn(seed)) -> [draw(images, seed)]. fixed: values that depend on neither, such as point
    weights. drawn: seed -> values that depend on the seed, such as sampled weights and masks.
    """
    function = draw.get_concrete_function(images_spec, tf.TensorSpec([2], tf.int32, "seed"))
    frozen = convert_variables_to_constants_v2(function)
    images, seed = (next(t for t in frozen.inputs if t.dtype == dtype) for dtype in (tf.float32, tf.int32))
    operations = frozen.graph.get_operations()
    if any(operation.type == "ScaleAndTranslate" for operation in operations):
        what = "The model shrinks images with antialiasing, an operation that TensorFlow Lite lacks"
        raise InvalidArgument(f"{what}: train on images of the size of its backbone.")
    of_images, of_seed = (_downstream(operations, tensor) for tensor in (images, seed))
    inputs = [x for operation in operations if operation.name in of_images for x in operation.inputs]
    border = {x.name: x for x in inputs if x.op.name not in of_images and x.op.type != "Const"}.values()
    varying = [tensor for tensor in border if tensor.op.name in of_seed]
    constant = [tensor for tensor in border if tensor.op.name not in of_seed]
    rest = frozen.prune([images, *constant, *varying], list(frozen.outputs))
    fixed = frozen.prune([], constant)() if constant else []
    drawn = frozen.prune([seed], varying) if varying else lambda seed: []
    return rest, list(fixed), drawn


def _downstream(operations: Any, source: tf.Tensor) -> set[str]:
    """Return the names of the operations that depend on a tensor."""
    reached = {source.op.name}
    # In the order in which they were made, which is after their inputs.
    for operation in operations:
        if any(tensor.op.name in reached for tensor in operation.inputs):
            reached.add(operation.name)
    return reached
