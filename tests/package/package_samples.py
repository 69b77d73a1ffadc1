"""Small models, contracts and certificates that the package tests share."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from causal_attn.machine.provider import Provider
from causal_attn.package import VariantSource
from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.package.digest import model_digest

CONTRACT = Contract(
    inputs=(TensorContract(name="x", dtype="float32", dims=("tokens",)),),
    outputs=(TensorContract(name="y", dtype="float32", dims=("tokens",)),),
    form="captured",
    opset=18,
)


def save_model(path: Path, *, weight: float = 1.0, data: str | None = None) -> Path:
    """Write ``y = x + weight``; with `data`, the weight is external data at that location."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    constant = numpy_helper.from_array(np.full(1, weight, np.float32), "w")
    if data is not None:
        (path.parent / data).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / data).write_bytes(constant.raw_data)
        constant.ClearField("raw_data")
        constant.data_location = TensorProto.EXTERNAL
        constant.external_data.add(key="location", value=data)
        constant.external_data.add(key="offset", value="0")
        constant.external_data.add(key="length", value="4")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens"])],
        [constant],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def load(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


def certify(model: Path, *, passed: bool = True) -> Certificate:
    return Certificate(
        digest=model_digest(model),
        verdict=Verdict.CAUSAL,
        checks=(Check(name="parity", passed=passed, detail="Within the budget."),),
        versions={"onnxruntime": "1.32.0"},
    )


def source(
    model: Path, provider: Provider = Provider.CPU, name: str | None = None
) -> VariantSource:
    return VariantSource(
        provider=provider,
        model=model,
        contract=CONTRACT,
        certificate=certify(model),
        name=name,
    )
