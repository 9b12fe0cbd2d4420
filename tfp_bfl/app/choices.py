"""Names that options can take, read from the source of the tables that hold them.

To ask a table itself would import TensorFlow, for which a user with a misspelt name should not have to wait.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from typing import Any, NamedTuple

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
        pairs = [(name, next((x for x in held if isinstance(x, str)), "")) for name, held in _entries(self)]
        return [f"{name}:{argument.upper()}" if argument else name for name, argument in pairs]

    def numbers(self) -> dict[str, float]:
        """The number that each entry holds, such as the learning rate of an optimizer."""
        return {name: next(x for x in held if isinstance(x, (int, float))) for name, held in _entries(self)}

    def check(self, value: str) -> None:
        """Raises InvalidArgument where there is no such name; what follows its colon is not looked at."""
        names = {form.partition(":")[0]: form for form in self.forms()}
        takes_arguments = any(":" in form for form in names.values())
        lookup(names, value.partition(":")[0] if takes_arguments else value, self.what)


MODELS = Table("model", "models/__init__.py", ("MODELS",))
KINDS = Table("kind of model", "models/kinds.py", ("KINDS",))
VARIATIONAL = Table("kind with variational weights", "models/kinds.py", ("VARIATIONAL",))
NORMALIZATIONS = Table("normalization", "models/kinds.py", ("NORMALIZATIONS",))
PRECISIONS = Table("precision", "models/kinds.py", ("PRECISIONS",))
RULES = Table("rule", "rules/__init__.py", ("RULES",))
ONE_SHOT = Table("rule for one round", "rules/rule.py", ("ONE_SHOT",))
ROBUST = Table("defence", "rules/robust.py", ("ROBUST",))
STARTS = Table("start", "rules/kernel.py", ("STARTS",))
KERNELS = Table("kernel", "rules/kernel.py", ("KERNELS",))
BANDWIDTHS = Table("bandwidth", "rules/bandwidths.py", ("BANDWIDTHS", "ADAPTIVE"))
WEIGHTINGS = Table("weighting", "weighting.py", ("WEIGHTINGS", "STACKED_WEIGHTINGS"))
PARTITIONS = Table("partition", "data/partition_names.py", ("PARTITIONS",))
TASKS = Table("task", "data/own.py", ("TASKS",))
EVALUATION_PRECISIONS = Table("precision of prediction", "evaluation/predictive.py", ("PRECISIONS",))
INFERENCES = Table("inference", "clients/inference.py", ("INFERENCES",))
OPTIMIZERS = Table("optimizer", "clients/optimizers.py", ("OPTIMIZERS",))
SCHEDULES = Table("schedule", "clients/schedules.py", ("SCHEDULES",))
NOISES = Table("noise", "clients/inference.py", ("NOISES",))
KLS = Table("kl", "clients/target.py", ("KLS",))
ESTIMATORS = Table("estimator", "clients/gradient.py", ("ESTIMATORS",))
AUGMENTATIONS = Table("augmentation", "data/augmentation.py", ("AUGMENTATIONS",))
COMPRESSORS = Table("compressor", "compression/compressors.py", ("COMPRESSORS",))
LEARNERS = Table("learner", "clients/meta_gradient.py", ("LEARNERS",))
KL_REDUCTIONS = Table("reduction of the KL", "clients/meta_learning.py", ("KL_REDUCTIONS",))
PERSONAL_VARIANCES = Table("source of variances", "models/personal_variances.py", ("PERSONAL_VARIANCES",))
VARIANCE_RANGES = Table("range of variances", "models/personal_variances.py", ("RANGES",))
PARAMETRIZATIONS = Table("parametrization", "layers/variational_dropout.py", ("PARAMETRIZATIONS",))
ENGINES = Table("engine", "federated/engines.py", ("ENGINES",))
FORMS = Table("form of progress", "app/progress.py", ("FORMS",))
SERVER_OPTIMIZERS = Table("server optimizer", "servers/optimizers.py", ("SERVER_OPTIMIZERS",))


@functools.cache
def _entries(table: Table) -> list[tuple[str, list[Any]]]:
    """The names, each with the literals of its entry, such as the argument in WithArgument(function, "argument")."""
    source = (pathlib.Path(tfp_bfl.__file__).parent / table.path).read_text(encoding="utf-8")
    found: dict[str, list[tuple[str, list[Any]]]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if getattr(target, "id", None) in table.constants:
                    found[target.id] = _names(node.value)  # type: ignore[attr-defined]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):  # TABLE.update(name=function)
            name, _, method = ast.unparse(node.value.func).partition(".")
            if name in table.constants and method == "update":
                pairs = [(str(keyword.arg), _literals(keyword.value)) for keyword in node.value.keywords]
                found[name] = [*found.get(name, []), *pairs]
    return [entry for constant in table.constants for entry in found[constant]]


def _names(node: ast.expr) -> list[tuple[str, list[Any]]]:
    if isinstance(node, ast.DictComp):  # {f.__name__: f for f in (one, other)}
        return _names(node.generators[0].iter)
    if isinstance(node, ast.Dict):
        return [(ast.literal_eval(key), _literals(x)) for key, x in zip(node.keys, node.values) if key is not None]
    if isinstance(node, (ast.Tuple, ast.List)):
        return [entry for element in node.elts for entry in _names(element)]
    return [(node.id if isinstance(node, ast.Name) else ast.literal_eval(node), [])]


def _literals(node: ast.expr) -> list[Any]:
    return [x.value for x in node.args if isinstance(x, ast.Constant)] if isinstance(node, ast.Call) else []
