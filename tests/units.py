"""Tables in the units of their columns, as exported models take them."""

import numpy as np


def in_units(source):
    """Rows of a standardised table in the units of its columns, float64 [N, D]."""
    scales, means = ([getattr(column, name) for column in source.columns] for name in ("scale", "mean"))
    return source.features * np.array(scales) + np.array(means)
