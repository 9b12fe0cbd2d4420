"""Bayesian federated learning on TensorFlow Probability, Keras and TensorFlow Federated.

import tfp_bfl as bfl

Subpackages are imported when they are first used, so that what needs no TensorFlow Federated works without it.
"""
