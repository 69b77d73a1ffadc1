"""Quantized weights in the float64 oracle, against ONNX Runtime's CPU kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from causal_attn.errors import PackageError
from causal_attn.verify.oracle.float64 import GraphRun
from causal_attn.verify.oracle.yardstick import widened

Array = NDArray[Any]
ROWS = 7  # tokens
N = 5


def packed(codes: Array, bits: int) -> Array:
    """Codes along the last axis as bytes, the lowest bits first; the last byte is filled up."""
    per = 8 // bits
    filled = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per)])
    groups = filled.reshape(*codes.shape[:-1], -1, per).astype(np.uint8)
    shifts = (np.arange(per) * bits).astype(np.uint8)
    joined: Array = np.bitwise_or.reduce(groups << shifts, axis=-1)
    return joined


def model_of(
    path: Path,
    op: str,
    feed: Array,
    weights: dict[str, Array | None],
    types: dict[str, int] | None = None,
    at: int = 0,
    **attributes: Any,
) -> Path:
    """One node of ``com.microsoft``; its input `at` is ``x``, its others are `weights`."""
    names = [name if value is not None else "" for name, value in weights.items()]
    names.insert(at, "x")
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
    stored = []
    for name, value in weights.items():
        if value is None:
            continue
        kind = (types or {}).get(name)
        stored.append(
            numpy_helper.from_array(value, name)
            if kind is None
            else helper.make_tensor(name, kind, value.shape, value.reshape(-1))
        )
    graph = helper.make_graph(
        [node],
        "quantized",
        [
            helper.make_tensor_value_info(
                "x", helper.np_dtype_to_tensor_dtype(feed.dtype), feed.shape
            )
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        stored,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def both(path: Path, feed: Array) -> tuple[Array, Array]:
    """What ONNX Runtime says, and the oracle."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": feed})
    wide = GraphRun(path, wide=True)(widened({"x": feed}))["y"]
    return np.asarray(found), wide


