"""The class of strategies that `interop.flower_strategy` returns; importing it needs Flower."""

import logging
from collections.abc import Iterable, Sequence

from tfp_bfl.data.names import canonical
from tfp_bfl.errors import InvalidArgument, MissingDependency
from tfp_bfl.sites.interop.pooling import Answer, Server

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg, Result
except ImportError as error:
    raise MissingDependency(
        "interop.flower_strategy needs Flower, which is not installed: install it with pip install 'flwr>=1.42'."
    ) from error

logger = logging.getLogger(__name__)


class BayesianStrategy(FedAvg):
    """FedAvg of Flower with the pooling of a `Server`; see `interop.flower_strategy`."""

    def __init__(self, server: Server, *, client_key: str | None = None, **options: object):
        super().__init__(**options)
        self.server = server
        self._client_key = client_key

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, num_rounds: int = 3, **options: object
    ) -> Result:
        """Run the rounds that are left of `num_rounds`; those that the server's folder holds are done already.

        A round without a valid reply counts as run, and leaves the server as it is. `initial_arrays` must be None: the
        server has them. Flower's result counts rounds from 1 in each call.
        """
        if initial_arrays is not None:
            raise InvalidArgument("The first arrays are those of the server: leave initial_arrays out.")
        left = num_rounds - self.server.round
        if left <= 0:
            return Result(arrays=self._record())
        return super().start(grid, self._record(), left, **options)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round, which has the server's number."""
        return super().configure_train(self.server.round + 1, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the server's arrays after the round and the numbers that it reports; None without a valid reply."""
        valid, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        metrics = self.server.next_or_warn(self._answers(valid), logger.warning) if valid else None
        if metrics is None:
            return None, None
        numbers = {name: x for name, x in metrics.items() if isinstance(x, (int, float))}
        return self._record(), MetricRecord(numbers)

    def _record(self) -> ArrayRecord:
        return ArrayRecord({name: Array(x) for name, x in self.server.arrays.items()})

    def _answers(self, messages: Sequence[Message]) -> list[Answer]:
        """Return the answers that can be read, without those of nodes that state the same client."""
        answers: dict[str, list[Answer]] = {}
        for message in messages:
            try:
                answer = self._answer(message)
            except Exception as error:  # What a node sends may be broken in any way.
                logger.warning("The reply of node %d can't be read: %s", message.metadata.src_node_id, error)
                continue
            answers.setdefault(answer.client, []).append(answer)
        for client, several in answers.items():
            if len(several) > 1:
                logger.warning("%d nodes state that they are client %s: all are left out.", len(several), client)
        return [several[0] for several in answers.values() if len(several) == 1]

    def _answer(self, message: Message) -> Answer:
        content = message.content
        arrays = {name: x.numpy() for record in content.array_records.values() for name, x in record.items()}
        metrics = {name: x for record in content.metric_records.values() for name, x in record.items()}
        node = message.metadata.src_node_id
        client = node if self._client_key is None else metrics.get(self._client_key, node)
        return Answer(canonical(str(client)) or str(node), metrics.get(self.weighted_by_key, -1), arrays)
