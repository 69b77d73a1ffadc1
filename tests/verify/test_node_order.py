"""A model whose nodes are out of order, as ONNX Runtime loads it, is verified like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from causal_attn.verify import verify
from causal_attn.verify.node_order import node_order, sort_model


def test_indices_come_after_what_they_read() -> None:
    reads = [["c"], ["a"], ["x"], ["y", "c"]]
    writes = [["d"], ["b"], ["a"], ["c"]]
    assert node_order(reads, writes) == [2, 1, 3, 0]
    assert node_order([["x"], ["a"]], [["a"], ["b"]]) == [0, 1]


def test_a_cycle_comes_last_as_it_is() -> None:
    assert node_order([["b"], ["a"], ["x"]], [["a"], ["b"], ["c"]]) == [2, 0, 1]


def branches(*, reverse: bool = False, reverse_body: bool = False) -> onnx.ModelProto:
    """``y``: running sums of ``x`` through a branch that reads a name from around it."""
    result = [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
    inner = [
        helper.make_node("Mul", ["sum", "one"], ["m"]),
        helper.make_node("Tanh", ["m"], ["r"]),
    ]
    other = [helper.make_node("Tanh", ["sum"], ["r"])]
    body = helper.make_graph(inner[::-1] if reverse_body else inner, "then", [], result)
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["sum"]),
        helper.make_node(
            "If", ["yes"], ["y"], then_branch=body,
            else_branch=helper.make_graph(other, "else", [], result),
        ),
    ]  # fmt: skip
    stored = {"one": np.float32(1), "axis": np.array(1), "yes": np.array(True)}
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "tokens", 4])
        for name in ("x", "y")
    ]
    tensors = [numpy_helper.from_array(np.asarray(value), key) for key, value in stored.items()]
    graph = helper.make_graph(nodes[::-1] if reverse else nodes, "g", info[:1], info[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_model_is_sorted_in_its_bodies_too() -> None:
    model = branches(reverse=True, reverse_body=True)
    sort_model(model)
    onnx.checker.check_model(model)
    assert model == branches()


def test_a_model_out_of_order_passes_every_check(tmp_path: Path) -> None:
    """Which inputs are read, and the float64 run, follow nodes in the order they come in."""
    onnx.save(branches(reverse=True), tmp_path / "m.onnx")
    report = verify(tmp_path / "m.onnx", lengths=(1, 2, 5))
    assert report.exit_code == 0
    (one,) = report.variants
    assert not any("parity" in reason for reason in one.not_checked)
    assert {"inputs are read", "parity"} <= {check.name for check in one.certificate.checks}
