"""A Triton repository: what Triton's own protobuf reads from it is what ONNX Runtime then runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format  # type: ignore[import-untyped]
from numpy.typing import NDArray
from package_samples import CONTRACT, save_model
from toy_decoder import write_decoder
from tritonclient.utils import triton_to_np_dtype

from causal_attn import models
from causal_attn.deploy.source import open_source
from causal_attn.deploy.triton import write_triton
from causal_attn.deploy.triton_config import Batching, joins_along_batch, schema
from causal_attn.errors import CertificateError, PackageError, ProviderError, UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package import VariantSource, write_package
from causal_attn.runtime import load

REFERENCE = models.path("causal_attention")


def written(package: str | Path, out: Path, **options: Any) -> tuple[Any, Path]:
    """The configuration in a new repository, and the model's folder."""
    file = write_triton(open_source(str(package), **options), out)
    return text_format.Parse(file.read_text(), schema.ModelConfig()), file.parent


def run_as_triton(
    config: Any, folder: Path, requests: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """What Triton's backend does with one request: checked by the configuration alone."""
    session = onnxruntime.InferenceSession(
        folder / "1" / config.default_model_filename, providers=["CPUExecutionProvider"]
    )
    assert {one.name for one in config.input} == requests.keys()
    skipped = int(config.max_batch_size > 0)
    for one in config.input:
        array = requests[one.name]
        dtype = triton_to_np_dtype(schema.DataType.Name(one.data_type).removeprefix("TYPE_"))
        assert array.dtype == dtype
        assert len(one.dims) == array.ndim - skipped
        sizes = array.shape[skipped:]
        assert all(dim in (-1, size) for dim, size in zip(one.dims, sizes, strict=True))
        if skipped:
            assert array.shape[0] <= config.max_batch_size
    names = [one.name for one in config.output]
    arrays: Any = session.run(names, dict(requests))
    results = dict(zip(names, arrays, strict=True))
    for one in config.output:
        assert len(one.dims) == results[one.name].ndim - skipped
    return results


def warm_up_of(config: Any, folder: Path) -> dict[str, NDArray[Any]]:
    """The first request, as Triton makes it from the configuration and its files."""
    (warm_up,) = config.model_warmup
    batch = (1,) if config.max_batch_size else ()
    return {
        name: np.frombuffer(
            (folder / "warmup" / one.input_data_file).read_bytes(),
            triton_to_np_dtype(schema.DataType.Name(one.data_type).removeprefix("TYPE_")),
        ).reshape(*batch, *one.dims)
        for name, one in warm_up.inputs.items()
    }


def test_the_shipped_package_answers_as_the_runtime_does(tmp_path: Path) -> None:
    config, folder = written(f"attention={REFERENCE}", tmp_path / "repository")
    assert (folder.name, config.name, config.backend) == ("attention", "attention", "onnxruntime")
    assert config.max_batch_size == 16
    assert config.HasField("dynamic_batching")
    feeds = {
        name: np.random.default_rng(index).standard_normal((2, 3, 7, 5)).astype(np.float32)
        for index, name in enumerate("qkv")
    }
    for one in (feeds, warm_up_of(config, folder)):
        results = run_as_triton(config, folder, one)
        with load(REFERENCE) as session:
            wanted = session.run(one)
        assert results.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_array_equal(results[name], array)


def test_the_warm_up_is_the_worked_example(tmp_path: Path) -> None:
    feeds = warm_up_of(*written(REFERENCE, tmp_path / "repository"))
    assert feeds["v"].tolist() == [[[[2, 0], [0, 4], [2, 2]]]]


def test_a_cache_is_inputs_and_outputs(tmp_path: Path) -> None:
    package = write_decoder(tmp_path / "toy")
    config, folder = written(package, tmp_path / "repository")
    results = run_as_triton(config, folder, warm_up_of(config, folder))
    with load(package) as session:
        wanted = session.run(warm_up_of(config, folder))
    for name, array in wanted.items():
        np.testing.assert_array_equal(results[name], array)


def test_requests_are_joined_only_where_sequences_are_independent() -> None:
    variant = open_source(str(REFERENCE)).variant
    contract, certificate = variant.contract, variant.certificate
    assert certificate is not None
    assert joins_along_batch(contract, certificate)
    assert not joins_along_batch(contract, None)
    (known,) = (check for check in certificate.checks if check.name == "batch is independent")
    proof = replace(known, name="batch proof")
    for checks in ((replace(known, passed=None),), (known, replace(proof, passed=False)), ()):
        assert not joins_along_batch(contract, replace(certificate, checks=checks))
    assert joins_along_batch(contract, replace(certificate, checks=(known, proof)))
    first, *others = contract.inputs
    for dims in (
        ("heads", "batch", "tokens", "features"),
        ("batch", "batch*heads", "tokens", "features"),
        (1, "heads", "tokens", "features"),
    ):
        moved = replace(contract, inputs=(replace(first, dims=dims), *others))
        assert not joins_along_batch(moved, certificate)
    assert not joins_along_batch(replace(contract, bounds={"batch": (2, None)}), certificate)


def test_what_is_not_joined_has_its_batch_in_its_dims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("causal_attn.deploy.triton_config._INDEPENDENT", ("no such check",))
    config, folder = written(REFERENCE, tmp_path / "repository")
    # Triton completes a missing scheduler with one that joins, where this is above 1.
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert [len(one.dims) for one in config.input] == [4, 4, 4]
    run_as_triton(config, folder, warm_up_of(config, folder))


@pytest.mark.parametrize(
    ("provider", "kind", "accelerator"),
    [
        (Provider.CPU, "KIND_CPU", ""),
        (Provider.OPENVINO, "KIND_CPU", "openvino"),
        (Provider.CUDA, "KIND_GPU", ""),
        (Provider.TENSORRT, "KIND_GPU", "tensorrt"),
    ],
)
def test_instances_follow_from_the_provider(
    tmp_path: Path, provider: Provider, kind: str, accelerator: str
) -> None:
    source = replace(open_source(str(REFERENCE)), provider=provider)
    file = write_triton(source, tmp_path / "repository", batching=Batching(instances=3))
    config = text_format.Parse(file.read_text(), schema.ModelConfig())
    (group,) = config.instance_group
    assert (schema.ModelInstanceGroup.Kind.Name(group.kind), group.count) == (kind, 3)
    accelerators = config.optimization.execution_accelerators
    named = [*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator]
    assert "".join(one.name for one in named) == accelerator


def test_webgpu_is_refused() -> None:
    with pytest.raises(ProviderError, match="that servers have, got 'webgpu'"):
        open_source(str(REFERENCE), provider="webgpu")


def test_external_data_lies_beside_the_model(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model.onnx", weight=3.0, data="weights/w.bin")
    source = VariantSource(provider=Provider.CPU, model=model, contract=CONTRACT, certificate=None)
    package = write_package(tmp_path / "package", name="sum", variants=[source]).root
    with pytest.raises(CertificateError, match="must have a certificate"):
        open_source(str(package))
    config, folder = written(package, tmp_path / "repository", accept="unverified")
    assert (folder / "1" / "weights" / "w.bin").exists()
    assert config.max_batch_size == 0
    results = run_as_triton(config, folder, {"x": np.arange(4, dtype=np.float32)})
    assert results["y"].tolist() == [3, 4, 5, 6]


def test_a_lone_model_with_its_contract_inside(tmp_path: Path) -> None:
    lone = open_source(str(REFERENCE)).variant.model
    config, folder = written(f"lone={lone}", tmp_path / "repository")
    run_as_triton(config, folder, warm_up_of(config, folder))


def test_sizes_of_0_and_scalars(tmp_path: Path) -> None:
    source = open_source(str(REFERENCE))
    first, *others = source.variant.contract.inputs

    def with_dims(*dims: int) -> Any:
        contract = replace(source.variant.contract, inputs=(replace(first, dims=dims), *others))
        return replace(source, variant=replace(source.variant, contract=contract))

    with pytest.raises(PackageError, match="no dim of size 0"):
        write_triton(with_dims(0, 2), tmp_path / "none")
    # The contract is no longer that of the certificate, which is not what is tested here.
    file = write_triton(replace(with_dims(), certified=False), tmp_path / "scalar")
    config = text_format.Parse(file.read_text(), schema.ModelConfig())
    assert list(config.input[0].dims) == [1]
    assert config.input[0].HasField("reshape")


def test_a_session_option_that_triton_has_not(tmp_path: Path) -> None:
    source = open_source(str(REFERENCE))
    options = {"session.use_deterministic_compute": "1"}
    changed = replace(source, variant=replace(source.variant, session_options=options))
    with pytest.raises(PackageError, match=r"session\.use_deterministic_compute"):
        write_triton(changed, tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_a_file_that_changes_after_its_check_leaves_nothing(tmp_path: Path) -> None:
    source = open_source(str(REFERENCE))
    certificate = source.variant.certificate
    assert certificate is not None
    other = replace(certificate, digest="0" * 64)
    changed = replace(source, variant=replace(source.variant, certificate=other))
    with pytest.raises(CertificateError):
        write_triton(changed, tmp_path / "repository")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("batching", [{"max_batch": 0}, {"delay_seconds": 2}, {"seconds": 0}])
def test_numbers_out_of_range(batching: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"`{next(iter(batching))}` must be"):
        Batching(**batching)


def test_a_provider_that_the_package_is_not_for() -> None:
    with pytest.raises(ProviderError, match="`provider` must be one that the package was made"):
        open_source(str(REFERENCE), provider="tensorrt")


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    code = "from causal_attn.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "deploy", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("package", "flags", "message"),
    [
        ("{package}", ("--for", "kubernetes"), "`--for` must be one of ['triton'"),
        ("{tmp}/missing", ("--for", "triton"), "`PACKAGE` must be a package"),
        ("..={package}", ("--for", "triton"), "`PACKAGE` must have a name"),
        ("{package}", ("--for", "triton", "-p", "tpu"), "`--provider` must be one of"),
        ("{package}", ("--for", "triton", "--accept", "all"), "`--accept` must be certified"),
        ("{package}", ("--for", "triton", "--max-batch", "0"), "`--max-batch` must be"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, package: str, flags: tuple[str, ...], message: str
) -> None:
    given = package.format(package=REFERENCE, tmp=tmp_path)
    result = command(given, tmp_path / "out", *flags)
    assert result.returncode == 2
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert command(REFERENCE, tmp_path / "out", "--for", "triton").returncode == 0
    again = command(REFERENCE, tmp_path / "out", "--for", "triton")
    assert again.returncode == 2
    assert "`OUT` must be free or an empty folder" in again.stderr
