"""An algorithm: its recipe, its groups of options, what it requires, and what it takes for open options."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options import choices
from tfp_bfl.options.group import Group, fields_of


def rate_of_optimizer(config: Any) -> float:
    """Return the rate of the Keras optimizer."""
    return config.learning_rate or choices.OPTIMIZERS.numbers()[config.optimizer or "momentum"]


def rate_of_samples(config: Any) -> float:
    """Return a rate that stays over the rounds, as iterates of the clients or rounds are samples."""
    return config.learning_rate or 0.03 if config.optimizer is None else rate_of_optimizer(config)


def rate_of_inference(config: Any, default: Callable[[Any], str]) -> float:
    """Return the rate of the inference; `default` gives its name where none is given."""
    optimizer = config.optimizer or bfl.training.inference.default_optimizer(config.update_prior)
    return config.learning_rate or bfl.training.default_rate(config.inference or default(config), optimizer)


def rate_of_learner(config: Any) -> float:
    """Return the rate of a learner of meta-learning."""
    return config.learning_rate or bfl.algorithms.personal.work.RATES[config.learner]


def steps_of_epochs(config: Any, num_examples: int) -> int:
    """Return the batches of all local epochs."""
    return -(-num_examples // config.batch_size) * config.local_epochs


def steps_of_learner(config: Any, num_examples: int) -> int:
    """Return the steps of a learner, each of which may take several batches."""
    batches = bfl.algorithms.personal.work.BATCHES[config.learner]
    return -(-num_examples // (batches * config.batch_size)) * config.local_epochs


def inference_of_posterior(config: Any) -> str:
    """Return the inference that the other options imply."""
    private = config.example_clip_norm is not None
    return bfl.training.inference.settings_for(update_prior=config.update_prior, example_privacy=private).inference


def inference_of_factors(config: Any) -> str:
    """Return the inference of clients with approximate likelihood factors."""
    from tfp_bfl.algorithms.factors.work import FACTORS_INFERENCE

    return FACTORS_INFERENCE


class Method(NamedTuple):
    """An algorithm.

    Fields:
      recipe: of `tfp_bfl.algorithms`, and the algorithm's name.
      summary: of its clients and its server, in one line.
      groups: of its options, in the order in which they make arguments.
      requires: of a run, see `fits`: "point weights", "variational weights", "kind flipout" or "kind
        variational_dropout" of the model, "classes" of the data, "equal chances" and "one client" of the cohorts,
        "start" for a complete run at whose weights a posterior is found.
      gives: "adapted models" where clients are scored before and after a step of adaptation, "personal models" where
        each client has one, "samples" where rounds are draws of a posterior.
      defaults: of a configuration with this algorithm, where they differ from the options' own.
      of_recipe: options of models that the recipe uses itself.
      schedule: of the learning rate, where none is given.
      rate: (configuration) -> the learning rate; None for that of `defaults`.
      steps: (configuration, number of examples) -> the local steps in a round of a client.
      inference: (configuration) -> the inference where none is given.
    """

    recipe: str
    summary: str
    groups: tuple[type[Group], ...]
    requires: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = MappingProxyType({})
    of_recipe: tuple[str, ...] = ()
    schedule: str = "constant"
    rate: Callable[[Any], float] | None = None
    steps: Callable[[Any, int], int] = steps_of_epochs
    inference: Callable[[Any], str | None] = lambda config: None

    @property
    def options(self) -> dict[str, FieldInfo]:
        """The options by name."""
        return options_of(self.groups)

    @property
    def make(self) -> Callable[..., Any]:
        """The recipe."""
        return getattr(bfl.algorithms, self.recipe)


@functools.cache
def options_of(groups: tuple[type[Group], ...]) -> dict[str, FieldInfo]:
    """Return the options of some groups by name."""
    found: dict[str, FieldInfo] = {}
    homes: dict[str, str] = {}
    for kind in groups:
        for name, field in fields_of(kind).items():
            if name in found:
                raise InvalidArgument(
                    f"{name} is an option of the groups {homes[name]} and {kind.__name__}: declare it in one of them."
                )
            found[name], homes[name] = field, kind.__name__
    return found
