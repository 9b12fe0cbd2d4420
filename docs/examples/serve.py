"""Serve a SavedModel by the REST API of TensorFlow Serving: python serve.py MODEL PORT"""

import http.server
import json
import re
import sys

import numpy as np
import tensorflow as tf


def to_tensor(name: str, values: list, spec: tf.TensorSpec) -> tf.Tensor:
    kinds, words = ("U", "text") if spec.dtype == tf.string else ("iuf", "numbers")
    shape = [] if spec.shape.rank is None else spec.shape[1:].as_list()
    wanted = f"{name} of each instance must be {words} of shape {shape}"
    try:
        array = np.array(values)
    except ValueError:
        raise ValueError(f"{wanted}, but the lists differ in length.") from None
    if list(array.shape[1:]) != shape or array.dtype.kind not in kinds:
        what = "text" if array.dtype.kind == "U" else "other values" if array.dtype.kind == "O" else "numbers"
        raise ValueError(f"{wanted}, not {what} of shape {list(array.shape[1:])}.")
    cast = array if kinds == "U" else array.astype(spec.dtype.as_numpy_dtype)
    if spec.dtype.is_integer and not np.array_equal(array, cast):
        raise ValueError(f"{name} must be whole numbers from {spec.dtype.min} to {spec.dtype.max}.")
    return tf.constant(cast)


def predict(model, request: object) -> dict:
    if not isinstance(request, dict) or not isinstance(rows := request.get("instances"), list) or not rows:
        raise ValueError('The request must be a JSON object with a list "instances" of at least one example.')
    if (name := request.get("signature_name", "serving_default")) not in [*model.signatures]:
        raise ValueError(f"There is no signature {name}: use {', '.join(sorted(model.signatures))}.")
    specs = model.signatures[name].structured_input_signature[1]
    if len(specs) == 1:
        rows = [row if isinstance(row, dict) else {next(iter(specs)): row} for row in rows]
    if not all(isinstance(row, dict) and row.keys() == specs.keys() for row in rows):
        raise ValueError(f"Each instance must have the inputs {', '.join(sorted(specs))}, and no others.")
    outputs = model.signatures[name](**{x: to_tensor(x, [row[x] for row in rows], specs[x]) for x in specs})
    return {"predictions": [dict(zip(outputs, x)) for x in zip(*(y.numpy().tolist() for y in outputs.values()))]}


def make_server(folder: str, port: int) -> http.server.ThreadingHTTPServer:
    model = tf.saved_model.load(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            try:
                if self.path != "/v1/models/model:predict":
                    raise ValueError("Send requests to /v1/models/model:predict.")
                if (size := int(self.headers.get("Content-Length", 0))) > 2**26:
                    raise ValueError("The request is too large: send at most 64 MiB.")
                status, answer = 200, predict(model, json.loads(self.rfile.read(size)))
            except (tf.errors.InvalidArgumentError, ValueError) as error:
                text = f"The request must be JSON: {error}." if isinstance(error, json.JSONDecodeError) else str(error)
                sentence = re.search(r"assertion failed: \[(.*?)\.+ *\]", text)  # Of the model's graph.
                status, answer = 400, {"error": f"{sentence[1]}." if sentence else text}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    make_server(sys.argv[1], int(sys.argv[2])).serve_forever()
