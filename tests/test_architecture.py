"""Who may import whom, read from the source. Adding a package or an edge is a change to `MAY_IMPORT`."""

import ast
import re
from pathlib import Path

import pytest

from tfp_bfl.edges import EDGES

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "tfp_bfl"

EVERYTHING = None
# What the application uses of the library.
PUBLIC = {
    *("__init__", "algorithms", "clients", "compression", "data", "evaluation", "export", "federated", "models"),
    *("plots", "posterior", "privacy", "rules", "servers", "training", "weighting", "weights"),
}
# Longer names first decide: a module belongs to the longest of these that its name begins with.
MAY_IMPORT = {
    "__init__": EVERYTHING,
    "__main__": EVERYTHING,
    # The registry of the edges.
    "edges": EVERYTHING,
    # The edges, which the core imports by the registry alone.
    "sklearn": {"algorithms", "glm", "posterior", "__init__"},
    "glm": {"app.one_run", "data", "evaluation", "plots", "weights", "__init__"},
    # The command line: `cli` and `doctor`.
    "app": {"__init__", "app.options", "app.one_run", "data", "edges", "engines.tff", "federated", "options"},
    "sites.edge": {"sites.deployment"},
    "sites.deployment": {*PUBLIC, "app.options", "app.one_run", "glm", "sites"},
    "bench": {*PUBLIC, "app.options", "app.one_run", "options", "sites"},
    "app.one_run": {*PUBLIC, "app.options", "edges", "engines", "options"},
    "app.options": {*PUBLIC, "options", "training"},
    # Groups of options, whose arguments are made where they are asked for.
    "options": {
        *("__init__", "algorithms", "clients", "compression", "data", "federated", "privacy", "rules", "servers"),
        "training",
    },
    "algorithms": {
        *("contracts", "compression", "data", "federated", "clients", "training", "weights", "models", "privacy"),
        *("layers", "posterior", "rules", "weighting", "servers", "algorithms.kernel"),
    },
    "sites": {"contracts", "data", "federated"},
    "sites.interop": {*PUBLIC, "contracts", "sites", "weights"},
    "engines.ray": {"data", "federated"},
    "engines.tff": {"contracts", "federated"},
    "engines": {"engines.ray", "engines.tff"},
    "federated": {"contracts", "weights", "models", "layers", "posterior", "privacy", "data", "servers"},
    "algorithms.kernel": {"contracts", "rules", "weights", "posterior"},
    "contracts": {"weights", "posterior", "data"},
    "compression": set(),
    "clients": {*("contracts", "compression", "data", "training", "weights", "models", "layers", "posterior")},
    "training": {"contracts", "compression", "data", "weights", "models", "layers", "posterior"},
    "rules": {"contracts", "weights", "layers", "posterior"},
    "weighting": {"weights", "layers", "posterior"},
    "servers": {"contracts", "weights", "models", "layers", "posterior"},
    "evaluation": {"data", "weights", "models", "posterior", "layers"},
    "export": {"data", "weights", "models", "posterior", "layers", "evaluation"},
    "plots": {"evaluation", "posterior"},
    "models": {"data", "weights", "layers", "posterior"},
    "weights": {"layers", "posterior"},
    "layers": {"posterior"},
    "posterior": set(),
    "privacy": set(),
    "data": set(),
    **{name: set() for name in ("defaults", "display", "errors", "faces", "files", "keras", "labels", "logs")},
    **{name: set() for name in ("keywords", "machine", "named", "output", "tensors")},
}
# What a user waits for who asks for help or misspells a name: without TensorFlow.
QUICK = (
    *("tfp_bfl.__main__", "tfp_bfl.app.cli", "tfp_bfl.app.options.config", "tfp_bfl.data"),
    *(f"{edge.package}.edge" for edge in EDGES.values()),
)
# Refuse what is wrong with runs: the first reads their data.
REFUSES = ("tfp_bfl.app.one_run.run", "tfp_bfl.bench.runs", "tfp_bfl.bench.sweep")
# What fits and reports linear models.
STATISTICS = ("tfp_bfl.glm.fitting", "tfp_bfl.glm.report", "tfp_bfl.plots.forest", "tfp_bfl.plots.page")
TENSORFLOW = {"tensorflow", "tensorflow_probability", "tensorflow_federated"}
FOR_EVERYONE = {"defaults", "display", "errors", "faces", "files", "keras"} | {
    "labels",
    "logs",
    "machine",
    "named",
    "output",
    "keywords",
    "tensors",
}
ONLY_IMPORTER_OF_TFF = "tfp_bfl.engines.tff"
ENGINES = (
    *("federated/local.py", "federated/compiled.py", "engines/ray/cluster.py", "sites/party.py"),
    "engines/tff/engine.py",
)
# What an engine may ask TensorFlow for: to trace, to hold and to carry, but not to compute.
CARRYING = {"Tensor", "Variable", "convert_to_tensor", "data", "errors", "function", "keras", "nest", "resource"}
CARRYING |= {"Module", "saved_model", "__version__", "variable_creator_scope", "TensorSpec", "constant", "fill"}
CARRYING |= {"float32", "float64", "int32", "int64", "uint8", "zeros"}
MAX_LINES_OF_A_RECIPE = 40

