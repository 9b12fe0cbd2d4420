"""The engine that compiles a whole round by XLA: for small models, whose rounds cost little arithmetic."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import PADDED, Metrics, ServerState
from tfp_bfl.data import ClientExamples
from tfp_bfl.data.clients import Share
from tfp_bfl.errors import ComputationError, InvalidArgument
from tfp_bfl.federated.local import (
    Accepts,
    LocalEngine,
    Output,
    as_arrays,
    at_once,
    check_once,
    reason,
)
from tfp_bfl.federated.loops import MOST_AHEAD, Groups, check_shapes, rounds_in_a_row, stacked, sum_of_groups
from tfp_bfl.federated.round import Broadcast, Contribute, Contribution, Round, check_secret
from tfp_bfl.tensors import traced_for_xla

# Each size is one more loop to compile.
MOST_SIZES = 8
# Weights times rows: a round of more arithmetic is shared among the cores, one of less is computed with the next ones.
MOST_ALONE = 10_000_000
# Examples of a part of a round's clients that are in memory at once.
MOST_BYTES = 2**24
# Calls longer than this compute no more rounds than before: they may be for nothing.
MOST_SECONDS = 0.1
# What XLA says of operations that it can't compile.
_OBSTACLE = re.compile(r"No registered '\w+'|must be a compile-time constant")


class CompiledEngine(LocalEngine):
    """Runs each round as functions that XLA compiled, in which clients are a loop.

    Clients of several sizes are filled up to the largest one of all (`expect`) where the work allows that
    (`ClientWork.shapes`), and are a loop for each size elsewhere. A round of other shapes than before compiles anew.
    Batches and noise are other draws of the same distributions than those of other engines; assertions in a client's
    work are not checked.

    A small round (`MOST_ALONE`) is one function on one core. As most of its time passes outside of this function, one
    call computes several rounds: the following ones are ready if the run continues from their state over the same
    clients, and are discarded otherwise. How many there are changes no result. The clients of a larger round are shared
    among the cores.
    """

    accepts: Accepts = "examples"

    def __init__(self, round: Round, shapes: str = ""):
        check_shapes(shapes)
        super().__init__(round)
        self._pads = shapes == PADDED
        self._most = 0  # Rows to which clients are padded; 0 for none.
        self._given: Any = None
        self._parts: list[list[_Block]] = []
        self._alone: dict[bool, Callable[..., Any]] = {}
        self._ready: list[Output] = []
        self._in_a_row, self._seconds = 1, 0.0

    def expect(self, sizes: Sequence[int]) -> None:
        """Prepare for clients of these sizes, of whom any may be in a round."""
        several = sorted({int(n) for n in sizes})
        self._most = several[-1] if self._pads and len(several) > 1 else 0
        self._given = None
        if not self._pads and len(several) > MOST_SIZES:
            raise InvalidArgument(
                f"The engine compiled takes clients of at most {MOST_SIZES} sizes for this algorithm and model, and "
                f"these have {len(several)}, from {several[0]} to {several[-1]} examples: use Clients.limit, or the "
                "engine local."
            )

    def next(self, state: ServerState, datasets: Sequence[Any]) -> Output:
        """Return the round after the state's, as `LocalEngine.next`; an operation that XLA lacks is InvalidArgument."""
        if self._ready and self._given is datasets and self._ready[-1].state is state:
            self._ready.pop()
            if self._ready:
                return self._ready[-1]
            if self._seconds <= MOST_SECONDS:
                self._in_a_row = min(2 * self._in_a_row, MOST_AHEAD)
        else:
            self._in_a_row = 1
        check_secret(state)
        tensors = tf.nest.map_structure(tf.convert_to_tensor, state)
        try:
            is_small = self._take(state, datasets)
            self._ready = self._several(tensors) if is_small else [self._shared(tensors)]
        except tf.errors.OpError as error:
            if obstacle := _OBSTACLE.search(error.message):
                raise InvalidArgument(
                    f"XLA can't compile a round of this process ({obstacle[0]}): use the engine local."
                ) from error
            raise ComputationError(f"A computation failed: {reason(error.message)}") from error
        check_once(self._ready[-1].metrics["clients"]["client"])
        return self._ready[-1]

    def _take(self, state: ServerState, shares: Sequence[Share]) -> bool:
        """Prepare the clients' examples, and return whether their round is a small one."""
        numbers = sum(np.size(x) for x in tf.nest.flatten(state.weights))
        is_small = bool(numbers * sum(share.sizes.sum() for share in shares) <= MOST_ALONE)
        if self._given is not shares:
            # In their order, so that a sum on one core is the same on every machine.
            everyone = np.sort(np.concatenate([share.numbers for share in shares]))
            parts = [Share(shares[0].clients, everyone)] if is_small else shares
            self._parts = [self._blocks(part, is_small) for part in parts]
            self._given = shares
        return is_small

    def _blocks(self, share: Share, whole: bool) -> list[_Block]:
        """Return the clients with a loop for each size, and in blocks where there are too many for one."""
        rows = np.maximum(share.sizes, self._most)
        groups = [(Share(share.clients, share.numbers[rows == n]), int(n)) for n in np.unique(rows)]
        row_bytes = sum(x.dtype.size * math.prod(x.shape[1:]) for x in self._round.element_spec)
        if whole or row_bytes * rows.sum() <= MOST_BYTES:
            return [_Block(tuple(groups))]
        blocks = []
        for (clients, numbers), n in groups:
            parts = np.split(numbers, range(0, len(numbers), max(1, MOST_BYTES // (n * row_bytes))))[1:]
            blocks += [_Block(((Share(clients, part), n),)) for part in parts]
        return blocks

    def _several(self, state: ServerState) -> list[Output]:
        """Return the outputs of the next rounds, the first one last."""
        padded = self._most > 0
        if padded not in self._alone:
            self._alone[padded] = _rounds_alone(self._round, padded)
        started = time.perf_counter()
        states, metrics = as_arrays(self._alone[padded](state, self._parts[0][0].read(), tf.constant(self._in_a_row)))
        self._seconds = time.perf_counter() - started
        number = min(self._in_a_row, len(states.round))
        pick = lambda i: tf.nest.map_structure(lambda x: x[i, ...], (states, metrics))
        return [Output(*pick(i)) for i in reversed(range(number))]

    def _shared(self, state: ServerState) -> Output:
        """Return the output of the next round, to whose sum each core contributes that of a part of the clients."""
        sent, calls = self._broadcast(state), []
        for i, blocks in enumerate(self._parts):
            shapes = self._most > 0, *(tuple(x.shape) for x in tf.nest.flatten(sent))
            trace = lambda contribute, block: self._compiled(contribute, sent, block.spec(self._round.element_spec))
            works = {x.key: self._work_of(i, (*shapes, x.key), functools.partial(trace, block=x)) for x in blocks}
            calls.append(functools.partial(self._over, works, sent, blocks))
        # Not by XLA, which sorts all weights for a median of them.
        return Output(*as_arrays(self._conclude(state, functools.reduce(self._add, at_once(calls)))))

    def _may_share(self, work: Any) -> bool:
        return True

    def _compiled(self, contribute: Contribute, sent: Broadcast, groups: Groups) -> Any:
        padded = self._most > 0

        @tf.function(autograph=False, jit_compile=True)
        def work(sent: Broadcast, groups: Groups) -> Contribution:
            with traced_for_xla(padded=padded):
                return sum_of_groups(self._round, contribute, sent, groups)

        return work.get_concrete_function(sent, groups)

    def _over(self, works: Mapping[Any, Any], sent: Broadcast, blocks: Sequence[_Block]) -> Contribution:
        """Return the sum of the blocks, of two as large ones where possible: reports are copied log(blocks) times."""
        sums: list[tuple[int, Contribution]] = []
        for block in blocks:
            size, total = 1, works[block.key](sent, block.read(keep=len(blocks) == 1))
            while sums and sums[-1][0] == size:
                size, total = 2 * size, self._add(sums.pop()[1], total)
            sums.append((size, total))
        return functools.reduce(lambda later, earlier: self._add(earlier, later), [x for _, x in reversed(sums)])


class _Block:
    """Clients with examples that are in memory together: shares, each with the rows of its clients."""

    def __init__(self, shares: tuple[tuple[Share, int], ...]):
        self._shares = shares
        self._groups: Groups | None = None
        self.key = tuple((len(share.numbers), rows) for share, rows in shares)

    def spec(self, of_client: ClientExamples) -> Groups:
        """Return the types of what `read` returns."""
        one = lambda key: tf.nest.map_structure(lambda x: tf.TensorSpec([*key, *x.shape[1:]], x.dtype), of_client)
        return tuple(map(one, self.key))

    def read(self, keep: bool = True) -> Groups:
        """Return the clients of each share, and `keep` them for the next call."""
        groups = self._groups or tuple(stacked(*x) for x in self._shares)
        self._groups = groups if keep else None
        return groups


def _rounds_alone(round: Round, padded: bool) -> Callable[..., Any]:
    """Return the function (state, groups of clients, number) of `rounds_in_a_row`, with variables of its own."""
    contribute = round.build_client()

    @tf.function(autograph=False, jit_compile=True)
    def run(state: ServerState, groups: Groups, number: tf.Tensor) -> tuple[ServerState, Metrics]:
        with traced_for_xla(padded=padded):
            return rounds_in_a_row(round, contribute, state, groups, number)

    return run
