"""Packages of several variants and components: each gets a report of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from causal_attn import models
from causal_attn.cli import main
from causal_attn.errors import ProviderError, UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package import VariantSource, read_package, write_package
from causal_attn.package.certificate import Verdict
from causal_attn.runtime import load
from causal_attn.verify import verification, verify, write_certificates

LENGTHS = (1, 2, 9)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package that ships: for cpu, cuda and openvino."""
    return Path(shutil.copytree(models.path("causal_attention"), tmp_path / "p"))


@pytest.fixture
def two_components(tmp_path: Path) -> Path:
    """Two components, each with a variant called cpu and no certificate."""
    (variant,) = (v for v in read_package(models.path("causal_attention")).variants
                  if v.provider is Provider.CPU)  # fmt: skip
    path = tmp_path / "two"
    write_package(
        path,
        name="two",
        variants=[
            VariantSource(
                provider=Provider.CPU,
                model=variant.model,
                contract=variant.contract,
                certificate=None,
                component=component,
            )
            for component in ("first", "second")
        ],
    )
    return path


def test_components_with_variants_of_one_name_are_certified(two_components: Path) -> None:
    report = verify(two_components, lengths=LENGTHS)
    assert [one.key for one in report.variants] == [("first", "cpu"), ("second", "cpu")]
    assert write_certificates(report)
    for component in ("first", "second"):
        load(two_components, "cpu", component=component).close()


def test_a_provider_that_fails_leaves_the_other_reports(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wheel with CUDA in it on a machine without a driver: listed, and it does not start."""
    listed = (Provider.CPU, Provider.CUDA)
    monkeypatch.setattr(verification, "available_providers", lambda: listed)
    report = verify(package, lengths=LENGTHS)
    cpu, cuda = report.variants
    assert (cpu.provider, cpu.certificate.passed) == (Provider.CPU, True)
    assert cuda.provider is Provider.CUDA
    assert cuda.certificate.verdict is Verdict.UNDECIDED
    (check,) = cuda.certificate.checks
    assert (check.name, check.passed) == ("runs", None)
    assert "cuda" in check.detail
    assert report.exit_code == 3
    assert "causal_attention/openvino" in report.skipped
    with pytest.raises(ProviderError):
        verify(package, provider="cuda", lengths=LENGTHS)


@pytest.mark.parametrize("lengths", [(), (0,), (3, -1), (2.5,)])
def test_lengths_that_are_none(package: Path, lengths: Any) -> None:
    with pytest.raises(UsageError, match="`lengths` must be numbers of tokens >= 1"):
        verify(package, lengths=lengths)


def test_a_fault_of_ours_is_not_a_failed_check(
    package: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 says that a check failed, which a traceback does not."""

    def fault(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(verification, "_verify", fault)
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(package)])
    assert caught.value.code == 3
    err = capfd.readouterr().err
    assert "ZeroDivisionError: a fault" in err
    assert "nothing was decided" in err
