"""Rewrites by other tools, which leave a decoder what it is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxslim
from onnx import ModelProto, helper, inliner, shape_inference, version_converter
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16

__all__ = ["REWRITTEN"]

Rewrite = Callable[[ModelProto], ModelProto]


def _optimized(level: ort.GraphOptimizationLevel) -> Rewrite:
    def rewrite(model: ModelProto) -> ModelProto:
        with tempfile.TemporaryDirectory() as folder:
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.graph_optimization_level = level
            options.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
            providers = ["CPUExecutionProvider"]
            ort.InferenceSession(model.SerializeToString(), options, providers=providers)
            return onnx.load(options.optimized_model_filepath)

    return rewrite


def _slim(model: ModelProto) -> ModelProto:
    slim: Any = onnxslim.slim(model)
    found: ModelProto = slim
    return found


def _half(keep: bool) -> Rewrite:
    return lambda model: convert_float_to_float16(model, keep_io_types=keep)


def _few_bits(bits: int) -> Rewrite:
    def rewrite(model: ModelProto) -> ModelProto:
        quantizer = MatMulNBitsQuantizer(model, bits=bits, block_size=16, is_symmetric=True)
        quantizer.process()
        quantized: Any = quantizer.model
        found: ModelProto = quantized.model
        return found

    return rewrite


def _opset(version: int) -> Rewrite:
    return lambda model: version_converter.convert_version(model, version)


def _renamed(model: ModelProto) -> ModelProto:
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    for node in model.graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name and name not in kept:
                    names[at] = f"v/{name[::-1]}"
    for tensor in model.graph.initializer:
        tensor.name = f"v/{tensor.name[::-1]}"
    return model


def _reordered(model: ModelProto) -> ModelProto:
    """Any other order in which each node stands behind what it reads."""
    rng = np.random.default_rng(0)
    waiting, done = list(model.graph.node), []
    made = {node for each in waiting for node in each.output}
    while waiting:
        ready = [at for at, node in enumerate(waiting) if not made & set(node.input)]
        node = waiting.pop(ready[int(rng.integers(len(ready)))])
        made -= set(node.output)
        done.append(node)
    del model.graph.node[:]
    model.graph.node.extend(done)
    return model


def _constants(model: ModelProto) -> ModelProto:
    """Initializers become nodes."""
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in model.graph.initializer]
    nodes += list(model.graph.node)
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


REWRITTEN: dict[str, Rewrite] = {
    "optimizer, basic": _optimized(ort.GraphOptimizationLevel.ORT_ENABLE_BASIC),
    "optimizer, extended": _optimized(ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED),
    "optimizer, all": _optimized(ort.GraphOptimizationLevel.ORT_ENABLE_ALL),
    "onnxslim": _slim,
    "float16": _half(False),
    "float16 inside": _half(True),
    "4 bits": _few_bits(4),
    "8 bits": _few_bits(8),
    "opset 21": _opset(21),
    "opset 23": _opset(23),
    "shapes inferred": lambda model: shape_inference.infer_shapes(model),
    "inlined": inliner.inline_local_functions,
    "renamed": _renamed,
    "reordered": _reordered,
    "constants as nodes": _constants,
}
