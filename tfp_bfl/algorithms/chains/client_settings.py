"""Compressors, probabilities of taking part and memory rates of the clients of a chain, equal or one for each."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.compression import Compressor, by_client, by_tensor, parse_compressor
from tfp_bfl.compression.by_client import NUMBER_BITS
from tfp_bfl.errors import InvalidArgument, check_number, check_probabilities, is_by_client
from tfp_bfl.models import as_model_fn
from tfp_bfl.tensors import Scalar
from tfp_bfl.training.potential import Potential
from tfp_bfl.weights import ScaledGradient

_T = TypeVar("_T")
PerClient: TypeAlias = _T | Sequence[_T]
AnyCompressor = str | Compressor


class Settings(NamedTuple):
    """The settings of one client: numbers if they are those of all clients, else scalar tensors.

    Fields:
      compressor: C_i.
      bound: expected bits of a message by theory.
      participation: p_i.
      memory_rate: alpha_i, or None without a memory.
    """

    compressor: Compressor
    bound: Any
    participation: Any
    memory_rate: Any


class ClientSettings(NamedTuple):
    """The settings of all clients.

    Fields:
      of: a client's number -> its `Settings`.
      estimate: (g_i [D], a client's number) -> what the server sums: g_i, or a `ScaledGradient` where `is_scaled`.
      shared: a compressor that decodes the messages of all clients.
      is_scaled: probabilities or memory rates are given by client.
      everyone: all clients take part in each round.
      num_clients: the number of clients, or None if all have the same settings.
    """

    of: Callable[[Scalar], Settings]
    estimate: Callable[[tf.Tensor, Scalar], Any]
    shared: Compressor
    is_scaled: bool
    everyone: bool
    num_clients: int | None


def client_settings(
    potential: Potential,
    compressor: PerClient[AnyCompressor],
    per_tensor: bool,
    participation: PerClient[float],
    rate: PerClient[float] | None,
) -> ClientSettings:
    """Check settings that are one value for all clients, or a sequence with one for each.

    Args:
      potential: of the model.
      compressor, per_tensor, participation: as of `stochastic_gradient`.
      rate: `memory_rate` of `stochastic_gradient`.
    """
    given: dict[str, Any] = {"compressor": compressor, "participation": participation, "memory_rate": rate}
    lengths = {name: len(value) for name, value in given.items() if is_by_client(value)}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        which = " and ".join(f"{name} has {number}" for name, number in lengths.items())
        raise InvalidArgument(f"{which} entries, but each must have one entry for each client.")
    number = next(iter(lengths.values()), None)
    each = lambda value: list(value) if is_by_client(value) else [value] * (number or 1)
    compressors = _compressors_of(each(compressor), potential, per_tensor)
    shares, rates = each(check_probabilities(participation, "participation")), each(rate)
    for some_rate, some_compressor in zip(rates, compressors):
        _check_memory_rate(some_rate, some_compressor, potential.size)
    is_scaled = is_by_client(participation) or is_by_client(rate)
    bounds = [float(c.bound(potential.size)) for c in compressors]
    compressor_for = lambda client: compressors[0]
    if len(set(compressors)) > 1:
        compressor_for, bounds = by_client(compressors, potential.size), [bound + NUMBER_BITS for bound in bounds]

    def of(client: Scalar) -> Settings:
        own = [compressors[0], bounds[0], shares[0], rates[0]]
        if number is not None:
            place = tf.clip_by_value(client, 0, number - 1)  # A site may send any number as its own.
            pick = lambda values: None if values[0] is None else tf.gather(tf.constant(values, tf.float32), place)
            own = [compressor_for(place), *map(pick, (bounds, shares, rates))]
        return Settings(*own)

    def estimate(g: tf.Tensor, client: Scalar) -> Any:
        if not is_scaled:
            return g
        own = of(client)
        return ScaledGradient(g / own.participation, () if own.memory_rate is None else own.memory_rate * g)

    return ClientSettings(of, estimate, compressor_for(0), is_scaled, min(shares) == 1, number)


def memory_rate(
    model_fn: Callable[[], keras.Model],
    *,
    compressor: PerClient[AnyCompressor] = "none",
    per_tensor: bool = False,
    **others: object,
) -> PerClient[float]:
    """Return 1 / (1 + omega), with which clients' memories come closest to what they follow: a number, or one for each
    client where compressors are given by client; arguments as of `stochastic_gradient`.
    """
    del others
    potential = Potential(as_model_fn(model_fn)())
    several = is_by_client(compressor)
    given: list[Any] = list(compressor) if several else [compressor]
    if not given:
        raise InvalidArgument("compressor has 0 entries, but must have one entry for each client.")
    rates = tuple(1 / (1 + c.omega(potential.size)) for c in _compressors_of(given, potential, per_tensor))
    return rates if several else rates[0]


def _compressors_of(given: Sequence[AnyCompressor], potential: Potential, per_tensor: bool) -> list[Compressor]:
    """Return compressors by their names, or as they are, of whole vectors or tensor by tensor; equal ones once."""
    sizes = [v.shape.num_elements() for v in potential.leaves]
    made: dict[AnyCompressor, Compressor] = {}
    for one in dict.fromkeys(given):
        compressor = one if isinstance(one, Compressor) else parse_compressor(one)
        if not compressor.unbiased:
            raise InvalidArgument(
                f"The compressor {compressor.name!r} is biased, and so would the chain be: use one such as "
                "'quantiser:16'."
            )
        made[one] = by_tensor(compressor, sizes) if per_tensor else compressor
    return [made[one] for one in given]


def _check_memory_rate(rate: float | None, compressor: Compressor, size: int) -> None:
    """Raise InvalidArgument for a rate with which the memories would run away from what is sent."""
    if rate is None:
        return
    most = 1 / (1 + compressor.omega(size))
    if check_number(rate, "memory_rate") > most * (1 + 1e-6):
        raise InvalidArgument(
            f"memory_rate is {rate:g}, but must be at most 1 / (1 + omega), {most:.6g} for the compressor "
            f"{compressor.name} of {size} weights."
        )
