"""Groups of options, and the types of their values."""

from collections.abc import Callable
from typing import Annotated, Any, dataclass_transform

import pydantic
from pydantic import Field
from pydantic.fields import FieldInfo

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.options.choices import Choices

INT32_MAX = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
CountOrZero = Annotated[int, Field(ge=0, le=INT32_MAX)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
ShareOrZero = Annotated[float, Field(ge=0, lt=1)]


def option(
    default: Any, description: str, *, argument: str | None = "", names: Choices | None = None, **limits: Any
) -> Any:
    """Declare an option: a field of a group.

    Args:
      default: of the option.
      description: for the help.
      argument: of the recipe; "group.argument" for one in a dictionary of options. "" for one that has the option's
        name, None for an option that goes to no argument, or is part of one that `Group.arguments` makes.
      names: that it can take.
      **limits: of `pydantic.Field`.
    """
    extra: Any = {"argument": argument, "names": names}
    return Field(default, description=description, json_schema_extra=extra, **limits)


def extra(field: Any, what: str) -> Any:
    """Return the `argument` or the `names` that `option` gave a field."""
    return field.json_schema_extra[what]


@dataclass_transform(frozen_default=True, field_specifiers=(option,))
class Group:
    """Options that belong together: a frozen dataclass with what they refuse and which arguments of a recipe they make.

    `config` is the configuration of a run, which has the options of all groups; those of other algorithms read as their
    defaults.
    """

    def __init_subclass__(cls) -> None:
        pydantic.dataclasses.dataclass(cls, frozen=True, config=pydantic.ConfigDict(extra="forbid"))

    def check(self, config: Any) -> None:
        """Raise InvalidArgument where the options do not fit each other or the configuration."""

    def arguments(self, config: Any, given: dict[str, Any], unlabelled: Callable[[], Any]) -> dict[str, Any]:
        """Return the arguments of the recipe, from those that its options are; `unlabelled` gives the server's
        examples without labels.
        """
        del config, unlabelled
        return given

    def fitted(
        self, config: Any, model_fn: Any, clients: Callable[[], Any], likelihood: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of the recipe that are fitted to the clients' data.

        Args:
          clients: gives the clients of the training, or None where their data are not at hand.
        """
        del config, model_fn, clients, likelihood
        return {}

    def require(self, giver: str, what: str, *names: str) -> None:
        """Raise InvalidArgument if one of the named options is set without `giver`, the option that adds `what`."""
        for name in names:
            if getattr(self, giver) is None and getattr(self, name) != fields_of(type(self))[name].default:
                raise InvalidArgument(f"{name} is of {what}, and there is none: give {giver}.")


def fields_of(kind: type) -> dict[str, FieldInfo]:
    """Return the options of a group by name."""
    return dict(getattr(kind, "__pydantic_fields__"))  # noqa: B009


def of_config(kind: type[Group], config: Any) -> Group:
    """Return the group with a configuration's values."""
    return kind(**{name: getattr(config, name) for name in fields_of(kind)})
