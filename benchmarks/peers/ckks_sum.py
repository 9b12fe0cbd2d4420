"""Homomorphic sums of the rows of an array: python ckks_sum.py ROWS.npy REPEATS prints one JSON line.

CKKS by TenSEAL, with the parameters that NVIDIA FLARE provisions: rings of degree 8,192, moduli of 60, 40 and 40 bits,
a scale of 2^40. Seconds are the least of all repeats.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tenseal


def timed(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    seconds, found = [], None
    for _ in range(repeats):
        started = time.perf_counter()
        found = function()
        seconds.append(time.perf_counter() - started)
    return min(seconds), found


def main(path: str, repeats: int) -> None:
    rows = np.load(path)
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40])
    context.global_scale = 2.0**40
    hide = lambda row: tenseal.ckks_vector(context, row).serialize()
    first, *others = rows
    encrypt, sent = timed(lambda: hide(first), repeats)
    parts = [tenseal.ckks_vector_from(context, code) for code in (sent, *map(hide, others))]

    def total() -> Any:
        result = parts[0]
        for part in parts[1:]:
            result = result + part
        return result

    add, hidden = timed(total, repeats)
    decrypt, clear = timed(hidden.decrypt, repeats)
    error = float(np.abs(np.array(clear) - rows.sum(0)).max())
    seconds = {"hide_seconds": encrypt, "add_seconds": add, "read_seconds": decrypt}
    print(json.dumps({"bytes": len(sent), **seconds, "error": error}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
