"""The operations that the graph of a SavedModel may hold: arithmetic, variables, and the functions that predict.

None of them runs Python, reads or writes a file, or reaches a network. Every check raises InvalidArgument with what is
wrong, as half a sentence.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.export import info
from tfp_bfl.export.rows import NAME as ROWS
from tfp_bfl.export.signatures import INPUTS, SERVE, SERVED, SIGNATURES, numbers_of, output_type
from tfp_bfl.files.tensor_bundle import num_elements

INIT = "__saved_model_init_op"
MOST_CONSTANT_BYTES = 2**26
MOST_CALLS_DEEP = 32
MOST_NODES = 5_000_000
_NODE_ATTRIBUTES = {
    *("_class", "_collective_manager_ids", "_has_manual_control_dependencies", "_lower_using_switch_merge"),
    *("_num_original_outputs", "_output_shapes", "_read_only_resource_inputs"),
}
_FUNCTION_ATTRIBUTES = {"_construction_context", "_input_shapes"}
_FUNCTIONS = (*INPUTS, "draw")
_OBJECTS = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)
_VARIABLE_TYPES = (tf.float32, tf.bfloat16, tf.float16, tf.float64, tf.int32, tf.int64)


def check_graph(meta: Any) -> None:
    """Check the operations of a MetaGraphDef, their constants, and the calls of its functions."""
    library = meta.graph_def.library
    if library.gradient or library.registered_gradients:
        raise InvalidArgument("it brings gradients")
    if [asset.filename for asset in meta.asset_file_def] != [info.NAME]:
        raise InvalidArgument(f"its assets are not {info.NAME} alone")
    functions = {function.signature.name: function for function in library.function}
    if len(functions) < len(library.function):
        raise InvalidArgument("two of its functions have one name")
    saving, called = set[str](), set[str](meta.object_graph_def.concrete_functions)
    _check_nodes(meta.graph_def.node, INITIALISING)
    for name, function in functions.items():
        if set(function.attr) - _FUNCTION_ATTRIBUTES:
            raise InvalidArgument(f"its function {shown(name)} has attributes that an export has not")
        if _check_nodes(function.node_def, SAVING):
            saving.add(name)
        called.update(_callees(function))
    if called & saving:
        raise InvalidArgument("it reads or writes files when it predicts")
    if called - functions.keys():
        raise InvalidArgument("it calls a function that it does not have")
    _check_calls(functions)


def _check_nodes(nodes: Iterable[Any], also: frozenset[str]) -> bool:
    """Return whether one of the operations is in `also`."""
    has_any = False
    for node in nodes:
        if node.op in also:
            has_any = True
        elif node.op not in EXPORTED and node.op not in ARITHMETIC:
            raise InvalidArgument(f"it uses the operation {shown(node.op)}, which is not among those allowed")
        for name, value in node.attr.items():
            if name.startswith("_") and name not in _NODE_ATTRIBUTES:
                raise InvalidArgument(f"it uses the attribute {shown(name)}, which is not among those allowed")
            for tensor in [value.tensor] if value.HasField("tensor") else value.list.tensor:
                try:  # A few bytes can declare a constant of any size.
                    num_bytes = num_elements(tensor.tensor_shape) * tf.as_dtype(tensor.dtype).size
                except (TypeError, ValueError):
                    raise InvalidArgument("it has a constant without a shape or type") from None
                if num_bytes > MOST_CONSTANT_BYTES or tensor.dtype in _OBJECTS:
                    raise InvalidArgument(
                        f"it has a constant that is not a tensor of at most {MOST_CONSTANT_BYTES} bytes"
                    )
    return has_any


def _callees(function: Any) -> list[str]:
    attributes = [value for node in function.node_def for value in node.attr.values()]
    return [f.name for v in attributes for f in ([v.func] if v.HasField("func") else v.list.func)]


def _check_calls(functions: dict[str, Any]) -> None:
    """Check that no function calls itself, and that calls written out are neither very deep nor very many."""
    sizes: dict[str, int] = {}

    def size(name: str, depth: int) -> int:
        if depth > MOST_CALLS_DEEP:
            raise InvalidArgument(f"its functions call each other more than {MOST_CALLS_DEEP} deep")
        if name not in sizes:
            callees = _callees(functions[name])
            sizes[name] = len(functions[name].node_def) + sum(size(callee, depth + 1) for callee in callees)
        if sizes[name] > MOST_NODES:
            raise InvalidArgument(f"its functions stand for more than {MOST_NODES} operations")
        return sizes[name]

    for name in functions:
        size(name, 0)


def check_objects(meta: Any, more: tuple[str, ...] = ()) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return the data type and shape of each variable of the checkpoint, if the objects are those of an export.

    These are a list of variables, the functions that predict (`more` besides), their signatures, and the asset.
    """
    nodes = meta.object_graph_def.nodes
    for node in nodes:
        # Types that other packages register, with code of their own.
        if node.registered_name or node.registered_saver or node.saveable_objects or node.slot_variables:
            raise InvalidArgument("it has objects of types that an export has not")
    root = _user_object(nodes, 0, "_generic_user_object")
    # Earlier exports have no function `serve`.
    functions = (*_FUNCTIONS, *more, *({SERVE} & root.keys()))
    if root.keys() != {*functions, "weights", "signatures", "info"}:
        raise InvalidArgument(f"it must have {', '.join(functions)}, weights, signatures and info, and nothing else")
    if _children(nodes, root["info"], "asset") or nodes[root["info"]].asset.asset_file_def_index:
        raise InvalidArgument(f"its info is not the asset {info.NAME}")
    weights = _user_object(nodes, root["weights"], "trackable_list_wrapper")
    if list(weights) != [str(i) for i in range(len(weights))]:
        raise InvalidArgument("its weights are not a list")
    variables: dict[int, str] = {}
    for position, node_id in weights.items():
        variables.setdefault(node_id, f"weights/{position}/.ATTRIBUTES/VARIABLE_VALUE")
    traces = [trace for name in functions for trace in _children(nodes, root[name], "function").values()]
    signatures = _user_object(nodes, root["signatures"], "signature_map")
    if not {*SIGNATURES, *more} >= signatures.keys() >= {*INPUTS, *more}:
        raise InvalidArgument(f"its signatures must be {', '.join(INPUTS)}, for bytes too or not, and no others")
    for node_id in (*traces, *signatures.values()):
        _children(nodes, node_id, "bare_concrete_function")
    reached = {0, *root.values(), *variables, *traces, *signatures.values()}
    if reached != set(range(len(nodes))):
        raise InvalidArgument("it has objects that an export has not")
    for concrete in meta.object_graph_def.concrete_functions.values():
        if not set(concrete.bound_inputs) <= variables.keys():
            raise InvalidArgument("its functions use something that is not one of its weights")
    return {name: _variable(nodes[node_id]) for node_id, name in variables.items()}


