"""The layers of `tfp_bfl.layers` for models of Keras 3 (`import keras`) on TensorFlow: same names, options and outputs.

    import keras
    import tfp_bfl as bfl

    layers = [keras.Input([30]), bfl.layers.keras_3.DenseFlipout(2)]
    network = keras.Sequential(layers)

`fit`, `predict`, `save` and `export` of Keras 3 work, `network.losses` has the KL of each layer, and `sampling` sets
how layers draw noise. In federated rounds `models.from_keras_3` replaces them by the layers of Keras 2.
"""

import importlib
from typing import Any

from tfp_bfl.layers import dropout, flipout, variational_dropout
from tfp_bfl.layers.base import check_keras_3
from tfp_bfl.layers.gaussian import Convolution, Dense

keras: Any = importlib.import_module("keras")
check_keras_3(keras)

__all__ = ["Conv2DFlipout", "Conv2DVariationalDropout", "DenseFlipout", "DenseVariationalDropout", "MCDropout"]


class _Projection(keras.constraints.Constraint):
    def __init__(self, project: Any):
        self._project = project

    def __call__(self, value: Any) -> Any:
        return self._project(value)


class _KL(keras.regularizers.Regularizer):
    """A layer's KL as the regularizer of one of its variables: once, however often the layer is called."""

    def __init__(self, layer: Any):
        self._layer = layer

    def __call__(self, x: Any) -> Any:
        return self._layer.kl_weight * self._layer.kl_divergence()


class Keras3Layer(keras.layers.Layer):
    """A layer of Keras 3.

    Attributes:
      keras_2: the same layer of Keras 2.
    """

    _keras: Any = keras
    keras_2: Any

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_jit = False  # Noise without a seed would not follow tf.random.set_seed in XLA.

    def _add_variable(
        self, name: str, shape: list[int], initializer: Any, constraint: Any = None, autocast: bool = True
    ) -> Any:
        project = None if constraint is None else _Projection(constraint)
        return self.add_weight(shape, initializer, name=name, constraint=project, autocast=autocast)

    def _add_kl(self) -> None:
        if self.variational_weights:  # None of a frozen layer.
            self.variational_weights[0].scale.regularizer = _KL(self)


_register = keras.saving.register_keras_serializable("tfp_bfl")


@_register
class DenseFlipout(Dense, flipout.Flipout, Keras3Layer):
    __doc__ = flipout.DenseFlipout.__doc__
    keras_2 = flipout.DenseFlipout


@_register
class Conv2DFlipout(Convolution, flipout.Flipout, Keras3Layer):
    __doc__ = flipout.Conv2DFlipout.__doc__
    keras_2 = flipout.Conv2DFlipout


@_register
class DenseVariationalDropout(Dense, variational_dropout.VariationalDropout, Keras3Layer):
    __doc__ = variational_dropout.DenseVariationalDropout.__doc__
    keras_2 = variational_dropout.DenseVariationalDropout


@_register
class Conv2DVariationalDropout(Convolution, variational_dropout.VariationalDropout, Keras3Layer):
    __doc__ = variational_dropout.Conv2DVariationalDropout.__doc__
    keras_2 = variational_dropout.Conv2DVariationalDropout


@_register
class MCDropout(dropout.Dropout, Keras3Layer):
    __doc__ = dropout.MCDropout.__doc__
    keras_2 = dropout.MCDropout
