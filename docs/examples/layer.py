"""A layer: derived from one of the library, whose weights stay Gaussian, and a layer that contains one."""

import tensorflow as tf

import tfp_bfl as bfl


class Scaled(bfl.layers.DenseFlipout):
    """Flipout of inputs that are divided by the square root of their number."""

    def call(self, inputs):
        return super().call(inputs / inputs.shape[-1] ** 0.5)


class Residual(tf.keras.layers.Layer):
    """x + relu(W x + b) with a Gaussian W."""

    def build(self, input_shape):
        self.inner = bfl.layers.DenseFlipout(input_shape[-1], activation="relu")
        super().build(input_shape)

    def call(self, inputs):
        return inputs + self.inner(inputs)


def build(input_shape, num_classes, hidden: int = 16):
    """Build a network of both layers."""
    layers = [Scaled(hidden, activation="relu"), Residual(), bfl.layers.DenseFlipout(num_classes)]
    return tf.keras.Sequential([tf.keras.Input(input_shape), *layers])


if __name__ == "__main__":
    train = bfl.data.load("breast_cancer")
    model_fn = lambda: build(train.element_shape, train.num_classes)
    print(f"{len(bfl.weights.get_weights(model_fn()).posterior.mean)} Gaussian tensors")
    clients = train.partition(bfl.data.iid(num_clients=3), seed=0)
    result = bfl.simulate(bfl.algorithms.variational(model_fn), clients, rounds=3, engine="local")
    print(f"NLL {result.rounds[0]['nll']:.2f}, then {result.rounds[-1]['nll']:.2f}")
