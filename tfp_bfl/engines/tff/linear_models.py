"""The sums of linear models as TFF computations: the question is broadcast, and the answers are summed in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tfp_bfl.engines.tff.context import Runtime
from tfp_bfl.engines.tff.engine import installed
from tfp_bfl.engines.tff.installation import require_tff
from tfp_bfl.glm import graphs
from tfp_bfl.glm.federation import OfTable, Question
from tfp_bfl.glm.rows import Rows, Table

tff = require_tff()


class TffFederation(OfTable):
    """Clients whose answers TFF's workers compute and add up; each holds its rows as a dataset of one element.

    Args:
      table, family, secure_sums: as of `OfTable`.
    """

    def __init__(self, table: Table, family: str, secure_sums: bool):
        super().__init__(table, family, secure_sums)
        # Workers keep the datasets between questions.
        self._datasets = [tf.data.Dataset.from_tensors(tuple(rows)) for rows in table.clients]
        spec = tuple(tf.TensorSpec([None, *x.shape[1:]], tf.float64) for x in table.clients[0])
        self._rows = tff.SequenceType(tff.types.tensorflow_to_type(spec))
        self._totals: dict[Any, Any] = {}

    def _added(self, question: Question) -> np.ndarray:
        sent = [question.points, question.centre, question.times]
        key = question.kind, question.columns, question.nodes, *(x.shape for x in sent)
        if key not in self._totals:
            self._totals[key] = self._total_of(question, [tff.TensorType(np.float64, x.shape) for x in sent])
        return np.asarray(self._totals[key](sent, self._datasets))

    def _total_of(self, question: Question, types: list[Any]) -> Any:
        """Return the computation of a question's sum, for numbers of these shapes."""

        @tff.tensorflow.computation(types, self._rows)
        def answer(sent: Any, rows: tf.data.Dataset) -> tf.Tensor:
            points, centre, times = sent
            asked = question._replace(points=points, centre=centre, times=times)
            numbers = graphs.answer(Rows(*rows.get_single_element()), self._family, asked)
            return graphs.encode(numbers) if self.is_secure else numbers

        @tff.federated_computation(tff.FederatedType(types, tff.SERVER), tff.FederatedType(self._rows, tff.CLIENTS))
        def total(sent: Any, rows: Any) -> Any:
            return tff.federated_sum(tff.federated_map(answer, (tff.federated_broadcast(sent), rows)))

        return total

    def _event_times(self) -> np.ndarray:
        """Return the union of all clients' times: an aggregation, since it is the same in any order."""
        times_type = tff.TensorType(np.float64, [None])

        @tff.tensorflow.computation(self._rows)
        def times_of(rows: tf.data.Dataset) -> tf.Tensor:
            return graphs.event_times(Rows(*rows.get_single_element()))

        @tff.tensorflow.computation
        def none() -> tf.Tensor:
            return tf.zeros([0], tf.float64)

        union = tff.tensorflow.computation(graphs.union, [times_type, times_type])
        as_it_is = tff.tensorflow.computation(lambda times: times, times_type)

        @tff.federated_computation(tff.FederatedType(self._rows, tff.CLIENTS))
        def event_times(rows: Any) -> Any:
            return tff.federated_aggregate(tff.federated_map(times_of, rows), none(), union, union, as_it_is)

        return np.asarray(event_times(self._datasets))


@contextlib.contextmanager
def linear_model(table: Table, family: str, secure_sums: bool, runtime: Optional[Runtime]) -> Iterator[TffFederation]:
    """Yield the clients of a table on the workers of a runtime; on a worker of our own if there is none."""
    with installed(runtime):
        yield TffFederation(table, family, secure_sums)
