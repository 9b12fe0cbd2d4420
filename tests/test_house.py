"""The size and shape of the package: lines, circles of imports, names that stand for two things, options declared.

Core: tfp_bfl without its edges glm, sites, bench and sklearn. All is counted from the source; nothing is imported. A
bound above its goal is what was measured last: lower it when the number falls, and raise it only in a commit that says
for what.
"""

import ast
import collections
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EDGES = ("glm", "sites", "bench", "sklearn")
# Name -> most, and the goal where that is lower.
BOUNDS = {
    "core lines": (50_300, 38_000),
    "edge lines": (16_864, 11_500),
    "test lines": (63_160, 48_000),
    "largest circle of files": (3, 3),
    "imports of an edge from the core": (0, 0),
    "class names in two files": (9, 9),
    "file names in two folders": (27, 27),
    "files with tf.keras": (3, 3),
    "largest number of own base classes": (5, 5),
    "files that declare local_epochs": (4, 4),
    "files that declare prior_stddev": (12, 12),
    "public names": (459, 420),
}


def modules(root):
    """Return name -> (path, text, tree) of the files of the package in a folder."""
    found = {}
    for path in sorted((root / "tfp_bfl").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text()
        found[name] = path, text, ast.parse(text)
    return found


def is_edge(name):
    return name.split(".")[1:2] in [[edge] for edge in EDGES]


def imports(files):
    found = collections.defaultdict(set)
    for name, (_, _, tree) in files.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfp_bfl"):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    target = full if full in files else node.module
                    if target in files and target != name:
                        found[name].add(target)
    return found


def reached(graph, start):
    """Return what can be reached from a node over one edge or more."""
    found, todo = set(), [*graph[start]]
    while todo:
        if (node := todo.pop()) not in found:
            found.add(node)
            todo += graph[node]
    return found


def largest_circle(graph):
    """Return the size of the largest set of nodes that reach each other; 0 without any."""
    reach = {node: reached(graph, node) for node in [*graph]}
    return max((sum(a in reach.get(b, ()) for b in reach[a]) for a in reach if a in reach[a]), default=0)


def own_bases(name, bases, seen=()):
    direct = [base for base in bases.get(name, ()) if base in bases and base != name and base not in seen]
    return {x for base in direct for x in {base} | own_bases(base, bases, (*seen, name))}


def declares(tree, option):
    return any(
        (isinstance(node, ast.arg) and node.arg == option)
        or (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == option)
        for node in ast.walk(tree)
    )


def exported(tree):
    values = (x.value for x in tree.body if isinstance(x, ast.Assign) and "__all__" in map(ast.unparse, x.targets))
    return {x.value for value in values for x in ast.walk(value) if isinstance(x, ast.Constant)}


def measure(root=ROOT):
    """Return the numbers that `BOUNDS` bounds, of a project in a folder."""
    files = modules(root)
    graph = imports(files)
    classes, bases, folders = collections.defaultdict(set), {}, collections.defaultdict(set)
    for path, _, tree in files.values():
        if path.name not in ("__init__.py", "__main__.py"):
            folders[path.name].add(path.parent)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(path)
                bases[node.name] = [getattr(x, "id", getattr(x, "attr", "")) for x in node.bases]
    lines = {
        edge: sum(x[1].count("\n") for name, x in files.items() if is_edge(name) == edge) for edge in (False, True)
    }
    upward = [(a, b) for a, targets in graph.items() for b in targets if is_edge(b) and not is_edge(a)]
    code = [re.sub(r'""".*?"""', "", text, flags=re.S) for _, text, _ in files.values()]
    public = {
        f"{name}.{x}" for name, (path, _, tree) in files.items() if path.name == "__init__.py" for x in exported(tree)
    }
    return {
        "core lines": lines[False],
        "edge lines": lines[True],
        "test lines": sum(path.read_text().count("\n") for path in (root / "tests").rglob("*.py")),
        "largest circle of files": largest_circle(graph),
        "imports of an edge from the core": len(upward),
        "class names in two files": sum(len(paths) > 1 for paths in classes.values()),
        "file names in two folders": sum(len(paths) > 1 for paths in folders.values()),
        "files with tf.keras": sum("tf.keras" in text for text in code),
        "largest number of own base classes": max((len(own_bases(name, bases)) for name in bases), default=0),
        **{
            f"files that declare {option}": sum(declares(tree, option) for _, _, tree in files.values())
            for option in ("local_epochs", "prior_stddev")
        },
        "public names": len(public),
    }


@pytest.fixture(scope="module")
def measured():
    return measure()


@pytest.mark.parametrize("name", BOUNDS)
def test_the_house_does_not_grow(name, measured):
    most, goal = BOUNDS[name]
    assert goal <= most and measured[name] <= most, f"{name}: {measured[name]}"


def test_what_is_counted(tmp_path):
    """A package of which all numbers are known."""
    texts = {
        "__init__.py": '"""tf.keras in a docstring."""\n',
        "one/__init__.py": '__all__ = ["A"]\nfrom tfp_bfl.one.a import A\n',
        "one/a.py": "from tfp_bfl.two import a\n\n\nclass A:\n    prior_stddev: float = 1.0\n",
        "two/a.py": "from tfp_bfl.one.a import A\nimport tensorflow as tf\n\n\nclass B(A):\n    x = tf.keras\n",
        "glm/b.py": "from tfp_bfl.one.a import A\n\n\nclass A(A):\n    def f(self, local_epochs): ...\n",
        "three.py": "from tfp_bfl.glm import b\n",
    }
    for name, text in texts.items():
        (tmp_path / "tfp_bfl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tfp_bfl" / name).write_text(text)
    assert measure(tmp_path) == {
        **{"core lines": 15, "edge lines": 5, "test lines": 0, "largest circle of files": 2},
        **{"imports of an edge from the core": 1, "class names in two files": 1, "file names in two folders": 1},
        **{"files with tf.keras": 1, "largest number of own base classes": 1, "files that declare local_epochs": 1},
        **{"files that declare prior_stddev": 1, "public names": 1},
    }
