"""A model is loaded on the provider that was asked for and as it was checked, or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx_bytes import Node, Tensor, model
from runtime_cases import (
    attention_bytes,
    attention_contract,
    contract_of,
    expected,
    passed_certificate,
)

from causal_attn.errors import (
    CertificateError,
    EngineError,
    PackageError,
    ProviderError,
    UsageError,
)
from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.runtime import PlacedNode, available_providers, load, loading, providers
from causal_attn.runtime.ort import SessionOptions
from causal_attn.runtime.placement import read_placement, require_placement

Arrays = tuple[NDArray[np.float32], ...]


def test_a_package_runs_the_variant_of_the_provider(
    package: Callable[..., Path], provider: Provider, qkv: Arrays
) -> None:
    root = package(*available_providers())
    with load(root, provider) as session:
        assert session.provider is provider
        assert session.contract == attention_contract()
        assert session.certificate is not None
        assert session.certificate.passed
        result = session(*qkv)
    np.testing.assert_allclose(result.output, expected(*qkv)[0], rtol=1e-5, atol=1e-6)


def test_a_provider_may_have_its_long_name(package: Callable[..., Path]) -> None:
    with load(package(Provider.CPU), "CPUExecutionProvider") as session:
        assert session.provider is Provider.CPU


def test_a_package_without_the_provider_is_refused(
    package: Callable[..., Path], provider: Provider
) -> None:
    other = Provider.TENSORRT if provider is not Provider.TENSORRT else Provider.CPU
    with pytest.raises(ProviderError, match=rf"got '{provider}'.*{other}"):
        load(package(other), provider)


@pytest.mark.parametrize("name", ["cuda:0", "CPU", "", "gpu", "AzureExecutionProvider"])
def test_an_unknown_provider_is_refused(attention: Path, name: str) -> None:
    with pytest.raises(ProviderError, match=r"`provider` must be one of \['cpu', 'cuda'"):
        load(attention, name)


def test_an_absent_provider_is_refused_with_the_command_that_gets_it(attention: Path) -> None:
    absent = next(p for p in (Provider.CUDA, Provider.OPENVINO) if p not in available_providers())
    with pytest.raises(ProviderError) as caught:
        load(attention, absent)
    message = str(caught.value)
    assert f"got {str(absent)!r}" in message
    assert str([str(provider) for provider in available_providers()]) in message
    assert f"pip install '{absent.requirement}'" in message
    # The wheel that is there owns the same module and has to go first.
    assert "pip uninstall -y onnxruntime" in message


def test_two_wheels_at_once_are_refused(attention: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.0"}
    monkeypatch.setattr(providers, "installed_wheels", lambda: wheels)
    with pytest.raises(ProviderError) as caught:
        load(attention)
    assert "onnxruntime and onnxruntime-gpu are both installed" in str(caught.value)
    assert "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'causal-attn[cpu]'" in str(
        caught.value
    )


def test_a_provider_that_does_not_start_is_refused(
    attention: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ONNX Runtime lists CUDA where the wheel has it; without a device it makes a CPU session.
    monkeypatch.setattr(loading, "require_provider", lambda _: Provider.CUDA)
    monkeypatch.setattr(loading, "_preload", lambda: "Failed to load libcudnn.so.9")
    monkeypatch.setattr(
        loading,
        "open_engine",
        lambda model, _, options, __, **___: onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        ),
    )
    with pytest.raises(ProviderError, match=r"`provider` must start, got 'cuda'.*libcudnn"):
        load(attention, "cuda")


class CudaSession:
    """What ONNX Runtime would give for CUDA with `on_cpu` left to the CPU."""

    def __init__(self, model: bytes, options: Any, on_cpu: str) -> None:
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self._on_cpu = on_cpu

    def get_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        nodes = [
            node
            for subgraph in self._session.get_provider_graph_assignment_info()
            for node in subgraph.get_nodes()
        ]
        return [
            SimpleNamespace(
                ep_name=f"{'CPU' if node.name == self._on_cpu else 'CUDA'}ExecutionProvider",
                get_nodes=lambda node=node: [node],
            )
            for node in nodes
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def test_the_record_decides_on_cuda(attention: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = "keys"
    monkeypatch.setattr(loading, "require_provider", lambda _: Provider.CUDA)
    monkeypatch.setattr(
        loading,
        "open_engine",
        lambda model, _, options, __, **___: CudaSession(model, options, left),
    )
    with load(attention, "cuda") as session:
        assert PlacedNode("keys", "Range", "", "cpu") in session.placement
        assert PlacedNode("softmax", "Softmax", "", "cuda") in session.placement
    left = "softmax"
    with pytest.raises(ProviderError, match=r"leaves 1 of 14: 1 Softmax on cpu"):
        load(attention, "cuda")


def test_placement_names_every_node(attention: Path, provider: Provider) -> None:
    with load(attention, provider) as session:
        placement = session.placement
    assert {node.name for node in placement} >= {"products", "mask", "softmax", "values"}
    assert PlacedNode("softmax", "Softmax", "", str(provider)) in placement
    computing = [node for node in placement if node.op_type in ("MatMul", "Softmax")]
    assert {node.provider for node in computing} == {str(provider)}
    if provider is not Provider.CUDA:
        assert {node.provider for node in placement} == {str(provider)}


def determinant() -> tuple[bytes, Any]:
    """A graph whose last node only the CPU provider has a kernel for."""
    serialized = model(
        [Tensor("x", ["n", "n"])],
        [Tensor("y", [])],
        [Node("Relu", ["x"], ["h"], "relu"), Node("Det", ["h"], ["y"], "determinant")],
    )
    return serialized, contract_of({"x": ("float32", ("n", "n"))}, {"y": ("float32", ())})


def test_a_node_that_would_run_on_the_cpu_is_refused_by_name(
    lone_model: Callable[..., Path], provider: Provider, capfd: pytest.CaptureFixture[str]
) -> None:
    path = lone_model(*determinant())
    if provider is Provider.CPU:
        with load(path) as session:
            assert session(np.eye(2, dtype=np.float32)).y == 1
        return
    with pytest.raises(ProviderError, match=r"1 Det on cpu \(first: 'determinant'\)"):
        load(path, provider)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_shape_arithmetic_may_be_on_the_cpu_beside_cuda_only() -> None:
    product = PlacedNode("product", "MatMul", "", "cuda")
    length = PlacedNode("length", "Gather", "", "cpu")
    softmax = PlacedNode("softmax", "Softmax", "", "cpu")
    contrib = PlacedNode("gqa", "Gather", "com.microsoft", "cpu")
    require_placement((product, length), Provider.CUDA)
    for extra in (softmax, contrib):
        with pytest.raises(ProviderError, match=r"leaves 1 of 3"):
            require_placement((product, length, extra), Provider.CUDA)
    with pytest.raises(ProviderError, match=r"1 Gather on cpu"):
        require_placement((length,), Provider.OPENVINO)
    with pytest.raises(ProviderError, match=r"1 Softmax on cpu"):
        require_placement((softmax,), Provider.OPENVINO)


def test_beside_webgpu_masks_of_positions_are_shape_arithmetic_too() -> None:
    product = PlacedNode("product", "MatMul", "", "webgpu")
    both = PlacedNode("window", "And", "", "cpu")
    require_placement((product, both), Provider.WEBGPU)
    # It has no kernel there for data either.
    remainder = PlacedNode("remainder", "Mod", "", "cpu")
    with pytest.raises(ProviderError, match=r"1 Mod on cpu"):
        require_placement((product, remainder), Provider.WEBGPU)
    with pytest.raises(ProviderError, match=r"1 And on cpu"):
        require_placement((product, both), Provider.CUDA)


def test_an_onnx_runtime_without_the_record_is_refused() -> None:
    with pytest.raises(EngineError, match=r"pip install --upgrade 'onnxruntime>=1\.24'"):
        read_placement(object())


def test_a_missing_certificate_is_refused(
    lone_model: Callable[..., Path], package: Callable[..., Path]
) -> None:
    lone = lone_model(attention_bytes(), attention_contract(), certified=False)
    for path in (lone, package(Provider.CPU, certified=False)):
        with pytest.raises(CertificateError):
            load(path)
        with load(path, accept="unverified") as session:
            assert session.certificate is None


def test_a_failed_certificate_is_refused(package: Callable[..., Path]) -> None:
    root = package(Provider.CPU)
    path = root / "attention/cpu/certificate.json"
    good = Certificate.from_json(path.read_text())
    failed = Check(name="future is invisible", passed=False, detail="it is not")
    bad = Certificate(digest=good.digest, verdict=Verdict.NOT_CAUSAL, checks=(failed,))
    path.write_text(bad.to_json())
    with pytest.raises(CertificateError, match=r"future is invisible"):
        load(root)
    with load(root, accept="unverified") as session:
        assert session.certificate == bad


def test_a_certificate_of_another_model_is_refused(package: Callable[..., Path]) -> None:
    root = package(Provider.CPU)
    path = root / "attention/cpu/certificate.json"
    path.write_text(passed_certificate("0" * 64).to_json())
    with pytest.raises(CertificateError):
        load(root)


def test_what_to_accept_must_be_a_known_word(attention: Path) -> None:
    with pytest.raises(UsageError, match=r"`accept` must be one of \['certified', 'unverified'\]"):
        load(attention, accept="anything")


def test_component_and_variant_choose_in_a_package_only(attention: Path) -> None:
    for choice in ({"component": "attention"}, {"variant": "cpu"}):
        with pytest.raises(UsageError, match=r"must be None for a lone model"):
            load(attention, **choice)  # type: ignore[arg-type]


def test_component_is_chosen_by_name(package: Callable[..., Path]) -> None:
    root = package(Provider.CPU)
    with load(root, component="attention", variant="cpu") as session:
        assert not session.closed
    with pytest.raises(UsageError, match=r"`component` must be one of \['attention'\]"):
        load(root, component="decoder")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"not there\.$"):
        load(tmp_path / "none")
    with pytest.raises(PackageError):
        load(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "junk", "truncated", "operator", "opset", "type"])
def test_a_damaged_model_is_refused_in_silence(
    package: Callable[..., Path],
    provider: Provider,
    capfd: pytest.CaptureFixture[str],
    damage: str,
) -> None:
    root = package(provider)
    dims = ["n"]
    x, y = Tensor("x", dims), Tensor("y", dims)
    broken = {
        "empty": b"",
        "junk": b"junk" * 9,
        "truncated": attention_bytes()[:-40],
        "operator": model([x], [y], [Node("NoSuchOperator", ["x"], ["y"], "n")]),
        "opset": model([x], [y], [Node("Relu", ["x"], ["y"], "n")], opset=99),
        "type": model([Tensor("x", dims, "int64")], [y], [Node("Softmax", ["x"], ["y"], "n")]),
    }
    (root / f"attention/{provider}/model.onnx").write_bytes(broken[damage])
    with pytest.raises((PackageError, EngineError), match=r"model\.onnx"):
        load(root, provider, accept="unverified")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"name": "q"', '"name": "x"', r"The contract's inputs must be those of the graph"),
        ('"float32"', '"float64"', r"The contract's inputs must be"),
        ('"name": "weights"', '"name": "w"', r"The contract's outputs must be"),
        ('"batch",', "", r"dims of `q` must be those of the graph, \['batch', 'heads'"),
    ],
)
def test_a_contract_of_another_graph_is_refused(
    package: Callable[..., Path], old: str, new: str, message: str
) -> None:
    root = package(Provider.CPU)
    path = root / "attention/cpu/contract.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(PackageError, match=message):
        load(root, accept="unverified")


def test_a_fixed_dim_of_the_graph_must_be_in_the_contract(lone_model: Callable[..., Path]) -> None:
    serialized = model(
        [Tensor("x", [3])], [Tensor("y", [3])], [Node("Relu", ["x"], ["y"], "relu")]
    )
    contract = contract_of({"x": ("float32", (4,))}, {"y": ("float32", (3,))})
    with pytest.raises(PackageError, match=r"dims of `x` must be those of the graph, \[3\]"):
        load(lone_model(serialized, contract))


def test_session_options_of_the_caller_are_applied(attention: Path, qkv: Arrays) -> None:
    spinning = {"session.intra_op.allow_spinning": "0"}
    with load(attention, session_options=spinning, intra_op_threads=1) as session:
        assert session._engine is not None
        options = session._engine.get_session_options()
        assert options.intra_op_num_threads == 1
        assert options.get_session_config_entry(*spinning) == "0"
        session(*qkv)
    own: Any = onnxruntime.SessionOptions()
    own.intra_op_num_threads = 2
    with load(attention, session_options=own) as session:
        assert session._engine is not None
        assert session._engine.get_session_options().intra_op_num_threads == 2
        assert session.placement


@pytest.mark.parametrize(
    "entries",
    [
        {"session.intra_op.allow_spining": "0"},
        {"session.intra_op.allow_spinning": "no"},
        {"session.intra_op.allow_spinning": 0},
        {"session.optimized_model_filepath": "elsewhere.onnx"},
        {"session.disable_cpu_ep_fallback": "0"},
        ["session.intra_op.allow_spinning"],
    ],
)
def test_session_options_that_would_be_ignored_are_refused(attention: Path, entries: Any) -> None:
    with pytest.raises(UsageError, match=r"`session_options` must"):
        load(attention, session_options=entries)


def test_a_package_may_not_set_options_that_write_files(
    package: Callable[..., Path], tmp_path: Path
) -> None:
    target = tmp_path / "written.onnx"
    root = package(Provider.CPU, **{"session.optimized_model_filepath": str(target)})
    with pytest.raises(PackageError):
        load(root, accept="unverified")
    assert not target.exists()


def test_session_options_of_the_package_are_applied(package: Callable[..., Path]) -> None:
    root = package(Provider.CPU, **{"session.set_denormal_as_zero": "1"})
    with load(root) as session:
        assert session._engine is not None
        options = session._engine.get_session_options()
        assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"


def test_a_package_option_outside_the_list_is_refused(package: Callable[..., Path]) -> None:
    root = package(Provider.CPU, **{"session.some_new_option": "1"})
    with pytest.raises(PackageError, match=r"session\.some_new_option"):
        load(root)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_must_be_a_positive_integer(attention: Path, threads: Any) -> None:
    with pytest.raises(UsageError, match=r"`intra_op_threads` must be an integer >= 1 or None"):
        load(attention, intra_op_threads=threads)


def test_threads_beside_session_options_are_refused(attention: Path) -> None:
    with pytest.raises(UsageError, match=r"`intra_op_threads` must be None beside"):
        load(attention, session_options=SessionOptions(), intra_op_threads=1)


def test_provider_options_are_not_ignored(attention: Path, provider: Provider) -> None:
    with pytest.raises((UsageError, EngineError), match=r"no_such_option"):
        load(attention, provider, provider_options={"no_such_option": "1"})
    wrong: Any = {"device_id": 0}
    with pytest.raises(UsageError, match=r"must be a mapping of strings to strings"):
        load(attention, provider, provider_options=wrong)


def test_session_options_may_be_used_again(
    attention: Path, provider: Provider, capfd: pytest.CaptureFixture[str]
) -> None:
    options = SessionOptions()
    for _ in range(2):
        with load(attention, provider, session_options=options):
            pass
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize(
    "key", ["session.disable_cpu_ep_fallback", "session.record_ep_graph_assignment_info"]
)
def test_session_options_may_not_undo_strictness(
    attention: Path, provider: Provider, key: str
) -> None:
    options = SessionOptions()
    unstrict = "0" if "record" in key or provider is Provider.OPENVINO else "1"
    options.add_session_config_entry(key, unstrict)
    with pytest.raises(UsageError, match=rf"`session_options` must leave {key} to `load`"):
        load(attention, provider, session_options=options)


def test_manifests_are_read_by_the_package_module(package: Callable[..., Path]) -> None:
    root = package(Provider.CPU)
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["components"]["attention"]["variants"]["cpu"]["variant_directory"] = "../outside"
    (root / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PackageError):
        load(root)


def test_a_pinned_model_is_that_one(package: Callable[..., Path]) -> None:
    root = package(Provider.CPU)
    with load(root) as session:
        assert session.certificate is not None
        digest = session.certificate.digest
    for accept in ("certified", "unverified"):
        with load(root, digest=f"sha256:{digest}", accept=accept) as session:
            assert not session.closed
        # A forged certificate fits its own model; it does not fit the one that is meant.
        with pytest.raises(CertificateError, match="It is another model than you mean"):
            load(root, digest=f"sha256:{'0' * 64}", accept=accept)


@pytest.mark.parametrize("digest", ["", "sha256:", "0" * 64, f"sha256:{'G' * 64}", 5, b"sha256:"])
def test_a_digest_says_its_kind(attention: Path, digest: Any) -> None:
    with pytest.raises(UsageError, match=r"`digest` must be 'sha256:' and 64 hex digits"):
        load(attention, digest=digest)


@pytest.mark.parametrize(("setting", "expected"), [(None, ["off"]), ("1", ["off"]), ("0", [])])
def test_telemetry_is_switched_off_unless_it_was_asked_for(
    attention: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, expected: list[str]
) -> None:
    from causal_attn.runtime import ort

    calls: list[str] = []
    monkeypatch.setattr(
        onnxruntime, "disable_telemetry_events", lambda: calls.append("off"), raising=False
    )
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    if setting is not None:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", setting)
    ort.switch_telemetry_off.cache_clear()
    load(attention).close()
    load(attention).close()
    assert calls == expected
    monkeypatch.delattr(onnxruntime, "disable_telemetry_events")
    ort.switch_telemetry_off.cache_clear()
    load(attention).close()


def test_nothing_is_left_at_home(attention: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    code = f"from causal_attn.runtime import load; load({str(attention)!r}).close()"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ORT_")}
    environment |= {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("XDG_CACHE_HOME", None)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert list(home.rglob("*")) == []
