"""A Keras model with Gaussian weights, trained by fit, and its posterior as a distribution of TFP."""

import tensorflow as tf

import tfp_bfl as bfl

train, test = bfl.data.load("breast_cancer"), bfl.data.load("breast_cancer", "test")
tf.keras.utils.set_random_seed(0)
once = 1 / train.num_examples  # Keras' loss is a mean over examples: so each counts as much as the prior has it.
model = tf.keras.Sequential(
    [
        tf.keras.Input(train.element_shape),
        bfl.layers.DenseFlipout(32, activation="relu", prior_stddev="fan_in", kl_weight=once),
        bfl.layers.DenseFlipout(train.num_classes, prior_stddev="fan_in", kl_weight=once),
    ]
)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf.keras.optimizers.legacy.Adam(1e-2), loss, metrics=["accuracy"])
model.fit(train.features, train.labels, epochs=20, verbose=0)

posterior = bfl.posterior.to_tfp(bfl.weights.get_weights(model).posterior)
kernel, *_ = posterior.sample(seed=0)
print(f"accuracy {model.evaluate(test.features, test.labels, verbose=0)[1]:.2f}, a draw of {kernel.shape} weights")
