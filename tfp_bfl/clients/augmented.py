"""Client work with random augmentation of its examples, anew for each batch."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl.contracts import ClientWork, Work
from tfp_bfl.data import ClientExamples, parse_augmentation
from tfp_bfl.data.augmentation import Augmentation
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.training.batches import Augmenting, augmenting
from tfp_bfl.weights import ClientResult, ServerMessage
from tfp_bfl.weights.kinds import Sent


def augmented(work: ClientWork[Sent], augmentation: str | Augmentation) -> ClientWork[Sent]:
    """Return the same work with augmentation(features, seed) in place of a batch's features.

    The seed is a function of (run seed, round, client, step), as that of all noise, so that a run can be repeated. With
    it a client's likelihood is of more examples than it holds, which the evidence lower bound does not know: the number
    of examples stays that of those it holds.

    Args:
      work: that steps through batches, such as `clients.variational`.
      augmentation: (features [B, ...] in [0, 1], a seed [2]) -> features, such as `data.crop_and_flip(4)`; or its name,
        "crop_and_flip:PADDING".
    """
    if work.is_private:
        raise InvalidArgument(
            "An augmentation changes batches, and differential privacy of examples clips the gradient of each example "
            "as it is: leave augmentation or example_privacy (--example-clip-norm) out."
        )
    chosen = parse_augmentation(augmentation) if isinstance(augmentation, str) else augmentation

    def build() -> Work[Sent]:
        inner, scope = work.build(), Augmenting(chosen)

        @tf.function(autograph=False)
        def run(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[Sent]:
            with augmenting(scope):
                result = inner(message, examples, seed)
            if not scope.used:
                raise InvalidArgument(
                    "An augmentation is of work that steps through batches, and this takes its examples as they are: "
                    "leave it out, or use work such as clients.variational(model_fn)."
                )
            return result

        return run

    return work._replace(build=build)
