"""The study of personal models: meta-learning, and a dropout of each client's own."""
