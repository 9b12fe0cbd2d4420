"""The JSON Schema of configuration files, made from the declarations of the options."""

import re
from typing import Any, cast

import pydantic
from pydantic.fields import FieldInfo

from tfp_bfl.app.options import own_model
from tfp_bfl.app.options.config import fields
from tfp_bfl.options.choices import Choices
from tfp_bfl.options.group import extra
from tfp_bfl.options.methods import ALGORITHMS, POSTERIORS

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NAME = "Names of the rows of a sweep, each with options that no other row has, such as FedAvg: algorithm=fed_opt."
# FILE.py:FUNCTION of a user.
_CODE = r"\.py:"


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of `tfp-bfl run --config FILE`, by which an editor completes and checks it.

    Each option has its type, default, description and, of options with choices, the names. Other names than those of
    options are refused unless the file names a function of a user's file, of which parameters are options too.
    """
    found = {name: _of_option(name, field) for name, field in fields().items()}
    found["name"] = {"type": "object", "additionalProperties": {"type": "string"}, "description": _NAME}
    code = [{"required": [name], "properties": {name: {"pattern": _CODE}}} for name in sorted(own_model.OPTIONS)]
    return {
        "$schema": _DRAFT,
        "title": "Configuration of tfp-bfl run",
        "type": "object",
        "properties": found,
        "if": {"anyOf": code},
        "else": {"propertyNames": {"enum": [*found]}},
    }


def _of_option(name: str, field: FieldInfo) -> dict[str, Any]:
    """Return the schema of an option: that of its type, and of one with choices their names, for an editor to offer."""
    annotated = pydantic.create_model("_Option", value=(cast(Any, field.annotation), field))
    own = annotated.model_json_schema()["properties"]["value"]
    kept = {key: x for key, x in own.items() if key not in ("argument", "names", "title")}
    every = Choices("algorithm", (*ALGORITHMS, *POSTERIORS))
    names = every if name == every.what else extra(field, "names")
    if names is None:
        return kept
    plain = [form for form in names.entries if ":" not in form and not names.several]
    others = [f"^{re.escape(form.partition(':')[0])}\\b" for form in names.entries if form not in plain]
    if name in own_model.OPTIONS:
        others.append(_CODE)
    is_optional = {"type": "null"} in own.get("anyOf", ())
    kept.pop("anyOf", None)
    return {
        **kept,
        "anyOf": [{"enum": [*plain, *[None] * is_optional]}, *({"type": "string", "pattern": x} for x in others)],
    }
