"""A user's own program sees this library's types (`py.typed`), and a wrong one is an error."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys
import typing

import pytest

import tfp_bfl as bfl
from tfp_bfl.algorithms import compose, options
from tfp_bfl.algorithms.compose import PROCESS_OPTIONS

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = """
import tfp_bfl as bfl

rule = bfl.rules.conflation()
reveal_type(rule)
train = bfl.data.load("digits")
reveal_type(train.partition(bfl.data.iid(num_clients=3), seed=0))
reveal_type(bfl.simulate)
bfl.data.load(3)
bfl.rules.conflaton()
bfl.simulat
"""
# Parts that fit each other, and with `# no:` those that do not, with a part of what mypy says there.
CONTRACTS = """
from typing import Any, NamedTuple
import tensorflow as tf
import tfp_bfl as bfl
from tfp_bfl.algorithms.averaging.step import distil
from tfp_bfl.algorithms.chains.step import langevin
from tfp_bfl.algorithms.swag.step import online_product
from tfp_bfl.algorithms.swag.work import swag as swag_work
from tfp_bfl.contracts import ClientWork, ServerStep, Stack, Work
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules import GatherRule, ModelGatherRule, ModelRule, Pooled, Rule
from tfp_bfl.weights import ClientPosterior, ClientResult, ModelWeights, ServerMessage
from tfp_bfl.data import ClientExamples

class Sums(NamedTuple):
    weight: tf.Tensor

class Sketch(NamedTuple):
    bits: tf.Tensor

def summarise(local: MeanField, anchor: MeanField, weight: tf.Tensor) -> Sums: return Sums(weight)
def merge(a: Sums, b: Sums) -> Sums: return a
def pool(total: Sums, anchor: MeanField) -> Pooled[MeanField]: return Pooled(anchor)
def pool_stack(stack: MeanField, weights: tf.Tensor, anchor: MeanField) -> Pooled[MeanField]: return Pooled(anchor)
def pool_sketch(total: Sketch, anchor: MeanField) -> Pooled[MeanField]: return Pooled(anchor)
mine: Rule[Sums] = Rule(summarise, merge, pool)
stacking = GatherRule(pool_stack)
Rule(summarise, merge, pool_stack)  # no: incompatible type "Callable[[MeanField, Any, MeanField], Pooled[MeanField]]"
Rule(summarise, merge, pool_sketch)  # no: "Rule"
GatherRule(pool)  # no: incompatible type "Callable[[Sums, MeanField], Pooled[MeanField]]"

def of_sketches(local: Sketch, anchor: ModelWeights, weight: tf.Tensor) -> Sums: return Sums(weight)
def to_sketch(total: Sums, anchor: ModelWeights) -> Pooled[Sketch]: return Pooled(Sketch(total.weight))
def to_weights(total: Sums, anchor: ModelWeights) -> Pooled[ModelWeights]: return Pooled(anchor)
sketches: ModelRule[Sketch, Sketch] = ModelRule(of_sketches, merge, to_sketch, takes="sketch", gives="sketch")
summary: ModelRule[Sketch, ModelWeights] = ModelRule(of_sketches, merge, to_weights, takes="sketch")

