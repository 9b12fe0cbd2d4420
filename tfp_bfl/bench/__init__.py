"""A benchmark: methods by settings, tuned alike."""