def matmul_weights(
    bits: int, block: int, features: int, points: str, bias: bool, seed: int = 0
) -> dict[str, Array | None]:
    rng = np.random.default_rng(seed)
    blocks = -(-features // block)
    codes = rng.integers(0, 1 << bits, (N, blocks, block))
    zero: Array | None = None
    if points == "packed":
        zero = packed(rng.integers(0, 1 << bits, (N, blocks)), bits)
    elif points == "float":
        zero = rng.uniform(0, (1 << bits) - 1, (N, blocks)).astype(np.float32)
    return {
        "b": packed(codes, bits),
        "scales": rng.uniform(-1, 1, (N, blocks)).astype(np.float32) / (1 << bits),
        "zero_points": zero,
        "groups": None,
        "bias": rng.normal(size=N).astype(np.float32) if bias else None,
    }


def close(found: Array, wide: Array, size: float = 1e-5) -> None:
    assert found.shape == wide.shape
    assert wide.dtype == np.float64
    assert np.abs(found - wide).max() <= size * np.abs(wide).max()


# The CPU kernel takes no float zero points with 8 bits.
@pytest.mark.parametrize(
    ("bits", "points"),
    [(bits, points) for bits in (2, 4, 8) for points in ("default", "packed")]
    + [(bits, "float") for bits in (2, 4)],
)
@pytest.mark.parametrize(
    ("block", "features"), [(16, 16), (16, 48), (32, 37), (32, 96), (64, 65), (128, 100)]
)
def test_products_are_those_of_the_kernel(
    tmp_path: Path, bits: int, points: str, block: int, features: int
) -> None:
    weights = matmul_weights(bits, block, features, points, bias=features % 2 == 1)
    feed = np.random.default_rng(1).normal(size=(2, ROWS, features)).astype(np.float32)
    path = model_of(
        tmp_path / "m.onnx", "MatMulNBits", feed, weights,
        K=features, N=N, bits=bits, block_size=block,
    )  # fmt: skip
    close(*both(path, feed))


@pytest.mark.parametrize("points", ["default", "float", "packed"])
def test_features_may_have_the_scale_of_another_block(tmp_path: Path, points: str) -> None:
    weights = matmul_weights(4, 16, 48, points, bias=False)
    rng = np.random.default_rng(2)
    weights["groups"] = rng.permutation(np.repeat(np.arange(3), 16)).astype(np.int32)
    feed = rng.normal(size=(1, ROWS, 48)).astype(np.float32)
    path = model_of(
        tmp_path / "m.onnx", "MatMulNBits", feed, weights, K=48, N=N, bits=4, block_size=16
    )
    if points == "packed":
        with pytest.raises(PackageError, match="zero points of groups"):
            both(path, feed)
    else:
        close(*both(path, feed))


def test_honest_runs_are_as_far_off_as_the_kernel_in_long_sums(tmp_path: Path) -> None:
    """The kernel adds up term after term; a product in tiles would be half as far off."""
    features, rows = 2048, 64
    rng = np.random.default_rng(4)
    weights: dict[str, Array | None] = {
        "b": packed(rng.integers(0, 16, (rows, features // 32, 32)), 4),
        "scales": rng.uniform(0.5, 1, (rows, features // 32)).astype(np.float32),
    }
    feed = rng.normal(size=(1, 33, features)).astype(np.float32)
    path = model_of(
        tmp_path / "m.onnx", "MatMulNBits", feed, weights,
        K=features, N=rows, bits=4, block_size=32,
    )  # fmt: skip
    found, wide = both(path, feed)
    plain = GraphRun(path, wide=False)({"x": feed})["y"]
    rounded = GraphRun(path, wide=True).rounded(widened({"x": feed}), 0)["y"]
    kernel, *honest = (
        float(np.sqrt(np.mean((run - wide) ** 2))) for run in (found, plain, rounded)
    )
    assert kernel <= 1.3 * min(honest)


@pytest.mark.parametrize("bits", [4, 8])
def test_honest_runs_narrow_data_where_the_kernel_may(tmp_path: Path, bits: int) -> None:
    """At accuracy level 4 the kernel makes 8-bit integers of its data: no fault, and no secret."""
    weights = matmul_weights(bits, 32, 64, "default", bias=False)
    feed = np.random.default_rng(3).normal(size=(2, 33, 64)).astype(np.float32)
    errors = {}
    for level in (0, 4):
        path = model_of(
            tmp_path / f"{level}.onnx", "MatMulNBits", feed, weights,
            K=64, N=N, bits=bits, block_size=32, accuracy_level=level,
        )  # fmt: skip
        found, wide = both(path, feed)
        rounded = GraphRun(path, wide=True).rounded(widened({"x": feed}), 0)["y"]
        errors[level] = [float(np.sqrt(np.mean((run - wide) ** 2))) for run in (found, rounded)]
    assert errors[4][0] <= 2 * errors[4][1]
    assert errors[4][1] > 1000 * errors[0][1]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", [False, True])
def test_rows_of_a_packed_table_are_those_of_the_kernel(
    tmp_path: Path, bits: int, points: bool
) -> None:
    rng = np.random.default_rng(4)
    vocabulary, width, block = 11, 48, 16
    codes = rng.integers(0, 1 << bits, (vocabulary, width))
    weights: dict[str, Array | None] = {
        "data": packed(codes, bits),
        "scales": rng.normal(size=(vocabulary, width // block)).astype(np.float32),
        "zero_points": packed(rng.integers(0, 1 << bits, (vocabulary, 3)), bits)
        if points
        else None,
    }
    feed = np.array([[0, 3, 10], [-1, 5, 5]])
    path = model_of(
        tmp_path / "m.onnx", "GatherBlockQuantized", feed, weights, at=1,
        bits=bits, block_size=block, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    found, wide = both(path, feed)
    assert found.shape == (2, 3, width)
    close(found, wide, 1e-6)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 0)])
def test_tables_of_integers_of_4_bits(tmp_path: Path, kind: int, axes: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    low = -8 if kind == TensorProto.INT4 else 0
    shape = [34, 34]
    shape[axes[1]] = 3  # blocks of 16, the last one short
    weights: dict[str, Array | None] = {
        "data": rng.integers(low, low + 16, (34, 34)),
        "scales": rng.normal(size=shape).astype(np.float32),
        "zero_points": rng.integers(low, low + 16, shape),
    }
    feed = np.array([1, 33, 7])
    path = model_of(
        tmp_path / "m.onnx", "GatherBlockQuantized", feed, weights,
        {"data": kind, "zero_points": kind}, at=1,
        block_size=16, gather_axis=axes[0], quantize_axis=axes[1],
    )  # fmt: skip
    close(*both(path, feed), 1e-6)