def _children(nodes: Any, node_id: int, kind: str) -> dict[str, int]:
    if not 0 <= node_id < len(nodes) or nodes[node_id].WhichOneof("kind") != kind:
        raise InvalidArgument(f"one of its objects is not a {kind}")
    children = {child.local_name: child.node_id for child in nodes[node_id].children}
    if len(children) < len(nodes[node_id].children):
        raise InvalidArgument("two of its objects have one name")
    return children


def _user_object(nodes: Any, node_id: int, identifier: str) -> dict[str, int]:
    children = _children(nodes, node_id, "user_object")
    if nodes[node_id].user_object.identifier != identifier:
        raise InvalidArgument(f"one of its objects is not a {identifier}")
    return children


def _variable(node: Any) -> tuple[Any, tuple[int, ...]]:
    if node.WhichOneof("kind") != "variable" or node.variable.experimental_distributed_variable_components:
        raise InvalidArgument("one of its weights is not a variable")
    try:
        dtype = tf.as_dtype(node.variable.dtype)
        num_elements(node.variable.shape)
    except (TypeError, ValueError):
        raise InvalidArgument("one of its weights has no shape or type") from None
    if dtype not in _VARIABLE_TYPES:
        raise InvalidArgument(f"one of its weights is of type {dtype.name}")
    return dtype, tuple(dim.size for dim in node.variable.shape.dim)


