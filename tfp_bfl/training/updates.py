"""The target of local training, and updates from the gradients of a batch by a Keras optimizer."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.layers import without_autograph
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.optimizers import SGD, Optimizer, optimizer_of
from tfp_bfl.weights import FlatWeights, Population
from tfp_bfl.weights.flat import Draw, Prior

KLS = {
    "total": "KL / N with the N of all clients: rules over rounds count the prior once",
    "client": "KL / N_k: each client counts the whole prior",
    "product": "KL to prior^(1 / K), / N_k: the product of all clients' densities counts the prior once",
}


class Target(NamedTuple):
    """The q closest to prior(w) likelihood(w)^(n / N_k), of the client's likelihood.

    loss = mean over the examples of -log p(y | x, w) + KL[q || prior] / n

    Fields:
      prior: over the variational weights.
      size: n, the effective number of examples: a scalar.
      least_precision: the least precision that training may reach [D], 0 for none. The local prior of Bayesian ADMM may
        have a negative precision, and noise of the curvature could then leave none.
    """

    prior: Prior
    size: tf.Tensor
    least_precision: Any = 0.0


def target_of(
    kl: str,
    weighting: str,
    temperature: Scalar,
    prior: Prior,
    federation: Population,
    num_examples: tf.Tensor,
) -> Target:
    """Return the target of a client of `num_examples`.

    The log-linear pool of the clients' optima, prior likelihood_k^(1 / b_k) with the weights b_k of the pool, is the
    posterior: prior prod_k likelihood_k. So, for "total",

    n = N_k / b_k = N for b_k = N_k / N, and K N_k for equal weights

    Args:
      kl: one of `KLS`.
      weighting: of the server. Where it is known only after the round, n is N.
      temperature: n is divided by it: below 1 the posterior is sharper, that of more examples than there are. So it is
        a cold likelihood: the prior stays, and the mode is that of prior likelihood^(1 / T).
      prior: over the variational weights.
      federation: its size.
      num_examples: N_k, a float.
    """
    clients = tf.maximum(tf.cast(federation.num_clients, tf.float32), 1.0)
    if kl == "product":
        prior = prior._replace(
            precision=prior.precision / clients, log_stddev=prior.log_stddev + 0.5 * tf.math.log(clients)
        )
    size = num_examples
    if kl == "total":
        of_all = tf.maximum(tf.cast(federation.num_examples, tf.float32), num_examples)
        size = clients * num_examples if weighting == "equal" else of_all
    return Target(prior, size / temperature)


Schedule = float | Callable[[tf.Tensor], tf.Tensor]


class Batch(NamedTuple):
    """Facts about a batch that a step uses.

    Fields:
      in_values: the gradient of the batch's loss without KL, in means and point weights [D + P].
      in_noise: the same in the noise s eps [D].
      in_noise_of_drawn_labels: () -> the same for labels drawn from the model's own prediction [D]; None unless the
        update asks for it.
      kl_in_values, kl_in_log_stddev: of KL[q || prior], [D + P] and [D].
      draw: s and s eps [D].
      size: B, a scalar.
      number: of steps before this one, a scalar.
      max_norm: of the gradient that SGD follows, KL included; None for no bound.
    """

    in_values: tf.Tensor
    in_noise: tf.Tensor
    in_noise_of_drawn_labels: Any
    kl_in_values: tf.Tensor
    kl_in_log_stddev: tf.Tensor
    draw: Draw
    size: tf.Tensor
    number: tf.Tensor
    max_norm: float | None = None


class Update(Protocol):
    """Steps the weights that it was made for.

    Attributes:
      noise: the mode of `layers.sampling` in which a batch draws its weights.
      draws_labels: a step asks for `in_noise_of_drawn_labels`.
    """

    noise: str
    draws_labels: bool

    def start(self, round: tf.Tensor, rounds: tf.Tensor | int = 0) -> None:
        """Begin anew, in this round of so many; 0 where their number is not known."""

    def step(self, batch: Batch, target: Target) -> None:
        """Apply one step to the weights."""


class ByOptimizer:
    """Means, point weights and log s by a Keras optimizer: Bayes by backprop.

    g = the gradient of the loss,   d loss / d log s = (d NLL / d noise) s eps + ((s / t)^2 - 1) / n

    Args:
      weights: of the model.
      optimizer_fn: a name in `optimizers.OPTIMIZERS`, or a function that builds a Keras optimizer. The optimizer sees
        all means and point weights as one vector, all log s as another.
      learning_rate: a number, or a function of the rounds done so far.
      stddev_rate: times the learning rate: the rate of log s.

    Source: Blundell et al. 2015 (arXiv:1505.05424), section 3.2.
    """

    draws_labels = False

    def __init__(
        self,
        weights: FlatWeights,
        optimizer_fn: Optimizer,
        learning_rate: Schedule,
        stddev_rate: float = 1.0,
        noise: str = "flipout",
    ):
        self.noise = noise
        groups = [weights.variables] if stddev_rate == 1 else [[v] for v in weights.variables]
        self._groups = [(group, *resettable(optimizer_fn, group)) for group in groups]
        self._learning_rate = learning_rate
        self._factors = 1.0, stddev_rate

    def start(self, round: tf.Tensor, rounds: tf.Tensor | int = 0) -> None:
        rate = rate_of(self._learning_rate, round, rounds)
        for (_, optimizer, reset), factor in zip(self._groups, self._factors):
            reset()
            optimizer.learning_rate.assign(factor * rate)

    def step(self, batch: Batch, target: Target) -> None:
        in_values = batch.in_values + batch.kl_in_values / target.size
        # noise = s eps, so that its derivative in log s is itself.
        in_log_stddev = batch.in_noise * batch.draw.noise + batch.kl_in_log_stddev / target.size
        gradients = iter((in_values, in_log_stddev))
        for group, optimizer, _ in self._groups:
            of_group = [(bounded(next(gradients), optimizer, batch.max_norm), variable) for variable in group]
            optimizer.apply_gradients(of_group)


def bounded(gradient: tf.Tensor, optimizer: keras.optimizers.Optimizer, max_norm: float | None) -> tf.Tensor:
    """Return a gradient [D], scaled to a norm of at most `max_norm` for SGD; other optimizers scale it themselves."""
    is_bounded = max_norm is not None and isinstance(optimizer, SGD)
    return tf.clip_by_norm(gradient, max_norm) if is_bounded else gradient


def check_schedules(**values: Schedule | None) -> None:
    """Raise InvalidArgument for a number outside its range; functions of the rounds, and None, are not checked."""
    for name, value in values.items():
        if value is not None and not callable(value):
            check_number(value, name, zero=True)


def rate_of(learning_rate: Schedule, round: tf.Tensor, rounds: tf.Tensor | int = 0) -> Any:
    """Return the learning rate of a round, in a run of so many; 0 where their number is not known."""
    if not callable(learning_rate):
        return learning_rate
    known = {"rounds": rounds} if hasattr(learning_rate, "knows_rounds") else {}
    return cast(Any, learning_rate)(round, **known)


def resettable(
    optimizer_fn: Optimizer, variables: list[tf.Variable]
) -> tuple[keras.optimizers.Optimizer, Callable[[], None]]:
    """Return an optimizer of the variables, and a function that starts its state anew."""
    make, made = optimizer_of(optimizer_fn), []  # type: Any, list[tuple[tf.Variable, Any]]

    def remember(create: Callable[..., tf.Variable], **kwargs: object) -> tf.Variable:
        variable = create(**kwargs)
        made.append((variable, kwargs["initial_value"]))
        return variable

    with tf.variable_creator_scope(remember):
        optimizer = make()
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise InvalidArgument(
                f"optimizer_fn gives {type(optimizer)}, but must give an optimizer of tf.keras.optimizers, and not of "
                "its legacy module."
            )
        optimizer.build(variables)
    if isinstance(optimizer, keras.optimizers.Adafactor) or optimizer.clipnorm:
        raise InvalidArgument(
            "optimizer_fn gives an optimizer that treats each weight tensor apart (Adafactor, or clipnorm), but here "
            "weights are flat vectors: use global_clipnorm, clipvalue, or another optimizer."
        )

    @without_autograph
    def reset() -> None:
        for variable, initial in made:
            variable.assign(initial() if callable(initial) else initial)

    return optimizer, reset
