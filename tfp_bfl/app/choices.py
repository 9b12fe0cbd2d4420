"""Names that options can take, read from the source of the tables that hold them.

To ask a table itself would import TensorFlow, for which a user with a misspelt name should not have to wait.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from typing import NamedTuple

import tfp_bfl
from tfp_bfl.errors import lookup


class Table(NamedTuple):
    """Where names are: a dictionary or a sequence, written out or made of functions by their `__name__`.

    Fields:
      what: one of them is called.
      path: of the file, from the folder of the package on.
      constants: of the file; together they are the table.
    """

    what: str
    path: str
    constants: tuple[str, ...]

    def forms(self) -> list[str]:
        """How each is written, such as "iid" and "dirichlet:ALPHA"."""
        return list(_read(self))

    def check(self, value: str) -> None:
        """Raises InvalidArgument where there is no such name; what follows its colon is not looked at."""
        names = {form.partition(":")[0]: form for form in self.forms()}
        takes_arguments = any(":" in form for form in names.values())
        lookup(names, value.partition(":")[0] if takes_arguments else value, self.what)


MODELS = Table("model", "models/__init__.py", ("MODELS",))
KINDS = Table("kind of model", "models/kinds.py", ("KINDS",))
NORMALIZATIONS = Table("normalization", "models/kinds.py", ("NORMALIZATIONS",))
PRECISIONS = Table("precision", "models/kinds.py", ("PRECISIONS",))
RULES = Table("rule", "rules/__init__.py", ("RULES",))
ROBUST = Table("defence", "rules/robust.py", ("ROBUST",))
STARTS = Table("start", "rules/kernel.py", ("STARTS",))
KERNELS = Table("kernel", "rules/kernel.py", ("KERNELS",))
BANDWIDTHS = Table("bandwidth", "rules/bandwidths.py", ("BANDWIDTHS", "ADAPTIVE"))
WEIGHTINGS = Table("weighting", "weighting.py", ("WEIGHTINGS", "STACKED_WEIGHTINGS"))
STACKED_WEIGHTINGS = Table("weighting", "weighting.py", ("STACKED_WEIGHTINGS",))
PARTITIONS = Table("partition", "data/partition_names.py", ("PARTITIONS",))
ENGINES = Table("engine", "federated/engines.py", ("ENGINES",))
SERVER_OPTIMIZERS = Table("server optimizer", "federated/optimizers.py", ("SERVER_OPTIMIZERS",))


@functools.cache
def _read(table: Table) -> tuple[str, ...]:
    source = (pathlib.Path(tfp_bfl.__file__).parent / table.path).read_text(encoding="utf-8")
    values = {}
    for node in ast.parse(source).body:
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name):
                values[target.id] = node.value  # type: ignore[attr-defined]
    return tuple(form for constant in table.constants for form in _forms(values[constant]))


def _forms(node: ast.expr) -> list[str]:
    if isinstance(node, ast.DictComp):  # {f.__name__: f for f in (one, other)}
        return _forms(node.generators[0].iter)
    if isinstance(node, ast.Dict):
        return [_form(key, value) for key, value in zip(node.keys, node.values)]
    if isinstance(node, (ast.Tuple, ast.List)):
        return [form for element in node.elts for form in _forms(element)]
    return [node.id if isinstance(node, ast.Name) else ast.literal_eval(node)]


def _form(key: ast.expr | None, value: ast.expr) -> str:
    """A name and, of an entry such as _Entry(function, "argument"), its argument."""
    (name,) = _forms(key)  # type: ignore[arg-type]
    others = [x.value for x in getattr(value, "args", []) if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    return f"{name}:{others[0].upper()}" if isinstance(value, ast.Call) and others else name
