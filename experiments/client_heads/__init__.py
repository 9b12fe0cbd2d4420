"""The study of a head for each client on random features."""
