"""A check that sampled predictions fit into memory."""

from __future__ import annotations

import psutil

from tfp_bfl.errors import InvalidArgument, check_count

# Of a sample's probabilities: float32, held twice for a moment.
_BYTES = 8
_SHARE = 0.5


def check_num_samples(num_samples: int, num_examples: int, num_classes: int) -> None:
    """Check that S samples of N examples' C probabilities take no more than half of the free memory.

    Raises:
      InvalidArgument: they do; the message says how many samples do not.
    """
    check_count(num_samples, "num_samples")
    of_one = _BYTES * max(1, num_examples * num_classes)
    most = max(1, int(_SHARE * psutil.virtual_memory().available / of_one))
    if num_samples > most:
        raise InvalidArgument(
            f"num_samples is {num_samples}; predictions of {num_examples} examples at once take "
            f"{num_samples * of_one / 2**30:,.0f} GiB: take at most {most} here."
        )
