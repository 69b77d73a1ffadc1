"""The command line: results, exit codes, JSON alone on stdout, one sentence for a mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from causal_attn import models
from causal_attn.attention.example import worked_example
from causal_attn.cli import main
from causal_attn.errors import MissingDependencyError

PACKAGE = str(models.path("causal_attention"))

MODULE = """
import torch
from torch import nn

class Sums(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1)

def future(x):
    return x.flip(1)

def raises(x):
    raise ValueError("\x1b[31mfirst\x1b[0m\\nsecond\\n\\nNext steps: do\\nsomething else")

broken = 3
"""

ONE_X = ("-o", "{tmp}/p", "--example", "{tmp}/x.npy")


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        code = caught.value.code
        return Result(code if isinstance(code, int) else 0, out, err)

    return run


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / "inputs.npz"
    np.savez(path, **worked_example())  # type: ignore[arg-type]
    return path


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((2, 9, 4)).astype(np.float32))
    return path


def test_demo(cli: Any, tmp_path: Path) -> None:
    result = cli("demo", "--out", tmp_path / "demo", "--json")
    assert result.code == 0
    assert result.json["verdict"] == "causal"
    np.testing.assert_allclose(result.json["output"][1], [0.6605, 2.6790], atol=1e-4)
    assert (tmp_path / "demo" / "weights.png").read_bytes()[:4] == b"\x89PNG"
    shown = cli("inspect", tmp_path / "demo" / "causal_attention")
    assert "decomposed" in shown.out


def test_verify(cli: Any) -> None:
    result = cli("verify", PACKAGE, "--json", "--provider", "cpu")
    assert result.code == 0
    assert result.json["variants"][0]["certificate"]["verdict"] == "causal"
    shown = cli("verify", PACKAGE)
    assert shown.code == 0
    assert "verdict: causal" in shown.out


def test_export_and_run_a_module(cli: Any, tmp_path: Path, module: Path) -> None:
    result = cli(
        "export", f"{module}:Sums", "-o", tmp_path / "sums", "--example", tmp_path / "x.npy",
        "--dims", "x=batch,tokens,_", "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert result.json["name"] == "Sums"
    assert result.json["variants"][0]["passed"] is True
    ran = cli("run", tmp_path / "sums", tmp_path / "x.npy", "-o", tmp_path / "out.npz", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["outputs"]["output"]["shape"] == [2, 9, 4]
    with np.load(tmp_path / "out.npz") as written:
        want = np.cumsum(np.load(tmp_path / "x.npy"), axis=1)
        np.testing.assert_allclose(written["output"], want, rtol=1e-6)


def test_export_the_reference_with_options(cli: Any, tmp_path: Path) -> None:
    result = cli(
        "export", "causal_attention", "-o", tmp_path / "p", "--heads", 4, "--kv-heads", 2,
        "--window", 5, "--softcap", 20, "--cache", "dynamic", "--no-weights", "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    contract = result.json["variants"][0]["contract"]
    assert contract["spec"]["window"] == 5
    assert [tensor["name"] for tensor in contract["outputs"]] == [
        "output", "present_key", "present_value",
    ]  # fmt: skip


def test_a_failed_check_is_exit_1(cli: Any, tmp_path: Path, module: Path) -> None:
    result = cli(
        "export", f"{module}:future", "-o", tmp_path / "p", "--example", tmp_path / "x.npy",
        "--dims", "x=batch,tokens,_",
    )  # fmt: skip
    assert result.code == 1
    assert "it sees the future" in result.err
    assert not (tmp_path / "p").exists()


def test_run_takes_npy_files_by_name(cli: Any, tmp_path: Path) -> None:
    for name, array in worked_example().items():
        np.save(tmp_path / f"{name}.npy", array)
    files = [f"q={tmp_path / 'q.npy'}", tmp_path / "k.npy", tmp_path / "v.npy"]
    result = cli("run", PACKAGE, *files, "-o", tmp_path / "out.npz")
    assert result.code == 0, result.err
    assert "weights" in result.out


def test_doctor(cli: Any) -> None:
    result = cli("doctor", "--json")
    assert result.code == 0
    assert "cpu" in result.json["providers"]
    assert "onnxruntime" in cli("doctor").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify", "{tmp}/none"], "No such file"),
        (["inspect", "{tmp}"], "manifest.json"),
        (["inspect", "{tmp}/mine.py"], "mine.py"),
        (["run", PACKAGE, "{tmp}/none.npz", "-o", "{tmp}/o.npz"], "none.npz"),
        (["run", PACKAGE, "{tmp}/mine.py", "-o", "{tmp}/o.npz"], "must be .npz or .npy"),
        (["run", PACKAGE, "{tmp}/x.npy", "-o", "{tmp}/o.npz"], "`q`"),
        (["run", PACKAGE, "{tmp}/bad.npz", "-o", "{tmp}/o.npz"], "plain numbers"),
        (["run", PACKAGE, "{tmp}/pickled.npy", "-o", "{tmp}/o.npz"], "plain numbers"),
        (["run", PACKAGE, "{tmp}/inputs.npz", "-o", "{tmp}/o.txt"], "must end in .npz"),
        (["run", PACKAGE, "{tmp}/inputs.npz", "-o", "{tmp}/no/o.npz"], "can be written"),
        (["run", PACKAGE, "{tmp}/inputs.npz", "-o", "{tmp}/o.npz", "-p", "gpu"], "`--provider`"),
        (
            ["run", PACKAGE, "{tmp}/inputs.npz", "{tmp}/inputs.npz", "-o", "{tmp}/o.npz"],
            "'q' twice",
        ),
        (["export", "attention", "-o", "{tmp}/p"], "`TARGET` must be causal_attention"),
        (["export", "{tmp}/none.py:f", "-o", "{tmp}/p"], "must name a file that exists"),
        (["export", "{tmp}/mine.py:nothing", "-o", "{tmp}/p"], "'nothing'"),
        (["export", "{tmp}/mine.py:broken", "-o", "{tmp}/p"], "`TARGET` must be"),
        (["export", "{tmp}/raises.py:f", "-o", "{tmp}/p"], "ZeroDivisionError"),
        (["export", "no.such.module:f", "-o", "{tmp}/p"], "ModuleNotFoundError"),
        (["export", "{tmp}/mine.py:Sums", "-o", "{tmp}/p"], "Give --example NAME=FILE.npy"),
        (["export", "{tmp}/mine.py:Sums", "-o", "{tmp}/p", "--window", "3"], "`--window`"),
        (["export", "causal_attention", "-o", "{tmp}/p", "--window", "0"], "`--window` must be"),
        (["export", "causal_attention", "-o", "{tmp}/p", "--cache", "big"], "`--cache` must be"),
        (["export", "causal_attention", "-o", "{tmp}/p", "--kv-heads", "2"], "`--heads`"),
        (["export", "causal_attention", "-o", "{tmp}/p", "-p", "gpu"], "`--provider` must be"),
        (["export", "causal_attention", "-o", "{tmp}/p", "-p", "cuda"], "--check-on cpu"),
        (["export", "causal_attention", "-o", "{tmp}/p", "--lengths", "1,0"], "`--lengths`"),
        (["export", "{tmp}/mine.py:future", *ONE_X, "--example", "{tmp}/no.npy"], "`--example`"),
        (["export", "{tmp}/mine.py:future", *ONE_X], "such as --dims x=batch,tokens."),
        (["export", "{tmp}/mine.py:future", *ONE_X, "--dims", "x=tokens"], "`--dims x` must"),
        (
            ["export", "{tmp}/mine.py:raises", *ONE_X, "--dims", "x=batch,tokens,_"],
            "got ValueError: first second",
        ),
        (["verify", PACKAGE, "--lengths", "many"], "`--lengths` must be lengths"),
        (["verify", PACKAGE, "-p", "gpu"], "`--provider` must be"),
        (["run", "{tmp}/none", "{tmp}/inputs.npz", "-o", "{tmp}/o.npz"], "No such file"),
        (["export", "causal_attention", "-o", "{tmp}/p", "--dims", "x"], "`--dims` must look"),
        (["export", "causal_attention", "-o", "{tmp}/x.npy"], "link or a file"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(
    cli: Any, tmp_path: Path, module: Path, arrays: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    np.save(tmp_path / "pickled.npy", np.array([object()]), allow_pickle=True)
    before = sorted(entry.name for entry in tmp_path.iterdir())
    result = cli(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert result.code == 2, result.err
    assert words in result.err
    assert "Traceback" not in result.err
    assert "\x1b" not in result.err
    assert "Next steps" not in result.err
    assert result.out == ""
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "command", ["demo", "export", "verify", "inspect", "run", "bench", "doctor"]
)
def test_help_has_an_example(cli: Any, command: str) -> None:
    result = cli(command, "--help")
    assert result.code == 0
    assert f"Example: causal-attn {command}" in re.sub(r"\s+", " ", result.out)


def test_wrong_option_is_exit_2(cli: Any) -> None:
    assert cli("verify").code == 2
    assert cli("nonsense").code == 2
    assert cli("export", "causal_attention", "-o", "p", "--opset", "many").code == 2


def run_without(
    blocked: tuple[str, ...], arguments: list[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """The command line in a fresh process where the modules in `blocked` cannot be imported."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        f"from causal_attn.cli import main; main({arguments!r})"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment
    )


