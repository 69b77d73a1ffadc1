"""Every rule against numbers: what changes an output when it is changed must be in its bits.

The nodes are onnx's own conformance cases. Each element of one float input is a position; the
others are known. The reference evaluator tells which output elements change.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from causal_attn.verify.influence.evaluate import Frame
from causal_attn.verify.influence.program import read_program
from causal_attn.verify.influence.registry import Mode
from causal_attn.verify.influence.tensor import Array, Tensor, constant, unknown

pytestmark = pytest.mark.filterwarnings("ignore")

MOST_ELEMENTS = 48
RANDOM = ("bernoulli", "dropout", "random", "multinomial")
PREFIXES = (
    "attention_3d", "attention_4d_causal", "attention_4d_gqa", "attention_4d_with_past",
    "add", "and", "averagepool_1d", "averagepool_2d_pads", "basic_conv", "cast", "clip",
    "compress", "concat", "constant_pad", "conv", "convtranspose_1d", "cumsum", "depthtospace",
    "dequantizelinear", "div", "dynamicquantizelinear", "edge_pad", "einsum", "exp", "expand",
    "flatten", "gather", "gelu", "gemm", "gru", "hardmax", "instancenorm", "layer_normalization",
    "logsoftmax", "loop", "lstm", "matmul", "max", "mean", "min", "mul", "onehot", "pow",
    "quantizelinear", "reduce", "reflect_pad", "reshape", "reversesequence", "rms_normalization",
    "rnn", "rotary", "scan", "scatter", "sigmoid", "slice", "softmax", "spacetodepth", "split",
    "squeeze", "sub", "tensorscatter", "tile", "top_k", "transpose", "tril", "triu", "unsqueeze",
    "where", "wrap_pad",
)  # fmt: skip


def collected() -> list[Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


def positions_of(shape: tuple[int, ...], words: int) -> list[Array]:
    index = np.arange(int(np.prod(shape, dtype=int))).reshape(shape).astype(np.uint64)
    bit = np.uint64(1) << (index % np.uint64(64))
    return [np.where(index // np.uint64(64) == word, bit, np.uint64(0)) for word in range(words)]


def reached(tensor: Tensor, positions: int) -> Array:
    """Bits as a matrix ``[output element, position]``."""
    planes = [np.broadcast_to(plane, tensor.shape).reshape(-1) for plane in tensor.bits]
    at = np.arange(positions)
    words = np.stack(planes, -1)[:, at // 64]
    result: Array = (words >> (at % 64).astype(np.uint64)) & np.uint64(1) == 1
    return result


def changed(run: Any, feeds: dict[str, Array], name: str, element: int, by: float) -> list[Array]:
    before = run(feeds)
    moved = feeds[name].copy()
    moved.reshape(-1)[element] += by
    after = run({**feeds, name: moved})
    return [
        ~np.isclose(a, b, rtol=0, atol=0, equal_nan=True).reshape(-1)
        for a, b in zip(before, after, strict=True)
    ]


def check(case: Any, random: np.random.Generator) -> int:
    """Check a case for each of its float inputs; how many were checked."""
    model: onnx.ModelProto = case.model
    arrays, _ = case.data_sets[0]
    names = [item.name for item in model.graph.input]
    feeds = dict(zip(names, arrays, strict=False))
    try:
        evaluator = ReferenceEvaluator(model)
    except NotImplementedError:
        return 0  # an operator that onnx itself cannot run
    program = read_program(model, None)
    checked = 0

    def run(given: dict[str, Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            return [np.asarray(item) for item in evaluator.run(None, given)]

    for name, array in feeds.items():
        if array.dtype.kind != "f" or not 0 < array.size <= MOST_ELEMENTS:
            continue
        mode = Mode(positions=array.size)
        values: dict[str, Any] = {n: constant(a, mode.words) for n, a in feeds.items()}
        values[name] = unknown(array.shape, array.dtype, positions_of(array.shape, mode.words))
        outputs = Frame(program, mode, values=values, dims={}).run(program.graph)
        if mode.doubts or not all(isinstance(output, Tensor) for output in outputs):
            continue
        actual = run(feeds)
        for output, expected in zip(outputs, actual, strict=True):
            assert isinstance(output, Tensor)
            assert output.shape == expected.shape, f"{case.name}: {name}"
            known = np.broadcast_to(output.known, output.shape)
            low = np.broadcast_to(output.low, output.shape)
            np.testing.assert_allclose(
                low[known].astype(float), expected[known].astype(float), rtol=1e-2,
                err_msg=f"{case.name}: known values with {name} as data",
            )  # fmt: skip
        for element in random.permutation(array.size)[:4]:
            by = float(random.normal()) * 3.0
            for output, moved in zip(
                outputs, changed(run, feeds, name, int(element), by), strict=True
            ):
                assert isinstance(output, Tensor)
                inside = reached(output, array.size)[:, element]
                assert not (moved & ~inside).any(), f"{case.name}: {name}[{element}] is missed"
        checked += 1
    return checked


def test_no_dependence_is_missed() -> None:
    random = np.random.default_rng(3)
    checked = 0
    seen: set[str] = set()
    for case in collected():
        name = case.name.removeprefix("test_")
        if case.model is None or name in seen or not name.startswith(PREFIXES):
            continue
        seen.add(name)
        if any(word in name for word in RANDOM) or "expanded" in name or not case.data_sets:
            continue
        arrays = case.data_sets[0][0]
        if all(isinstance(item, np.ndarray) and item.dtype.kind in "fiub" for item in arrays):
            checked += check(case, random)
    assert checked > 300