FILES = sorted(LIBRARY.rglob("*.py"))


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def longest(parts):
    """The longest name in `MAY_IMPORT` that a dotted name below `tfp_bfl` begins with, or None."""
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((name for name in names if name in MAY_IMPORT), None)


def group(path):
    """The package or top-level module of `tfp_bfl` that a file belongs to, as `MAY_IMPORT` names it."""
    parts = path.relative_to(LIBRARY).with_suffix("").parts
    return longest(parts) or parts[0]


MODULES = {module_name(path) for path in FILES}


def is_for_types_only(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def walk(tree, functions=True, types=True):
    """Every node: those of function bodies, and those for type checkers only, if asked for."""
    for node in ast.iter_child_nodes(tree):
        if not functions and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if not types and is_for_types_only(node):
            continue
        yield node
        yield from walk(node, functions, types)


def imports(source, package, **nodes):
    """Dotted names that a module of `package` imports, by statement or by `importlib`; "?" for a name not literal."""
    names = []
    for node in walk(ast.parse(source), **nodes):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            names += [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and re.search(
            r"(import_module|__import__|LazyLoader)$", ast.unparse(node.func)
        ):
            literals = [x.value for x in node.args if isinstance(x, ast.Constant) and isinstance(x.value, str)]
            names += literals or ["?"]
    return names


def attributes(source):
    """Packages that are used as `bfl.x` after `import tfp_bfl as bfl`."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return [f"tfp_bfl.{node.attr}" for node in nodes if ast.unparse(node.value) == "bfl"]


def package_of(path):
    return module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]


def forbidden_edges(source, importer, package):
    if MAY_IMPORT[importer] is EVERYTHING:
        return []
    allowed = MAY_IMPORT[importer] | FOR_EVERYONE | {importer}
    targets = [x for x in (*imports(source, package), *attributes(source)) if re.match(r"tfp_bfl(\.|$)", x)]
    # What is no package or module of its own is a name of `tfp_bfl` itself.
    home = lambda name: longest(name.split(".")[1:]) or "__init__"
    return sorted({x for x in targets if home(x) not in allowed})


def imports_of_tff(source, package):
    """Also what is imported under a name made at run time, which could be anything."""
    return [n for n in imports(source, package) if n.split(".")[0] in ("tensorflow_federated", "?")]


def find_cycle(edges):
    """A cycle of a graph {node: nodes} as a list, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        path.append(node)
        found = next(filter(None, map(visit, sorted(edges.get(node, ())))), None)
        path.pop()
        done.add(node)
        return found

    return next(filter(None, map(visit, sorted(edges))), None)


def lines_of_code(function):
    """Lines of a function without its docstring, blank lines and comments; decorators count."""
    documented = ast.get_docstring(function) is not None
    body = function.body[1:] if documented else function.body
    first = function.body[0]
    docstring = range(first.lineno, first.end_lineno + 1) if documented else ()
    start = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    used = set()
    for node in [function, *function.decorator_list, *body]:
        for inner in ast.walk(node):
            if getattr(inner, "lineno", None) is not None and inner is not function:
                used.update((inner.lineno, inner.end_lineno))
    return len([n for n in used | {function.lineno} if n >= start and n not in docstring])


def test_every_package_is_in_the_table():
    assert {group(path) for path in FILES} <= MAY_IMPORT.keys()


def test_the_table_has_no_cycle():
    assert find_cycle({k: v for k, v in MAY_IMPORT.items() if v}) is None
    assert set().union(*filter(None, MAY_IMPORT.values())) <= MAY_IMPORT.keys()


def test_imports_follow_the_table():
    found = {str(p): forbidden_edges(p.read_text(), group(p), package_of(p)) for p in FILES}
    assert FILES and {path: edges for path, edges in found.items() if edges} == {}


def test_tensorflow_federated_is_imported_in_one_package():
    by_name = ("tfp_bfl", "tfp_bfl.edges", "tfp_bfl.faces")  # which import packages by name
    names = [(p, module_name(p)) for p in FILES]
    others = [p for p, name in names if name not in by_name and not f"{name}.".startswith(f"{ONLY_IMPORTER_OF_TFF}.")]
    found = {str(p): imports_of_tff(p.read_text(), package_of(p)) for p in others}
    assert others and {path: names for path, names in found.items() if names} == {}


def test_nvidia_flare_is_imported_where_messages_are_carried():
    importers = {
        module_name(p) for p in FILES if any(x.startswith("nvflare") for x in imports(p.read_text(), package_of(p)))
    }
    others = importers - {"tfp_bfl.sites.interop.bayesian_recipe"}
    assert others < importers and all(name.startswith("tfp_bfl.sites.deployment.") for name in others)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_hold_no_arithmetic(engine):
    tree = ast.parse((LIBRARY / engine).read_text())
    used = {x.attr for x in ast.walk(tree) if isinstance(x, ast.Attribute) and ast.unparse(x.value) == "tf"}
    assert used and used <= CARRYING


def edges_at_import_time():
    """Each module, and the modules of the library and top-level packages of others that its import imports."""
    edges = {}
    for path in FILES:
        names = imports(path.read_text(), package_of(path), functions=False, types=False)
        nearest = lambda name: name if name in MODULES else name.rpartition(".")[0]
        edges[module_name(path)] = {n if (n := nearest(name)) in MODULES else name.split(".")[0] for name in names}
    return edges


def test_modules_have_no_cycle():
    edges = {name: targets & MODULES for name, targets in edges_at_import_time().items()}
    assert any(edges.values())
    assert find_cycle(edges) is None


@pytest.mark.parametrize(
    ("start", "slow"),
    [
        *((x, TENSORFLOW | {"sklearn", "scipy", "matplotlib"}) for x in QUICK),
        *((x, TENSORFLOW) for x in (*STATISTICS, *REFUSES)),
    ],
)
def test_what_must_be_quick_imports_no_tensorflow(start, slow):
    edges, found, ahead = edges_at_import_time(), set(), [start]
    while ahead:
        name = ahead.pop()
        above = [name.rpartition(".")[0]] if "." in name else []  # A module's package is imported before it.
        ahead += [n for n in (*edges.get(name, ()), *above) if n not in found]
        found |= {name, *ahead}
    assert len(found) > 5 and not found & slow


def test_recipes_are_short():
    recipes = re.findall(r'^    "(\w+)",$', (LIBRARY / "algorithms/__init__.py").read_text(), re.MULTILINE)
    lengths = {}
    for path in (LIBRARY / "algorithms").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name in recipes and not path.stem.endswith(("work", "step")):
                lengths[f"{path.stem}.{node.name}"] = lines_of_code(node)
    assert lengths and {name: n for name, n in lengths.items() if n > MAX_LINES_OF_A_RECIPE} == {}


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("rules", "from tfp_bfl.models import lenet"),
        ("rules", "from tfp_bfl.algorithms.kernel import kernel_mode"),
        ("federated", "from tfp_bfl.engines import tff"),
        ("app.options", "from tfp_bfl.app.one_run import build"),
        ("posterior", "from tfp_bfl.models import lenet"),
        ("posterior", "from tfp_bfl import layers"),
        ("posterior", "from ..layers import noise"),
        ("posterior", "from .. import layers"),
        ("rules", "import tfp_bfl.weighting"),
        ("rules", "def f():\n    from tfp_bfl.clients import variational"),
        ("rules", "import importlib\nimportlib.import_module('tfp_bfl.servers')"),
        ("models", "import tfp_bfl as bfl"),
        ("app", "from tfp_bfl.layers import noise"),
        ("app", "def f(x):\n    return bfl.contracts.Rule(x)"),
        ("plots", "if TYPE_CHECKING:\n    from tfp_bfl.models import lenet"),
    ],
)
def test_forbidden_edges_are_found(importer, source):
    assert len(forbidden_edges(source, importer, f"tfp_bfl.{importer}")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from tfp_bfl.weights import ModelWeights\nfrom tfp_bfl.errors import lookup",
        "from . import rule\nfrom .rule import add\nfrom tfp_bfl.rules import rule",
        "import tensorflow as tf",
    ],
)
def test_allowed_edges_pass(source):
    assert forbidden_edges(source, "rules", "tfp_bfl.rules") == []


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow_federated as tff",
        "def f():\n    from tensorflow_federated.python import core",
        "import importlib\nimportlib.import_module('tensorflow_federated')",
        "name = 'tensorflow_federated'\nimportlib.import_module(name)",
        "__import__('tensorflow_federated')",
    ],
)
def test_imports_of_tensorflow_federated_are_found(source):
    assert imports_of_tff(source, "tfp_bfl.rules")
    assert not imports_of_tff("from importlib import metadata\nmetadata.version('tensorflow_federated')", "tfp_bfl")


def test_cycles_are_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == ["a", "b", "c", "a"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
    at_start = imports(
        "import a\nif TYPE_CHECKING:\n    import b\ndef f():\n    import c", "p", functions=False, types=False
    )
    assert at_start == ["a"]


SEVEN_LINES = '''
@tf.function
def f(
    a,
):
    """One.

    Two.
    """
    # why
    b = a

    return (
        b
    )
'''


def test_lines_of_code_leave_out_docstring_comments_and_blank_lines():
    (function,) = ast.parse(SEVEN_LINES).body
    assert lines_of_code(function) == 7  # not the "):" either