def check_signatures(
    meta: Any, outputs: Mapping[str, Mapping[str, int]], rows: Mapping[str, tf.TensorSpec] = MappingProxyType({})
) -> None:
    """Check names and data types of what goes in and out, as other loaders read them: the `outputs` of a head, and the
    columns that the signature for rows of a table accepts (`rows.inputs_of`; {} without one).
    """
    for name, signature in meta.signature_def.items():
        if name == INIT:
            continue
        function, images = SIGNATURES.get(name, ("predict", None))
        numbers = numbers_of(function, outputs)
        given, said = {"images": images}, ", ".join(("images", *numbers))
        if takes_rows(name, rows):
            given, said = {spec.name: spec.dtype for spec in rows.values()}, "the columns that its info says"
        elif images is None:
            raise InvalidArgument(f"it has a signature {shown(name)}, which an export has not")
        if _types(signature.inputs) != {**given, **{n: number.dtype for n, number in numbers.items()}}:
            raise InvalidArgument(f"its signature {name} does not take {said}")
        if _types(signature.outputs) != {output: output_type(output) for output in outputs[function]}:
            raise InvalidArgument(f"its signature {name} does not give {', '.join(outputs[function])}")


def takes_rows(name: str, rows: Mapping[str, tf.TensorSpec]) -> bool:
    """Return whether a signature accepts the columns of a table as they are, where a model has such `rows`."""
    return bool(rows) and name in (ROWS, *SERVED)


def _types(tensors: Any) -> dict[str, Any]:
    try:
        return {name: tf.as_dtype(info.dtype) for name, info in tensors.items()}
    except TypeError:
        return {}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What the exports of every model and kind are made of; a test holds this against them.
EXPORTED = _words(
    """
    Abs AddV2 All ArgMax Assert AvgPool BiasAdd BitwiseAnd BroadcastTo Cast ConcatV2 Const Conv2D Cos DivNoNan Equal
    Exp ExpandDims FloorDiv FusedBatchNormV3 GatherV2 Greater GreaterEqual Identity If LeakyRelu Less LessEqual Log
    LogicalAnd LogicalNot LogicalOr MatMul MaxPool Maximum Mean Minimum Mul NoOp OneHot OnesLike Pack Pad
    Placeholder PlaceholderWithDefault Range ReadVariableOp RealDiv Relu Reshape RightShift Rsqrt Select SelectV2
    Shape Sin Size Softmax Sqrt Square SquaredDifference Squeeze StatefulPartitionedCall
    StatelessRandomGetKeyCounter StatelessRandomNormalV2 StatelessRandomUniformFullIntV2 StatelessRandomUniformIntV2
    StatelessRandomUniformV2 StopGradient StridedSlice Sub Sum TensorListFromTensor TensorListGetItem
    TensorListReserve TensorListSetItem TensorListStack Tile VarHandleOp While ZerosLike
    """
)

# What other layers, activations of Keras, rows of tables and earlier exports add: all are functions of tensors alone.
ARITHMETIC = _words(
    """
    Add AddN Any BatchMatMulV2 BatchToSpaceND Cumsum DepthwiseConv2dNative Einsum Elu Erf Expm1 Fill Floor FloorMod
    Log1p LogSoftmax MatrixDiagPartV3 MatrixSetDiagV3 Max Min Neg NotEqual PartitionedCall Pow Prod Rank Reciprocal
    Relu6 ResizeBilinear ResourceGather ReverseV2 Round ScaleAndTranslate Selu Sigmoid Sign Slice Softplus Softsign
    SpaceToBatchND Split SplitV StatelessWhile StaticRegexReplace StringStrip Tanh TopKV2 Transpose Unpack Xlogy
    """
)

# TensorFlow saves and restores variables with these: only in functions that nothing else in the file calls.
SAVING = _words(
    """
    AssignVariableOp DisableCopyOnRead MergeV2Checkpoints RestoreV2 SaveV2 ShardedFilename StaticRegexFullMatch
    StringJoin
    """
)

# The path of the asset is a variable, which these set when TensorFlow reads the file without its tree of objects.
INITIALISING = _words("AssignVariableOp VarIsInitializedOp")
