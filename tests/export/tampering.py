"""SavedModels changed by someone who then writes the checksums anew."""

import pathlib
import shutil

from tensorflow.core.protobuf import saved_model_pb2

from tfp_bfl.export.loading import GRAPH, write_manifest


def copy(source, folder):
    shutil.rmtree(folder, ignore_errors=True)
    return pathlib.Path(shutil.copytree(source, folder))


def parse(folder):
    return saved_model_pb2.SavedModel.FromString((folder / GRAPH).read_bytes())


def change_graph(folder, change):
    """`change(saved_model)`, and checksums that match."""
    saved = parse(folder)
    change(saved)
    (folder / GRAPH).write_bytes(saved.SerializeToString())
    write_manifest(folder)


def change_file(folder, name, change):
    """`change(content) -> content`, and checksums that match."""
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    write_manifest(folder)


def functions(saved):
    library = saved.meta_graphs[0].graph_def.library.function
    return [function for function in library if function.signature.name.startswith("__inference_predict")]


def add_node(saved, op, **inputs):
    for function in functions(saved):
        node = function.node_def.add(name="added", op=op)
        node.input.extend(inputs.get("input", []))
    return saved
