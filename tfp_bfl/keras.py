"""The names of Keras that the library uses, of Keras 2: `tf.keras`, or the package tf_keras from TensorFlow 2.16 on.

No other file names it, so that this one decides which Keras computes. Models of Keras 3 are converted by
`models.from_keras_3`, and `layers.keras_3` has its layers. Keras 3 itself cannot stand here yet: its layers take no
losses as functions (`add_loss(lambda: ...)`), its weights are no `tf.Variable`, and `save` writes no SavedModel.
"""

import tensorflow as tf

Input = tf.keras.Input
Model = tf.keras.Model
activations = tf.keras.activations
applications = tf.keras.applications
backend = tf.keras.backend
constraints = tf.keras.constraints
initializers = tf.keras.initializers
layers = tf.keras.layers
mixed_precision = tf.keras.mixed_precision
models = tf.keras.models
optimizers = tf.keras.optimizers
utils = tf.keras.utils
