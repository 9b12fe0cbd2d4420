"""The engine that runs rounds on TensorFlow Federated and its workers: the only package that imports TFF."""
