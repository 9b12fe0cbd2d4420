"""What carries the messages of a round from and to other processes: TensorFlow Federated's workers, a Ray cluster."""
