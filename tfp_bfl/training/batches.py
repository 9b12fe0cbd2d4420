"""Passes over one client's examples in batches, for all client work by gradient steps, and their keywords."""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Any, TypedDict, TypeVar, Unpack

import tensorflow as tf

from tfp_bfl.contracts import num_present
from tfp_bfl.data import ClientExamples
from tfp_bfl.data.augmentation import Augmentation
from tfp_bfl.defaults import LOCAL_EPOCHS
from tfp_bfl.errors import check_counts, lookup
from tfp_bfl.keywords import show
from tfp_bfl.layers import as_floats
from tfp_bfl.tensors import Scalar, is_padded, is_traced_for_xla

State = TypeVar("State")
_Function = TypeVar("_Function", bound=Callable[..., object])
# No step draws from a seed folded by this.
_AUGMENTED = 2**29


class Passes(TypedDict, total=False):
    """Keywords of client work that trains.

    Fields:
      local_epochs: passes over the client's examples, each in a new order.
      batch_size: examples in a step; the last batch of a pass may be smaller.
    """

    local_epochs: int
    batch_size: int


DEFAULTS: Passes = {"local_epochs": LOCAL_EPOCHS, "batch_size": 32}


def with_passes(**others: Unpack[Passes]) -> Callable[[_Function], _Function]:
    """Let the signature of a function that makes client work show `Passes` with their defaults, or `others`."""

    def decorate(make: _Function) -> _Function:
        keyword = functools.partial(Parameter, kind=Parameter.KEYWORD_ONLY, annotation="int")
        show(make, [keyword(name, default=x) for name, x in {**DEFAULTS, **others}.items()])
        return make

    return decorate


def checked(passes: Passes, **others: Unpack[Passes]) -> tuple[int, int]:
    """Return local epochs and batch size; `others` are defaults as of `with_passes`."""
    for name in passes:
        lookup(DEFAULTS, name, "option of client work")
    chosen: Passes = {**DEFAULTS, **others, **passes}
    check_counts(**chosen)
    return chosen["local_epochs"], chosen["batch_size"]


@dataclasses.dataclass
class Augmenting:
    """The augmentation of the features of batches, and whether there is any."""

    augmentation: Augmentation
    used: bool = False


_augmenting: contextvars.ContextVar[Augmenting | None] = contextvars.ContextVar("augmenting", default=None)


@contextlib.contextmanager
def augmenting(scope: Augmenting) -> Iterator[None]:
    """Change the features of every batch that `over_batches` takes inside the block, while it is traced."""
    token = _augmenting.set(scope)
    try:
        yield
    finally:
        _augmenting.reset(token)


def steps_per_epoch(num_examples: Scalar, batch_size: int) -> Any:
    """Return the steps in a pass over N examples in batches of B, of which the last may be smaller: ceil(N / B)."""
    return (num_examples + batch_size - 1) // batch_size


def over_batches(
    examples: ClientExamples,
    seed: tf.Tensor,
    num_epochs: int,
    batch_size: int,
    step: Callable[[State, tf.Tensor, tf.Tensor, tf.Tensor], State],
    state: State,
) -> State:
    """Return the state after `step(state, features, labels, seed)` on each batch of each epoch.

    Each epoch has a new order; its last batch may be smaller. Features are floats, integers scaled to [0, 1].

    Args:
      examples: features [N, ...], labels [N].
      seed: [2], of the orders and of the steps.
      state: what the first step is given, a structure of tensors.
    """
    of_all = lambda state, features, labels, step_seed, present: step(state, features, labels, step_seed)
    return over_present(examples, seed, num_epochs, batch_size, of_all, state)


def over_present(
    examples: ClientExamples,
    seed: tf.Tensor,
    num_epochs: int,
    batch_size: int,
    step: Callable[[State, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None], State],
    state: State,
) -> State:
    """Return `over_batches` for a step that also takes which rows of its batch count [B], None for all.

    Where examples are padded each batch has B rows. Those that count come first; the others are the client's again.
    """

    def a_batch(epoch_seed: tf.Tensor, i: Scalar, rows: tf.Tensor, present: tf.Tensor | None, state: State) -> State:
        step_seed = tf.random.experimental.stateless_fold_in(epoch_seed, i)
        features = _batch(tf.gather(examples.features, rows), step_seed)
        return step(state, features, tf.gather(examples.labels, rows), step_seed, present)

    # Loops written out: AutoGraph would read the code of the model and of all that a step calls.
    def an_epoch(epoch: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        epoch_seed = tf.random.experimental.stateless_fold_in(seed, epoch)
        rows_of, present_of, num_steps, rest = _batches(examples, batch_size, epoch_seed)

        def a_step(i: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
            return i + 1, a_batch(epoch_seed, i, rows_of(i), present_of(i), state)

        if not isinstance(num_steps, int) or num_steps:  # XLA compiles loops that have no turn, too.
            state = tf.while_loop(lambda i, _: i < num_steps, a_step, (tf.constant(0), state))[1]
        return epoch + 1, state if rest is None else a_batch(epoch_seed, num_steps, rest, None, state)

    return tf.while_loop(lambda epoch, _: epoch < num_epochs, an_epoch, (tf.constant(0), state))[1]


def _batches(
    examples: ClientExamples, batch_size: int, seed: tf.Tensor
) -> tuple[Callable[[tf.Tensor], tf.Tensor], Callable[[tf.Tensor], tf.Tensor | None], Scalar, tf.Tensor | None]:
    """Return the functions from a number to the rows of this batch and to which of them count, the number of batches,
    and a last smaller one.

    XLA has no kernel for the shuffle, and each batch of a loop must have one size there: the last one comes by itself.
    """
    order: tf.Tensor
    of_all, slice_of = lambda i: None, lambda i: tf.slice(order, [i * batch_size], [batch_size])
    if is_padded():
        present, number = examples.client >= 0, num_present(examples)
        keys = tf.where(present, tf.random.stateless_uniform([present.shape[0]], seed), 2.0)
        order = tf.pad(tf.argsort(keys), [[0, -present.shape[0] % batch_size]])
        is_present = lambda i: i * batch_size + tf.range(batch_size) < number
        return slice_of, is_present, steps_per_epoch(number, batch_size), None
    if not is_traced_for_xla():
        number = tf.shape(examples.labels)[0]
        order = tf.random.experimental.stateless_shuffle(tf.range(number), seed)
        rows_of = lambda i: order[i * batch_size : (i + 1) * batch_size]
        return rows_of, of_all, steps_per_epoch(number, batch_size), None
    size = examples.labels.shape[0]
    order = tf.argsort(tf.random.stateless_uniform([size], seed))
    whole, rest = divmod(size, batch_size)
    return slice_of, of_all, whole, order[-rest:] if rest else None


def _batch(features: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    features, scope = as_floats(features), _augmenting.get()
    if scope is None:
        return features
    scope.used = True
    return scope.augmentation(features, tf.random.experimental.stateless_fold_in(seed, _AUGMENTED))


def without_initial_values(create: Callable[..., tf.Variable], **kwargs: object) -> tf.Variable:
    """Create a variable with zeros in place of random initial weights: the server's message overwrites them."""
    if kwargs.get("shape") is not None and tf.TensorShape(kwargs["shape"]).is_fully_defined():
        kwargs["initial_value"] = lambda: tf.zeros(kwargs["shape"], kwargs.get("dtype") or tf.float32)
    return create(**kwargs)