def result(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[Sketch]:
    raise NotImplementedError
def weights_alone(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ModelWeights:
    return message.weights
def build() -> Work[Sketch]: return result
sketching: ClientWork[Sketch] = ClientWork(build, sends="sketch")
ClientWork(lambda: weights_alone)  # no: incompatible return value type

def advance(state: Any, w: ModelWeights, pooled: Sketch, seed: tf.Tensor) -> tuple[Any, ModelWeights]: return state, w
def five(s: Any, w: ModelWeights, p: ModelWeights, seed: tf.Tensor, extra: tf.Tensor) -> tuple[Any, ModelWeights]:
    return s, w
def no_state(state: Any, w: ModelWeights, pooled: Sketch, seed: tf.Tensor) -> ModelWeights: return w
from_sketch: ServerStep[Sketch] = ServerStep(lambda weights: (), advance, takes="sketch")
ServerStep(lambda weights: (), five, takes="weights with extra statistics")
ServerStep(lambda weights: (), no_state)  # no: "Callable[[Any, ModelWeights, Sketch, Any], ModelWeights]"

def model_fn() -> tf.keras.Model: raise NotImplementedError
local, swag = bfl.clients.variational(model_fn), swag_work(model_fn)
replace, online = bfl.servers.replace(), online_product(1, 2)
compose, stacked = bfl.algorithms.compose, bfl.rules.stacked()
compose(model_fn, local, "conflation", replace, weighting="equal", seed=3)
compose(model_fn, local, mine, bfl.servers.optimize(bfl.servers.server_optimizer("adam")))
compose(model_fn, local, stacking, replace)
compose(model_fn, local, bfl.rules.median(mine), replace)
compose(model_fn, local, stacked, distil(model_fn, tf.zeros([3])))
compose(model_fn, swag, stacked, online)
compose(model_fn, sketching, sketches, from_sketch)
compose(model_fn, sketching, summary, replace)
compose(model_fn, local, "conflation", online)  # no: ServerStep[Stack[ClientPosterior]
compose(model_fn, local, mine, from_sketch)  # no: ServerStep[Sketch
compose(model_fn, local, stacked, replace)  # no: ModelRule[Any, Stack[Any]
compose(model_fn, swag, "conflation", replace)  # no: ClientWork[ClientPosterior
compose(model_fn, local, bfl.rules.client_gaussian(), replace)  # no: ClientGaussian
compose(model_fn, local, sketches, from_sketch)  # no: ModelRule[Sketch, Sketch
compose(model_fn, local, weights_alone, replace)  # no: No overload variant matches
compose(model_fn, local, "conflation", replace, weighing="equal")  # no: "weighing"
bfl.algorithms.variational(model_fn, rule=mine)
bfl.algorithms.variational(model_fn, rule=stacked)  # no: ModelRule[Any, Stack[Any]
bfl.rules.aggregate(mine, MeanField(1.0, 1.0))
bfl.rules.whole_model(sketches).pool(Sums(1.0), MeanField(1.0, 1.0))  # no: "MeanField"; expected "ModelWeights"
langevin(from_sketch, 0.1).next((), MeanField(1.0, 1.0), Sketch(1.0), 0)  # no: "ModelWeights"
"""
FILES = {"program.py": PROGRAM, "contracts.py": CONTRACTS}
# Parameters annotated with `Any`, anywhere in the annotation, as a share of those with an annotation.
MOST_ANY = dict.fromkeys(("rules", "servers", "clients", "training", "contracts"), 0.0)
MOST_ANY_OF_ALL = 0.1


def any_shares():
    """The share of `Any` by package, and "" for all of the library."""
    count, found = {}, {}
    for path in sorted((ROOT / "tfp_bfl").rglob("*.py")):
        package = path.relative_to(ROOT / "tfp_bfl").with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.arg) and node.annotation:
                names = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node.annotation)}
                for name in (package, ""):
                    count[name] = count.get(name, 0) + 1
                    found[name] = found.get(name, 0) + ("Any" in names)
    return {name: found[name] / number for name, number in count.items()}


def test_parameters_state_their_types():
    shares = any_shares()
    assert {name: shares[name] for name in MOST_ANY} == MOST_ANY
    assert shares[""] <= MOST_ANY_OF_ALL


@pytest.mark.parametrize("name", sorted({*bfl.algorithms.__all__} - {"compose", "ensemble"}))
def test_the_signature_of_a_recipe_shows_each_option_and_its_types_know_it(name):
    """Types may know options of other recipes of the kind, which are refused when the recipe is called."""
    recipe = getattr(bfl.algorithms, name)
    shown = inspect.signature(recipe).parameters
    own = recipe.own_signature.parameters
    (keywords,) = typing.get_args(own["options"].annotation)
    assert len(shown) > len(own) and all(x.kind is not x.VAR_KEYWORD for x in shown.values())
    assert {*shown} - {*own} <= {*keywords.__annotations__}


def test_the_options_of_compose_are_those_that_it_takes():
    taken = {name for name, x in inspect.signature(compose).parameters.items() if x.kind is x.KEYWORD_ONLY}
    assert {*options.ComposeOptions.__annotations__} == taken >= {*PROCESS_OPTIONS}


@pytest.mark.deep(after="tests/test_architecture.py")
def test_a_users_program_is_checked(tmp_path):
    for name, program in FILES.items():
        (tmp_path / name).write_text(program)
    # By PYTHONPATH mypy finds the library as an installed package, whose types count only with py.typed.
    finished = subprocess.run(
        [
            sys.executable,
            *["-m", "mypy", "--ignore-missing-imports", "--follow-imports=silent", "program.py", "contracts.py"],
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    said = {int(line.split(":")[1]): line for line in finished.stdout.splitlines() if line.startswith("program.py")}
    assert set(said) == {5, 7, 8, 9, 10, 11}, finished.stdout + finished.stderr
    assert "tfp_bfl.contracts.Rule" in said[5] and "tfp_bfl.data.clients.Clients" in said[7]
    assert "rounds: int" in said[8] and "SimulationResult" in said[8]
    assert 'incompatible type "int"; expected "str"' in said[9]
    assert 'no attribute "conflaton"' in said[10] and 'no attribute "simulat"' in said[11]
    wrong = {
        number: line.split("# no: ")[1] for number, line in enumerate(CONTRACTS.splitlines(), 1) if "# no: " in line
    }
    errors = {}
    for line in finished.stdout.splitlines():
        if line.startswith("contracts.py"):
            errors.setdefault(int(line.split(":")[1]), []).append(line)
    assert errors.keys() == wrong.keys(), finished.stdout
    for number, part in wrong.items():
        assert part.lower() in "\n".join(errors[number]).lower()
