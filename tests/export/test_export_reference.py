"""The reference op, exported: parity and causality by provider, dtype and form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from provider_params import PROVIDERS

from causal_attn import AttentionSpec, Provider, causal_attention
from causal_attn.attention.example import worked_example
from causal_attn.errors import CheckError, ProviderError, UsageError
from causal_attn.export import export
from causal_attn.package.certificate import Verdict
from causal_attn.runtime import load

LENGTHS = (1, 2, 13, 33, 65)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_worked_example_on_every_provider(tmp_path: Path, provider: Provider, dtype: str) -> None:
    export(causal_attention, tmp_path / "p", providers=[provider], dtype=dtype, lengths=LENGTHS)
    feeds = {name: array.astype(dtype) for name, array in worked_example().items()}
    with load(tmp_path / "p", provider) as session:
        output, weights = session(**feeds)
    want = causal_attention(*(torch.from_numpy(feeds[name][0, 0]) for name in "qkv"))
    np.testing.assert_allclose(weights[0, 0], want.weights.numpy(), rtol=2e-3)
    np.testing.assert_allclose(output[0, 0], want.output.numpy(), rtol=2e-3)
    assert (weights[0, 0][np.triu_indices(3, 1)] == 0).all()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("form", ["decomposed", "attention"])
@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(),
        AttentionSpec(scale=0.25, softcap=5.0),
        AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=16),
        AttentionSpec(num_heads=4, num_kv_heads=1, head_dim=8, cache="dynamic"),  # type: ignore[arg-type]
    ],
    ids=["plain", "scale and softcap", "grouped heads", "cache"],
)
def test_every_form_passes_its_checks(
    tmp_path: Path, provider: Provider, form: str, spec: AttentionSpec
) -> None:
    if provider is Provider.OPENVINO and form == "attention":
        pytest.skip("openvino has no Attention kernel; refused in another test")
    package = export(spec, tmp_path / "p", form=form, providers=[provider], lengths=LENGTHS)
    (variant,) = package.variants
    certificate = variant.certificate
    assert certificate is not None
    assert certificate.passed
    assert variant.contract.form == form
    assert variant.contract.spec == spec
    if form == "attention" and spec.softcap is None:
        # ONNX Runtime's kernel adds the lowest float, so the claim has a bound. A softcap
        # keeps all scores below it.
        assert certificate.verdict is Verdict.CONDITIONAL
        assert certificate.score_bound is not None
        assert 1e38 < certificate.score_bound <= np.finfo(np.float32).max / 2
    else:
        assert certificate.verdict is Verdict.CAUSAL
    assert {check.name for check in certificate.checks} >= {
        "inputs are read", "influence proof", "batch proof", "placement", "parity",
        "future is invisible", "past matters", "batch is independent", "weights",
    }  # fmt: skip


def test_window_is_exported_and_kept(tmp_path: Path) -> None:
    spec = AttentionSpec(window=3)
    export(spec, tmp_path / "p", lengths=LENGTHS)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 9, 8)).astype(np.float32) for _ in range(3))
    with load(tmp_path / "p") as session:
        weights = session(q, k, v)[1]
    distance = np.arange(9)[:, None] - np.arange(9)[None, :]
    seen = (distance >= 0) & (distance < 3)
    assert (weights[..., ~seen] == 0).all()
    assert (weights[..., seen] > 0).all()


def test_float64_is_exact(tmp_path: Path) -> None:
    """Trap 9: a scale kept as float32 would show at 1e-8."""
    package = export(causal_attention, tmp_path / "p", dtype="float64", lengths=LENGTHS)
    certificate = package.variants[0].certificate
    assert certificate is not None
    (parity,) = [check for check in certificate.checks if check.name == "parity"]
    assert max(figure["max_abs"] for figure in parity.figures.values()) < 1e-14


def test_names_and_dims(tmp_path: Path) -> None:
    package = export(causal_attention, tmp_path / "p", lengths=(1, 2))
    model = onnx.load(package.variants[0].model)
    dims = {
        value.name: [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    batch = ["batch", "heads", "tokens"]
    assert dims == {
        "q": [*batch, "features"], "k": [*batch, "features"], "v": [*batch, "features"],
        "output": [*batch, "features"], "weights": [*batch, "tokens"],
    }  # fmt: skip
    assert model.opset_import[0].version == 18


def test_without_weights(tmp_path: Path) -> None:
    package = export(causal_attention, tmp_path / "p", return_weights=False, lengths=(1, 2))
    assert [tensor.name for tensor in package.variants[0].contract.outputs] == ["output"]


def test_no_path_of_the_build_machine_in_the_artifact(tmp_path: Path) -> None:
    package = export(causal_attention, tmp_path / "p", lengths=(1, 2))
    for file in package.root.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            for word in (
                b"site-packages",
                b".py",
                os.fsencode(tmp_path),
                b"stack_trace",
                b"File ",
            ):
                assert word not in data, (file.name, word)


def test_torch_prints_nothing_and_leaves_no_log(tmp_path: Path) -> None:
    code = (
        "import tempfile; "
        f"tempfile.tempdir = {str(tmp_path)!r}; "
        "from causal_attn import causal_attention; from causal_attn.export import export; "
        f"export(causal_attention, {str(tmp_path / 'p')!r}, lengths=(1, 2))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (result.stdout, result.stderr) == ("", "")
    assert [entry.name for entry in tmp_path.iterdir()] == ["p"]


def test_a_failed_check_leaves_the_older_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p"
    export(causal_attention, path, lengths=(1, 2))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    monkeypatch.setattr("causal_attn.verify.compare.comparison.BAND_ULP", -1e9)
    with pytest.raises(CheckError, match=r"parity: `output`.*No package was written"):
        export(causal_attention, path, lengths=(1, 2))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["p"]


def test_an_interruption_leaves_the_older_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p"
    export(causal_attention, path, lengths=(1, 2))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    def interrupt(step: str) -> None:
        if step.startswith("future"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(AttentionSpec(window=2), path, lengths=(1, 2), on_step=interrupt)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["p"]


def test_a_folder_with_something_else_in_it_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(UsageError, match="holds something else"):
        export(causal_attention, tmp_path)
    assert (tmp_path / "letter.txt").read_text() == "dear reader"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"form": "flash"}, UsageError, "`form` must be one of"),
        ({"form": "attention", "dtype": "float16"}, UsageError, "form 'attention' is not right"),
        ({"form": "attention", "opset": 18}, UsageError, "needs opset 23"),
        ({"opset": 26}, UsageError, "`opset` must be 18 to 25"),
        ({"opset": 17}, UsageError, "needs opset 18"),
        ({"dtype": "bfloat16"}, UsageError, "no bfloat16 kernels"),
        ({"dtype": "int8"}, UsageError, "`dtype` must be one of"),
        ({"providers": "cpu"}, ProviderError, "`providers` must be a sequence"),
        ({"providers": []}, ProviderError, "`providers` must be a sequence"),
        ({"providers": ["gpu"]}, ProviderError, "`provider` must be one of"),
        ({"providers": ["cpu", "cpu"]}, ProviderError, "`providers` must be distinct"),
        ({"providers": ["tensorrt"]}, ProviderError, "check_on=\\('cpu',\\)"),
        ({"check_on": ["tensorrt"]}, ProviderError, "`check_on` must name installed"),
        ({"example_inputs": (torch.ones(2),)}, UsageError, "`example_inputs` and `dims` must be"),
    ],
    ids=str,
)
def test_wrong_arguments(
    tmp_path: Path, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export(causal_attention, tmp_path / "p", **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_attention_form_has_no_window(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="form 'attention' has no window"):
        export(AttentionSpec(window=2), tmp_path / "p", form="attention")


def test_a_variant_checked_elsewhere_says_so(tmp_path: Path) -> None:
    package = export(
        causal_attention,
        tmp_path / "p",
        providers=("cpu", "tensorrt"),
        check_on=("cpu",),
        lengths=(1, 2),
    )
    certificate = package.select("tensorrt").certificate
    assert certificate is not None
    assert {check.provider for check in certificate.checks} == {"", "cpu"}
    manifest = json.loads((package.root / "manifest.json").read_text())
    assert set(manifest["components"]["causal_attention"]["variants"]) == {"cpu", "tensorrt"}


def test_onnx_runtime_opens_what_export_writes(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    if not hasattr(ort, "ModelPackage"):
        pytest.skip("this ONNX Runtime has no ModelPackage in Python")
    package = export(causal_attention, tmp_path / "p", lengths=(1, 2))
    info = ort.ModelPackage.open(str(package.root)).get_info()
    assert info["package_name"] == "causal_attention"
    context = ort.ModelPackageContext(str(package.root))
    options = ort.ModelPackageOptions(ort.SessionOptions())
    engine = context.select_component("causal_attention", options).create_session(None)
    output, _ = engine.run(None, worked_example())
    np.testing.assert_allclose(output[0, 0, 1], [0.6605, 2.6790], atol=1e-4)
