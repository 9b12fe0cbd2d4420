"""The messages between the server and its clients."""

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.posterior import MeanField
from tfp_bfl.weights.kinds import Sent
from tfp_bfl.weights.model_weights import ModelWeights


class Population(NamedTuple):
    """The size of a federation, clients outside the round included: scalars.

    `simulate` knows it. Where nobody has said, it is what the largest round so far has held: 0 before the first.

    Fields:
      num_clients: K, int32.
      num_examples: N, of all of them together, int64.
      most_weight: the largest weight with which a client of the next round is pooled, float32.
      rounds: R, of the run, int32; 0 where nobody has said.
    """

    num_clients: Any = 0
    num_examples: Any = 0
    most_weight: Any = float(np.finfo(np.float32).max)  # Any: all of a state is finite.
    rounds: Any = 0


class RoundSize(NamedTuple):
    """The size of a federation, as `Population`, and of a round.

    Fields:
      num_clients, num_examples, most_weight, rounds: of the federation.
      present: number of sound clients of the round and of their examples, a `Population`.
      sized: False in the first round after `with_clients` without the clients' sizes, a scalar bool: num_examples is
        then that of the round.
    """

    num_clients: Any
    num_examples: Any
    most_weight: Any
    present: Population
    sized: Any = True
    rounds: Any = 0

    def share(self, weighting: str, expected: int | None = None, sized: bool | tf.Tensor = True) -> tf.Tensor:
        """Return the fraction of all clients' weights that is in the round, a scalar; 0 of an empty federation.

        Args:
          weighting: "train_size" for the fraction of the examples, any other for that of the clients.
          expected: number of clients of a round in the place of the real one, which privacy hides; None for that.
          sized: whether num_examples is that of all clients; if not, it is the fraction of the clients.
        """
        reals = lambda *values: (tf.cast(x, tf.float64) for x in values)
        in_round = self.present.num_clients if expected is None else expected
        value = tf.math.divide_no_nan(*reals(in_round, self.num_clients))
        if weighting == "train_size":
            by_examples = tf.math.divide_no_nan(*reals(self.present.num_examples, self.num_examples))
            value = tf.where(sized, by_examples, value)
        return tf.cast(value, tf.float32)


class Anchor(NamedTuple):
    """Weights that a server step sends to clients besides the initial weights.

    Fields:
      point: the point weights of a former round, leaves.
      number: of this anchor, int32 from 0 on.
    """

    point: Any
    number: Any


class Pruned(NamedTuple):
    """A message to a client about pruned weights: they are 0 and stay so.

    Fields:
      kept: 1 for each variational weight that it has, else 0: floats [D].
    """

    kept: Any


class LinearTerm(NamedTuple):
    """A term <gradient, w> of a client's loss, which corrects its drift: what `ServerMessage.extra` holds.

    Fields:
      gradient: added to the gradient in means and point weights: floats [D + P], flattened one after another.
    """

    gradient: Any


class AtTemperature(NamedTuple):
    """The posterior temperature that the server chose, a scalar, in `ServerMessage.extra`."""

    temperature: Any


class ServerMessage(NamedTuple):
    """The message of the server to a client of a round.

    Fields:
      weights: to start from.
      round: rounds done so far, scalar int32.
      extra: further content for all clients from the server step (`ServerStep.send`).
      memory: what this client has kept of the round that it was last in (`ClientWork.memory`).
      federation: its size.
    """

    weights: ModelWeights
    round: Any
    extra: Any = ()
    memory: Any = ()
    federation: Population = Population()


class TrainingMetrics(NamedTuple):
    """Metrics of a client's training, each a scalar.

    Fields:
      nll: mean negative log likelihood of the examples seen, nats per example.
      kl: KL[q || prior] after the last step, nats.
      tempered_elbo: -(nll + kl T / n), nats per example: the negative of the training objective, with the temperature T
        and the number of examples n of the training; at T = 1 the evidence lower bound per example.
      diverged_at: the first local step, counted from 1, with a loss that is not finite or above 1e6 nats per example,
        or after which the weights are not finite; 0 if there is none or it is not known. int32.
    """

    nll: tf.Tensor
    kl: tf.Tensor
    tempered_elbo: tf.Tensor
    diverged_at: Any = 0


class ClientPosterior(NamedTuple):
    """The message of a client with a posterior that the server stores separately.

    Fields:
      client: its number, scalar int32.
      num_examples: that it was trained on, scalar int32.
      posterior: over the last of the model's point weights.
      moments: BatchNorm's statistics at the posterior's mean.
    """

    client: Any
    num_examples: Any
    posterior: Any
    moments: MeanField


class ClientCurvature(NamedTuple):
    """A client's sums over its examples at the server's weights, of which Laplace's approximation is made.

    Fields:
      client: its number, scalar int32.
      num_examples: the number of examples, scalar int32.
      curvature: the Gauss-Newton matrix of the negative log likelihood: its diagonal, leaves like the last of the
        model's point weights; the matrix [D, D] over these leaves, flattened one after another; or a `SharedCurvature`.
      gradient: of the negative log likelihood, leaves like these weights.
      nll: the negative log likelihood in nats, a scalar.
    """

    client: Any
    num_examples: Any
    curvature: Any
    gradient: Any
    nll: Any


class ScaledGradient(NamedTuple):
    """A client's gradient where clients differ in how often they take part, or in their memory rates.

    Fields:
      gradient: g_i / p_i, for the probability p_i with which the client takes part [D].
      memory: alpha_i g_i, by which the client's memory changes [D]; () where clients have none.
    """

    gradient: Any
    memory: Any = ()


class Compact(NamedTuple):
    """The compressed message of a client, in place of its result's weights.

    Fields:
      code: a compressor's message; on its way its bytes, uint8 [n].
      rest: what is not compressed: a structure of tensors.
    """

    code: Any
    rest: Any = ()


class ClientResult(NamedTuple, Generic[Sent]):
    """The result of client work.

    Fields:
      weights: the local `ModelWeights`, or what else the process's rule takes: any structure of tensors.
      num_examples: that it was trained on, a scalar.
      metrics: of the training.
      counts: other numbers to report, name -> scalar, such as the bits sent: listed by client, and summed.
      memory: what the client keeps for the next round that it is in.
      sent: a `Compact` from which the weights follow, where that is shorter; else ().
      extra: statistics beside the weights, any structure of floats, of which the server step gets the mean by
        the clients' weights (`ClientWork.extra`); () for none.
    """

    weights: Sent
    num_examples: tf.Tensor
    metrics: TrainingMetrics
    counts: Mapping[str, tf.Tensor] = {}
    memory: Any = ()
    sent: Any = ()
    extra: Any = ()
