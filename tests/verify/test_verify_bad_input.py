"""Files that cannot be verified: one clear sentence, the right exit code, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from causal_attn.cli import main
from causal_attn.errors import CausalAttnError, UsageError
from causal_attn.verify import read_model as static
from causal_attn.verify import verify


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Verify = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Verify:
    """Run ``causal-attn verify PATH``; fails if a file is written or a traceback shown."""

    def verified(path: Path, *options: str) -> Result:
        before = _files(tmp_path)
        with pytest.raises(SystemExit) as caught:
            main(["verify", str(path), *options])
        out, err = capfd.readouterr()
        assert _files(tmp_path) == before
        assert "Traceback" not in out + err
        code = caught.value.code
        return Result(code if isinstance(code, int) else 0, out, " ".join(err.split()))

    return verified


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sums(
    path: Path,
    *,
    inputs: dict[str, list[str | int]] | None = None,
    outputs: dict[str, list[str | int]] | None = None,
    nodes: list[onnx.NodeProto] | None = None,
    weights: list[TensorProto] | None = None,
    opset: int = 18,
    domains: tuple[str, ...] = (),
) -> Path:
    """A cumulative sum along axis 1, or other `nodes`."""
    inputs = inputs or {"x": ["batch", "tokens", 4]}
    outputs = outputs or {"y": ["batch", "tokens", 4]}
    axis = numpy_helper.from_array(np.array(1), "axis")
    axes = numpy_helper.from_array(np.array([1]), "axes")
    graph = helper.make_graph(
        nodes or [helper.make_node("CumSum", [next(iter(inputs)), "axis"], ["y"])],
        "sums",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in outputs.items()],
        [axis, axes, *(weights or [])],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def weighted(path: Path, location: str) -> Path:
    """A product with a weight that lies in another file, called `location` in the model."""
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "weight")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "64"}.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["z"]),
        helper.make_node("CumSum", ["z", "axis"], ["y"]),
    ]
    return sums(path, nodes=nodes, weights=[weight])


def test_the_right_file_passes(tmp_path: Path, run: Verify) -> None:
    assert run(sums(tmp_path / "m.onnx")).code == 0
    np.eye(4, dtype=np.float32).tofile(tmp_path / "w.bin")
    assert run(weighted(tmp_path / "w.onnx", "w.bin")).code == 0


def test_no_file(tmp_path: Path, run: Verify) -> None:
    result = run(tmp_path / "none.onnx")
    assert result.code == 2
    assert "none.onnx" in result.err


@pytest.mark.parametrize("content", [b"not a model", b"\x00" * 100, b"", b"{}", b"\x08\x0a"])
def test_not_onnx(tmp_path: Path, run: Verify, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    result = run(tmp_path / "m.onnx")
    assert result.code == 2
    assert result.err.startswith("error:")
    assert "m.onnx" in result.err


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.99])
def test_truncated(tmp_path: Path, run: Verify, part: float) -> None:
    path = sums(tmp_path / "m.onnx")
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    result = run(path)
    assert result.code == 2
    assert "m.onnx" in result.err


def test_external_data_is_missing(tmp_path: Path, run: Verify) -> None:
    result = run(weighted(tmp_path / "m.onnx", "weights.bin"))
    assert result.code == 2
    assert "external data" in result.err
    assert "weights.bin" in result.err


def test_external_data_is_cut_short(tmp_path: Path, run: Verify) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0" * 63)
    result = run(weighted(tmp_path / "m.onnx", "weights.bin"))
    assert result.code == 2
    assert "must have 64 bytes, got 63" in result.err


@pytest.mark.parametrize("absolute", [True, False])
def test_external_data_is_outside_the_folder(tmp_path: Path, run: Verify, absolute: bool) -> None:
    np.eye(4, dtype=np.float32).tofile(tmp_path / "outside.bin")
    (tmp_path / "model").mkdir()
    location = str(tmp_path / "outside.bin") if absolute else "../outside.bin"
    result = run(weighted(tmp_path / "model" / "m.onnx", location))
    assert result.code == 2
    assert "location of external data" in result.err


def test_unknown_domain(tmp_path: Path, run: Verify) -> None:
    """Nothing is wrong with the file; nothing can be said of it."""
    node = helper.make_node("Mystery", ["x"], ["y"], domain="made.up", name="riddle")
    result = run(sums(tmp_path / "m.onnx", nodes=[node], domains=("made.up",)), "--json")
    assert result.code == 3
    (variant,) = json.loads(result.out)["variants"]
    assert variant["certificate"]["verdict"] == "undecided"
    checks = {check["name"]: check for check in variant["certificate"]["checks"]}
    assert checks["influence proof"]["passed"] is None
    assert "made.up.Mystery 'riddle'" in checks["influence proof"]["detail"]
    assert checks["runs"]["passed"] is None


def test_unknown_operator_of_the_default_domain(tmp_path: Path, run: Verify) -> None:
    node = helper.make_node("Riddle", ["x"], ["y"], name="riddle")
    result = run(sums(tmp_path / "m.onnx", nodes=[node]))
    assert result.code == 3
    assert "Riddle" in result.out


def test_no_token_axis(tmp_path: Path, run: Verify) -> None:
    path = sums(tmp_path / "m.onnx", inputs={"x": ["a", "b", 4]}, outputs={"y": ["a", "b", 4]})
    result = run(path)
    assert result.code == 2
    assert "the names do not tell" in result.err
    assert "--tokens-axis x=1" in result.err
    assert verify(path, tokens_axis={"x": 1}).exit_code == 0
    # Along axis 0 nothing is summed: rows do not meet, and the past does not matter.
    assert verify(path, tokens_axis={"x": 0}).exit_code == 1


def test_several_axes_may_hold_the_tokens(tmp_path: Path, run: Verify) -> None:
    path = sums(
        tmp_path / "m.onnx",
        inputs={"x": ["seq_len", "time", 4]},
        outputs={"y": ["seq_len", "time", 4]},
    )
    result = run(path)
    assert result.code == 2
    assert "several candidates, got x=0, x=1" in result.err
    assert verify(path, tokens_axis={"x": 1}).exit_code == 0


def test_several_inputs_may_hold_the_tokens(tmp_path: Path, run: Verify) -> None:
    """An encoder and a decoder: which of the two is asked about is the caller's to say."""
    nodes = [
        helper.make_node("CumSum", ["decoder_input_ids", "axis"], ["z"]),
        helper.make_node("ReduceMax", ["input_ids", "axes"], ["m"]),
        helper.make_node("Add", ["z", "m"], ["y"]),
    ]
    path = sums(
        tmp_path / "m.onnx",
        inputs={"input_ids": ["batch", "read"], "decoder_input_ids": ["batch", "written"]},
        outputs={"y": ["batch", "written"]},
        nodes=nodes,
    )
    result = run(path)
    assert result.code == 2
    assert "several candidates, got input_ids=1, decoder_input_ids=1" in result.err
    assert verify(path, tokens_axis={"decoder_input_ids": 1}).exit_code == 0


