"""Defaults that Python and the command line share, without TensorFlow."""

# Passes of a client over its examples in a round of an algorithm of many rounds.
LOCAL_EPOCHS = 5
