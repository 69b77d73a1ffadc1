"""Certificates written by `verify --certify`: what passes can be loaded, what does not cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from causal_attn import models
from causal_attn.cli import main
from causal_attn.errors import CertificateError, PackageError
from causal_attn.package.certificate import Verdict
from causal_attn.package.digest import model_digest
from causal_attn.runtime import load
from causal_attn.verify import verify, write_certificates

LENGTHS = (1, 2, 9)


def sums(path: Path, reverse: int = 0) -> Path:
    """A running sum over the tokens: causal forwards, not causal in reverse."""
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        sums (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y)
        <int64 one = {{1}}> {{ y = CumSum <reverse = {reverse}> (x, one) }}
        """
    )
    onnx.save(model, path)
    return path


def test_a_model_of_others_can_be_loaded_once_it_is_certified(tmp_path: Path) -> None:
    path = sums(tmp_path / "sums.onnx")
    before = model_digest(path)
    with pytest.raises(PackageError, match=r"must carry 'causal_attn.contract'"):
        load(path)
    report = verify(path, lengths=LENGTHS)
    assert report.exit_code == 0
    assert write_certificates(report)
    assert model_digest(path) == before, "no graph is touched"
    with load(path) as session:
        x = np.ones((2, 5, 4), np.float32)
        np.testing.assert_array_equal(session(x)[0][0, :, 0], [1, 2, 3, 4, 5])
        assert session.certificate is not None
        assert session.certificate.verdict is Verdict.CAUSAL


def test_a_model_that_fails_loses_the_certificate_it_had(tmp_path: Path) -> None:
    path = sums(tmp_path / "sums.onnx")
    write_certificates(verify(path, lengths=LENGTHS))
    sums(path, reverse=1)
    report = verify(path, lengths=LENGTHS)
    assert report.exit_code == 1
    assert not write_certificates(report)
    with pytest.raises(CertificateError, match="must have a certificate"):
        load(path)


def test_a_package_gets_new_certificates(tmp_path: Path) -> None:
    path = Path(shutil.copytree(models.path("causal_attention"), tmp_path / "p"))
    report = verify(path, lengths=LENGTHS)
    assert write_certificates(report)
    certificate = json.loads((path / "causal_attention/cpu/certificate.json").read_text())
    (parity,) = [check for check in certificate["checks"] if check["name"] == "parity"]
    assert parity["detail"].startswith("3 lengths")
    untouched = (path / "causal_attention/cuda/certificate.json").read_bytes()
    shipped = models.path("causal_attention") / "causal_attention/cuda/certificate.json"
    assert untouched == shipped.read_bytes()
    load(path).close()


def test_on_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = sums(tmp_path / "sums.onnx")
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(path), "--certify", "--json"])
    assert caught.value.code == 0
    assert json.loads(capfd.readouterr().out)["certified"] is True
    load(path).close()


def test_the_leak_and_its_path_are_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = sums(tmp_path / "sums.onnx", reverse=1)
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(path)])
    assert caught.value.code == 1
    shown = capfd.readouterr().out
    assert "position 1 reaches position 0" in shown
    assert "CumSum" in shown
    assert "verdict: not causal" in shown


def test_where_the_tokens_lie_must_be_said_if_names_do_not_tell(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.onnx"
    onnx.save(
        onnx.parser.parse_model(
            """
            <ir_version: 8, opset_import: ["" : 18]>
            odd (float[a, b, 4] stuff) => (float[a, b, 4] more)
            <int64 one = {1}> { more = CumSum (stuff, one) }
            """
        ),
        path,
    )
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(path)])
    assert caught.value.code == 2
    assert "--tokens-axis stuff=1" in capfd.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(path), "--tokens-axis", "stuff=1", "--output", "more"])
    assert caught.value.code == 0, capfd.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(path), "--tokens-axis", "stuff"])
    assert caught.value.code == 2
