"""The benchmark: every method of the library on real federations, tuned alike."""
