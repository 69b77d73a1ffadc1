"""What runs on WebGPU is what runs on the CPU, or is refused by a check.

`scripts/check_webgpu` runs these where there is a Vulkan device, SwiftShader's at least. There a
kernel takes up to a second to be translated, so that lengths are few.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from causal_attn import AttentionSpec, Provider, models
from causal_attn.errors import CheckError, ProviderError, UsageError
from causal_attn.export import export
from causal_attn.machine.adapter import webgpu_adapters
from causal_attn.package import check_certificate
from causal_attn.runtime import available_providers, load
from causal_attn.runtime.options import needed_entries
from causal_attn.runtime.placement import RECORD_OPTION, SHAPE_OPS_OF_WEBGPU, read_placement
from causal_attn.verify import verify

pytestmark = pytest.mark.skipif(
    Provider.WEBGPU not in available_providers() or not webgpu_adapters(),
    reason="WebGPU is not here: scripts/check_webgpu has the wheel and looks for a Vulkan device",
)

PACKAGE = models.path("causal_attention")
LENGTHS = (1, 2, 5)


def test_the_shipped_variant_passes_and_its_certificate_names_the_adapter() -> None:
    (one,) = verify(PACKAGE, provider="webgpu", lengths=LENGTHS).variants
    assert one.certificate.passed
    (placement,) = [check for check in one.certificate.checks if check.name == "placement"]
    (adapter,) = webgpu_adapters()
    assert placement.figures["adapter"] == [adapter]
    assert f"nodes on webgpu ({adapter}); shapes: " in placement.detail
    assert "onnxruntime-webgpu" in one.certificate.versions
    assert "onnxruntime" not in one.certificate.versions


def test_agrees_with_the_cpu() -> None:
    rng = np.random.default_rng(0)
    with load(PACKAGE, "webgpu") as session, load(PACKAGE, "cpu") as cpu:
        placed = {node.op_type: node.provider for node in session.placement}
        assert {placed["MatMul"], placed["Softmax"]} == {"webgpu"}
        for tokens in (1, 2, 33, 129):
            feeds = {
                name: rng.standard_normal((2, 3, tokens, 40)).astype(np.float32) for name in "qkv"
            }
            ours, theirs = session.run(feeds), cpu.run(feeds)
            for name in ours:
                np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=2e-6)


def test_a_window_is_exported_for_both(tmp_path: Path) -> None:
    """Its mask is made of two comparisons of positions, which stay on the host."""
    spec = AttentionSpec(window=3)
    package = export(spec, tmp_path / "p", providers=("cpu", "webgpu"), lengths=LENGTHS)
    for variant in package.variants:
        check_certificate(variant)
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 9, 8)).astype(np.float32)
    with load(package.root, "webgpu") as session:
        weights = session(q, k, v)[1]
    distance = np.arange(9)[:, None] - np.arange(9)[None, :]
    assert ((weights[0] > 0) == ((distance >= 0) & (distance < 3))).all()


@pytest.mark.skipif(
    not any(name.endswith("subgroups of 4") for name in webgpu_adapters()),
    reason="the kernel is wrong where subgroups have 4 lanes",
)
def test_a_kernel_that_is_wrong_on_the_adapter_is_refused_by_a_check(tmp_path: Path) -> None:
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=8)
    wanted: dict[str, Any] = {"form": "gqa", "return_weights": False, "lengths": LENGTHS}
    assert export(spec, tmp_path / "cpu", **wanted).variants[0].certificate is not None
    with pytest.raises(CheckError, match=r"on webgpu, got parity: `output` at tokens=5"):
        export(spec, tmp_path / "p", providers=("webgpu",), **wanted)
    assert not (tmp_path / "p").exists()


def test_operators_that_may_be_on_the_cpu_have_kernels() -> None:
    """So that one on the CPU is there because it reads a shape."""
    lacking = {op for op in SHAPE_OPS_OF_WEBGPU if placed_alone(op) != "webgpu"}
    assert lacking == {"ConstantOfShape"}
    assert placed_alone("Mod") == placed_alone("Size") == "cpu"


def placed_alone(op: str) -> str:
    """Where the one node of a graph runs that has `op` of tensors of data."""
    boolean, number, integer = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64
    compares = op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    data = boolean if op in ("And", "Not") else number
    inputs = [("x", data, [None, 4])]
    constants: dict[str, list[int]] = {}
    attributes: dict[str, dict[str, Any]] = {
        "Cast": {"to": TensorProto.INT32},
        "Concat": {"axis": 0},
        "Mod": {"fmod": 1},
    }
    if compares or op in ("Add", "And", "Concat", "Div", "Mod", "Mul", "Sub"):
        inputs.append(("z", data, [None, 4]))
    elif op == "Where":
        inputs = [("c", boolean, [None, 4]), *inputs, ("z", data, [None, 4])]
    elif op == "Range":
        inputs = [(name, number, []) for name in ("from", "to", "by")]
    elif op in ("Expand", "Gather"):
        inputs.append(("s", integer, [2]))
    elif op == "ConstantOfShape":
        inputs = [("s", integer, [2])]
    elif op == "Reshape":
        constants = {"s": [4, -1]}
    elif op == "Slice":
        constants = {"from": [0], "to": [1]}
    elif op in ("Squeeze", "Unsqueeze"):
        inputs, constants = [("x", data, [1, 4])], {"axes": [0]}
    results = {"Shape": integer, "Size": integer, "Cast": TensorProto.INT32}
    result = boolean if compares else results.get(op, data)
    names = [name for name, _, _ in inputs] + list(constants)
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes.get(op, {}))],
        "g",
        [helper.make_tensor_value_info(*described) for described in inputs],
        [helper.make_tensor_value_info("y", result, None)],
        [
            helper.make_tensor(name, integer, [len(values)], values)
            for name, values in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = onnxruntime.SessionOptions()
    for key, value in {
        RECORD_OPTION: "1",
        **needed_entries(Provider.WEBGPU, half=False),
    }.items():
        options.add_session_config_entry(key, value)
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[Provider.WEBGPU.ort_name]
    )
    (node,) = read_placement(session)
    assert node.op_type == op
    return node.provider


def test_options_that_would_be_ignored_are_refused() -> None:
    with pytest.raises(UsageError, match=r"`provider_options` must be empty for webgpu"):
        load(PACKAGE, "webgpu", provider_options={"powerPreference": "low-power"})


def test_without_a_device_it_is_refused() -> None:
    program = f"from causal_attn.runtime import load; load({str(PACKAGE)!r}, 'webgpu')"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = ended.stderr.strip().splitlines()[-1]
    assert said.startswith(f"{ProviderError.__module__}.ProviderError: `provider` must have a")
    assert "`causal-attn doctor` says how to get one" in said
