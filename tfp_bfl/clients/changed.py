"""Client work with a compressed message, or with random augmentation of its examples, anew for each batch."""

from typing import Any, cast

import tensorflow as tf

from tfp_bfl.compression import Compressor, by_tensor, parse_compressor, variances
from tfp_bfl.contracts import DYNAMIC, WEIGHTS, ClientWork, Coding, Work
from tfp_bfl.data import ClientExamples, parse_augmentation
from tfp_bfl.data.augmentation import Augmentation
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.tensors import Scalar, TensorTree
from tfp_bfl.training.batches import Augmenting, augmenting
from tfp_bfl.weights import ClientResult, Compact, ModelWeights, ServerMessage
from tfp_bfl.weights.kinds import Sent

# No client work draws from a seed folded by these.
_NOISE, _NOISE_OF_VARIANCES = 2**30, 2**30 + 1


def compressed(
    work: ClientWork, compressor: str | Compressor, per_tensor: bool = False, error_memory: bool = False
) -> ClientWork:
    """Return the same work with the change of means and point weights w_k sent compressed: w + C(w_k - w).

    E C(x) = x, so that a rule that is linear (`Traits.linear`) pools without bias. With an error memory a client sends
    next time what it did not send this time:

    sent = a C(w_k - w + e_k),   e_k <- w_k - w + e_k - sent,   a = 1 / (1 + omega), or 1 where C is biased

    which is biased in each round, but what it has sent in all is the sum of its changes less the last error. Variances
    (see `coarse_variances`), extra statistics and what BatchNorm has seen go as they are. The result reports
    `upload_bits` as the code has them, `upload_bound` of the literature and `download_bits`, 32 for each number of the
    server's message. Where the work counts the bits of its own message, as `personal.work.personal` does, the code
    replaces means and point weights in it.

    Args:
      work: that sends `WEIGHTS`, such as `clients.variational`; what it keeps must not be what it sent.
      compressor: C, or its name: "quantiser:LEVELS", "sparsifier:SHARE", "largest:SHARE" or "none".
      per_tensor: C takes each tensor of the model for itself.
      error_memory: e_k, which begins with 0 and stays with the client.

    Source: Stich et al. 2018 (arXiv:1809.07599), algorithm 1, for the error memory; a as Richtarik et al. 2021
    (arXiv:2106.05203), lemma 8.
    """
    chosen = compressor if isinstance(compressor, Compressor) else parse_compressor(compressor)
    keeps = work.memory
    if work.sends != WEIGHTS or (keeps is not None and work.needs.keeps_sent):
        what = f"send a {work.sends}" if work.sends != WEIGHTS else "keep a memory that must be what they sent"
        raise InvalidArgument(
            f"A compressor is of a model's weights, but the clients {what}: leave it out, or use algorithms.qlsd."
        )
    if not chosen.unbiased and not error_memory:
        raise InvalidArgument(
            f"The compressor {chosen.name!r} leaves the same values out for good: use it with error_memory, or one "
            "that is unbiased, such as 'sparsifier:0.1'."
        )

    def of(weights: ModelWeights) -> tuple[Compressor, int, float]:
        sizes = [tf.TensorShape(x.shape).num_elements() for x in tf.nest.flatten(_compressed_leaves(weights))]
        c, size = by_tensor(chosen, sizes) if per_tensor else chosen, sum(sizes)
        return c, size, 1 / (1 + c.omega(size)) if error_memory and c.unbiased else 1.0

    def expand(message: ServerMessage, sent: Compact) -> ModelWeights:
        leaves = _compressed_leaves(message.weights)
        c, _, factor = of(message.weights)
        mean, point = unflatten(flatten(leaves) + factor * c.decompress(sent.code), leaves)
        return sent.rest._replace(posterior=sent.rest.posterior._replace(mean=mean), point=point)

    def memory(weights: ModelWeights, share: Scalar) -> tuple[Any, Any]:
        return keeps(weights, share) if keeps else (), tf.zeros([of(weights)[1]]) if error_memory else ()

    def run(inner: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        own, error = message.memory or ((), ())
        result = inner(message._replace(memory=own), examples, seed)
        c, size, factor = of(message.weights)
        change = flatten(_compressed_leaves(result.weights)) - flatten(_compressed_leaves(message.weights))
        wanted = change + error if error_memory else change
        code = c.compress(wanted, tf.random.experimental.stateless_fold_in(seed, _NOISE))
        rest = result.weights._replace(posterior=result.weights.posterior._replace(mean=()), point=())
        sent = Compact(code, rest)
        down = _size(message.weights)
        up = tf.constant(32.0 * (down - size + _size(result.extra)))
        bits = {"download_bits": tf.constant(32.0 * (down + _size(message.extra)))}
        if "upload_bits" in result.counts:  # Of the message of a federation, in which the code is in place of floats.
            pruned = tf.cast(result.counts.get("pruned_weights", 0), tf.float32)
            up = result.counts["upload_bits"] - 32.0 * (size - pruned)
            bits = {"download_bits": result.counts["download_bits"]}
        bits["upload_bits"] = tf.cast(c.num_bits(code), tf.float32) + up
        bits["upload_bound"] = float(c.bound(size)) + up
        error = wanted - factor * c.decompress(code) if error_memory else ()
        memory = (result.memory, error) if keeps or error_memory else ()
        weights, counts = expand(message, sent), {**result.counts, **bits}
        return result._replace(weights=weights, counts=counts, memory=memory, sent=sent)

    coding = Coding(
        expand,
        lambda message, code: of(message.weights)[0].encode(code),
        lambda message, code: of(message.weights)[0].decode(code, of(message.weights)[1]),
    )
    kept_by = memory if keeps or error_memory else None
    return work.around(run)._replace(
        shapes=work.shapes if chosen.name == "none" else DYNAMIC, memory=kept_by, coding=coding
    )


def coarse_variances(work: ClientWork, averages: str) -> ClientWork:
    """Return the same work with variances sent in 8 bits (`compression.variances`), relative to the broadcast ones.

    Bits are counted as by `compressed`, which may be around the work already. BatchNorm's go as they are.

    Args:
      work: that sends `WEIGHTS` with Gaussian weights.
      averages: in which the rounding has no bias, "precision" or "variance" (`Traits.averages`).
    """
    work = work if work.coding and work.sends == WEIGHTS else compressed(work, "none")
    of_means = cast(Coding, work.coding)
    with_variance = lambda weights, x: weights._replace(posterior=weights.posterior._replace(variance=x))
    known_of = lambda message: message.weights.posterior.variance

    def expand(message: ServerMessage, sent: Compact) -> ModelWeights:
        code, levels = sent.code
        variance = variances.restore_variances(levels, known_of(message), averages)
        return with_variance(of_means.expand(message, sent._replace(code=code)), variance)

    def run(inner: Work, message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
        result, known = inner(message, examples, seed), known_of(message)
        noise = tf.random.experimental.stateless_fold_in(seed, _NOISE_OF_VARIANCES)
        levels = variances.round_variances(result.weights.posterior.variance, known, averages, noise)
        sent = Compact((result.sent.code, levels), with_variance(result.sent.rest, ()))
        saved = 32.0 * _size(known) - variances.num_bits(known)
        bits = {name: result.counts[name] - saved for name in ("upload_bits", "upload_bound")}
        return result._replace(weights=expand(message, sent), counts={**result.counts, **bits}, sent=sent)

    def decode(message: ServerMessage, sent: bytes) -> Any:
        levels, code = variances.decode(sent, known_of(message))
        return of_means.decode(message, code), levels

    encode = lambda message, sent: variances.encode(sent[1]) + of_means.encode(message, sent[0])
    return work.around(run)._replace(coding=Coding(expand, encode, decode))


def _size(structure: TensorTree) -> int:
    """Count the numbers of a structure."""
    return sum(x.shape.num_elements() for x in tf.nest.flatten(structure))


def _compressed_leaves(weights: ModelWeights) -> Any:
    return weights.posterior.mean, weights.point


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
    if work.needs.is_private:
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
