"""Services install this package without torch and onnx: the import graph has to allow it.

Each case runs in a fresh process in which importing a forbidden module fails.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

FRAMEWORKS = ("torch", "onnx", "onnxscript", "onnx_ir", "ml_dtypes", "matplotlib")

has_onnxruntime = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed"
)


def run_blocked(statement: str, blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    source = f"""
        import sys
        from importlib.abc import MetaPathFinder

        class Block(MetaPathFinder):
            def find_spec(self, fullname, path=None, target=None):
                if fullname.partition(".")[0] in {blocked!r}:
                    raise ModuleNotFoundError(f"blocked: {{fullname}}", name=fullname)

        sys.meta_path.insert(0, Block())
        {statement}
        """
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
        text=True,
        capture_output=True,
    )


@pytest.mark.parametrize(
    "module",
    [
        "causal_attn",
        "causal_attn.package.certificate",
        "causal_attn.package.contract",
        "causal_attn.doctor",
        "causal_attn.errors",
        "causal_attn.package",
        "causal_attn.machine.provider",
        "causal_attn.attention.spec",
        "causal_attn.machine.wheels",
    ],
)
def test_imports_without_any_framework(module: str) -> None:
    result = run_blocked(f"import {module}", (*FRAMEWORKS, "onnxruntime", "numpy"))
    assert result.returncode == 0, result.stderr


@has_onnxruntime
@pytest.mark.parametrize(
    "statement",
    [
        "import causal_attn.runtime",
        "from causal_attn.runtime import load, available_providers; available_providers()",
        "from causal_attn.doctor import diagnose; diagnose()",
        "from causal_attn import models; models.path('causal_attention')",
        "from causal_attn.verify.checks.all_checks import run_checks",
    ],
)
def test_the_runtime_needs_numpy_and_onnx_runtime_only(statement: str) -> None:
    result = run_blocked(statement, (*FRAMEWORKS, "typer", "rich"))
    assert result.returncode == 0, result.stderr
    assert (result.stdout, result.stderr) == ("", "")


def test_the_root_imports_no_engine() -> None:
    result = run_blocked(
        "import causal_attn; assert 'onnxruntime' not in sys.modules, 'imported'", ()
    )
    assert result.returncode == 0, result.stderr


def test_the_block_blocks() -> None:
    result = run_blocked("import numpy", ("numpy",))
    assert "blocked: numpy" in result.stderr


def test_the_reference_is_lazy_but_reachable() -> None:
    statement = "from causal_attn import causal_attention"
    result = run_blocked(statement, FRAMEWORKS)
    assert "MissingDependencyError" in result.stderr
    assert "pip install 'causal-attn[export]'" in result.stderr


def test_a_runtime_without_onnx_runtime_says_how_to_get_it() -> None:
    result = run_blocked("import causal_attn.runtime", ("onnxruntime",))
    assert "MissingDependencyError: `causal_attn.runtime` needs ONNX Runtime" in result.stderr
    assert "pip install 'causal-attn[cpu]'" in result.stderr


@has_onnxruntime
@pytest.mark.parametrize("module", ["causal_attn.verify", "causal_attn.cli"])
def test_never_imports_torch(module: str) -> None:
    result = run_blocked(f"import {module}", ("torch", "onnxscript"))
    assert result.returncode == 0, result.stderr
