"""A model: any Keras model that returns logits; its Flipout layers make the variational part of the posterior."""

import tensorflow as tf

import tfp_bfl as bfl


def last_layers_bayesian(input_shape, num_classes):
    """Build a model with point weights in the convolution and Gaussian ones in the dense layers."""
    return tf.keras.Sequential(
        [
            tf.keras.Input(input_shape),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.GlobalMaxPooling2D(),
            bfl.layers.DenseFlipout(32, activation="relu"),
            bfl.layers.DenseFlipout(num_classes),  # logits: no activation
        ]
    )


if __name__ == "__main__":
    train = bfl.data.load("digits")
    model_fn = lambda: last_layers_bayesian(train.element_shape, train.num_classes)
    weights = bfl.weights.get_weights(model_fn())
    print(f"{len(weights.posterior.mean)} Gaussian tensors, {len(weights.point)} point tensors")  # 2 and 4 (biases)
    process = bfl.algorithms.variational(model_fn)
    result = bfl.simulate(process, train.partition(bfl.data.iid(num_clients=4), seed=0), rounds=2)
    print(f"NLL {result.rounds[0]['nll']:.2f}, then {result.rounds[-1]['nll']:.2f}")
