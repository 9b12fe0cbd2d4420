"""Client work whose message is compressed."""

from __future__ import annotations

from typing import Any, Union

import tensorflow as tf

from tfp_bfl.compression import Compressor, by_tensor, parse_compressor
from tfp_bfl.contracts import DYNAMIC, WEIGHTS, ClientWork, Work
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.models import ClientResult, ServerMessage
from tfp_bfl.posterior import flatten, unflatten

# No client work draws from a seed folded by this.
_NOISE = 2**30


def compressed(work: ClientWork, compressor: Union[str, Compressor], per_tensor: bool = False) -> ClientWork:
    """The same work, of whose means and point weights w_k the change is sent compressed: w + C(w_k - w).

    E C(x) = x, so that a rule that is linear (`Rule.linear`) pools without bias. Variances and what BatchNorm has seen
    go as they are. The result reports `upload_bits` as the code has them, `upload_bound` of the literature and
    `download_bits`, 32 for each number of the server's weights.

    Args:
      work: that sends `WEIGHTS` and keeps nothing, such as `clients.variational`.
      compressor: C, or its name: "quantiser:LEVELS", "sparsifier:SHARE" or "none".
      per_tensor: C takes each tensor of the model for itself.

    Raises:
      InvalidArgument: no such compressor; work that sends something else, or that keeps a memory of what it sent.
    """
    chosen = compressor if isinstance(compressor, Compressor) else parse_compressor(compressor)
    if work.sends != WEIGHTS or work.memory is not None:
        what = f"send a {work.sends}" if work.sends != WEIGHTS else "keep a memory that must be what they sent"
        raise InvalidArgument(
            f"A compressor is of a model's weights, but the clients {what}: leave it out, or use algorithms.qlsd."
        )

    def build() -> Work:
        inner = work.build()

        @tf.function(autograph=False)
        def run(message: ServerMessage, examples: Any, seed: tf.Tensor) -> ClientResult:
            result = inner(message, examples, seed)
            before, after = message.weights, result.weights
            leaves = (before.posterior.mean, before.point)
            sizes = [x.shape.num_elements() for x in tf.nest.flatten(leaves)]
            c, size = by_tensor(chosen, sizes) if per_tensor else chosen, sum(sizes)
            change = flatten((after.posterior.mean, after.point)) - flatten(leaves)
            sent = c.compress(change, tf.random.experimental.stateless_fold_in(seed, _NOISE))
            mean, point = unflatten(flatten(leaves) + c.decompress(sent), leaves)
            weights = after._replace(posterior=after.posterior._replace(mean=mean), point=point)
            every = sum(x.shape.num_elements() for x in tf.nest.flatten(before))
            bits = {
                "upload_bits": tf.cast(c.num_bits(sent), tf.float32) + 32.0 * (every - size),
                "upload_bound": tf.constant(float(c.bound(size)) + 32.0 * (every - size)),
                "download_bits": tf.constant(32.0 * every),
            }
            return result._replace(weights=weights, counts={**result.counts, **bits})

        return run

    return work._replace(build=build, shapes=DYNAMIC)