def test_inputs_that_share_the_axis_are_perturbed_too(tmp_path: Path) -> None:
    """Naming one of two inputs that run along the tokens does not hide the other."""
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["z"]),
        helper.make_node("CumSum", ["w", "axis"], ["u"], reverse=1),
        helper.make_node("Add", ["z", "u"], ["y"]),
    ]
    path = sums(
        tmp_path / "m.onnx",
        inputs={"x": ["a", "b", 4], "w": ["a", "b", 4]},
        outputs={"y": ["a", "b", 4]},
        nodes=nodes,
    )
    report = verify(path, tokens_axis={"x": 1})
    assert report.exit_code == 1
    leak = report.variants[0].leak
    assert leak is not None
    assert leak.path[0].startswith("w[")


def test_one_row_for_all_tokens(tmp_path: Path, run: Verify) -> None:
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    path = sums(tmp_path / "m.onnx", nodes=nodes, outputs={"y": ["batch", 4]})
    result = run(path)
    assert result.code == 0
    assert "of all tokens" in result.out


def test_opset_too_new(tmp_path: Path, run: Verify) -> None:
    newest = onnx.defs.onnx_opset_version()
    result = run(sums(tmp_path / "m.onnx", opset=newest + 5))
    assert result.code == 2
    assert f"an opset up to {newest}, got {newest + 5}" in result.err


def test_too_large_for_memory(
    tmp_path: Path, run: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static, "machine_bytes", lambda: 100)
    result = run(sums(tmp_path / "m.onnx"))
    assert result.code == 2
    assert "must fit into memory" in result.err


def test_a_cyclic_graph(tmp_path: Path, run: Verify) -> None:
    nodes = [helper.make_node("Add", ["x", "y"], ["z"]), helper.make_node("Abs", ["z"], ["y"])]
    result = run(sums(tmp_path / "m.onnx", nodes=nodes))
    assert result.code == 2
    assert "is on a cycle" in result.err


def test_a_package_takes_no_axes(tmp_path: Path) -> None:
    from causal_attn import models

    with pytest.raises(UsageError, match="must be left out for a model with a contract"):
        verify(models.path("causal_attention"), tokens_axis={"q": 2})


@pytest.mark.parametrize("seed", range(8))
def test_damage_never_ends_in_a_traceback(tmp_path: Path, seed: int) -> None:
    """Bytes changed at random: a report, or one of our errors."""
    path = sums(tmp_path / "m.onnx")
    rng = np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    for place in rng.integers(0, len(content), 3):
        content[place] = int(rng.integers(0, 256))
    path.write_bytes(bytes(content))
    with suppress(CausalAttnError):
        verify(path, lengths=(1, 3))