@pytest.mark.parametrize(
    ("blocked", "arguments", "extra"),
    [
        ("torch", ["export", "causal_attention", "-o", "p"], "causal-attn[export]"),
        ("onnx", ["verify", PACKAGE], "causal-attn[verify]"),
    ],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, blocked: str, arguments: list[str], extra: str
) -> None:
    result = run_without((blocked,), arguments, tmp_path)
    assert result.returncode == 2
    assert extra in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_dependency_speaks_for_itself(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'causal-attn[cuda]'"

    def clash() -> None:
        raise MissingDependencyError(f"Two wheels clash: {remedy}", name="onnxruntime")

    monkeypatch.setattr("causal_attn.doctor.diagnose", clash)
    result = cli("doctor")
    assert result.code == 2
    assert result.err == f"error: Two wheels clash: {remedy}\n"


def test_an_interruption_is_one_line(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("causal_attn.doctor.diagnose", interrupted)
    result = cli("doctor")
    assert (result.code, result.err) == (130, "error: interrupted\n")


def test_lengths_are_those_checked(cli: Any) -> None:
    result = cli("verify", PACKAGE, "--json", "--lengths", "3,7")
    assert result.code == 0, result.err
    checks = result.json["variants"][0]["certificate"]["checks"]
    (parity,) = [check for check in checks if check["name"] == "parity"]
    assert "2 lengths from 3 to 7 tokens" in parity["detail"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "none.py:f", "-o", "p"],
        ["export", "causal_attention", "-o", "p", "--example", "none.npy"],
        ["export", "causal_attention", "-o", "p", "--heads", "0"],
        ["export", "causal_attention", "-o", "p", "--lengths", "x"],
        ["verify", "none.onnx"],
    ],
)
def test_a_mistype_is_told_before_frameworks_are_imported(
    tmp_path: Path, arguments: list[str]
) -> None:
    result = run_without(("torch", "onnx"), arguments, tmp_path)
    assert result.returncode == 2
    assert "needs" not in result.stderr
    assert "none" in result.stderr or "`--" in result.stderr


def test_help_imports_neither_numpy_nor_torch(tmp_path: Path) -> None:
    result = run_without(("numpy", "torch", "onnx", "onnxruntime"), ["export", "--help"], tmp_path)
    assert result.returncode == 0, result.stderr


def test_no_log_is_left_that_no_message_names(
    cli: Any, tmp_path: Path, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(logs))
    module.write_text(
        "from torch.special import bessel_j0\n"
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def attends(x):\n"
        "    q = x[:, None]\n"
        "    return bessel_j0(sdpa(q, q, q, is_causal=True))\n"
    )
    options = ["--example", tmp_path / "x.npy", "--dims", "x=batch,tokens,_"]
    result = cli("export", f"{module}:attends", "-o", tmp_path / "p", *options)
    assert result.code == 2
    left = list(logs.glob("*.log"))
    assert len(left) == 1
    assert str(left[0]) in result.err
