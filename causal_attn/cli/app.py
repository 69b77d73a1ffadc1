"""The table of commands; their errors become one sentence on stderr and an exit code."""

from __future__ import annotations

import contextlib
import errno
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from causal_attn.cli.bench import bench
from causal_attn.cli.console import fail
from causal_attn.cli.demo import demo
from causal_attn.cli.deploy import deploy
from causal_attn.cli.doctor import doctor
from causal_attn.cli.export import export
from causal_attn.cli.flags import in_flags
from causal_attn.cli.generate import generate
from causal_attn.cli.inspect import inspect
from causal_attn.cli.option_group import one_option_each
from causal_attn.cli.quantize import quantize
from causal_attn.cli.run import run
from causal_attn.cli.serve import serve
from causal_attn.cli.sign import sign
from causal_attn.cli.verify import verify
from causal_attn.errors import CausalAttnError, MissingDependencyError

__all__ = ["app", "main"]

_EXTRA = {
    "torch": "export",
    "onnxscript": "export",
    "onnx": "verify",
    "onnx_ir": "verify",
    "jinja2": "verify",
    "matplotlib": "verify",
    "transformers": "transformers",
    "onnxruntime": "cpu",
    "cryptography": "sign",
    "tokenizers": "text",
    "kserve": "serve",
    "uvicorn": "serve",
    "grpc": "serve",
    "tritonclient": "deploy",
}
"""Module to the extra that brings it."""

UNDECIDED = 3

INTERRUPTED = 130
"""What a shell reports for a process that SIGINT ended: 128 + 2."""


class _Commands(TyperGroup):
    """Turns the errors of a command into one sentence in the command's own words."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _module_named():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)
        except CausalAttnError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            fail(in_flags(str(error), command.params if command else ()), error.exit_code)
        except OSError as error:
            # A reader that went away, as in `causal-attn … | head`, is typer's own case.
            if error.errno == errno.EPIPE:
                raise
            fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 2)


@contextlib.contextmanager
def _module_named() -> Iterator[None]:
    """Name the extra of a module that is missing, unless the error says what to do itself."""
    try:
        yield
    except MissingDependencyError:
        raise
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        if top not in _EXTRA:
            raise
        raise MissingDependencyError(
            f"This command needs {top}: pip install 'causal-attn[{_EXTRA[top]}]'"
        ) from error


app = typer.Typer(
    name="causal-attn",
    cls=_Commands,
    help="Compile causal attention from PyTorch to ONNX, check it, and run it without PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
for _command, _example in (
    (demo, "--out demo"),
    (export, "causal_attention -o attention --heads 8 --window 64"),
    (quantize, "model -o model-4bit --bits 4"),
    (verify, "model.onnx --report report --json"),
    (inspect, "demo/causal_attention"),
    (sign, "demo/causal_attention --key key.pem"),
    (run, "demo/causal_attention inputs.npz -o outputs.npz"),
    (generate, "model -p 'The capital of France is'"),
    (serve, "demo/causal_attention llama=model --port 8080"),
    (deploy, "attention=demo/causal_attention repository --for triton"),
    (bench, "--tokens 16,128,1024 --form attention --json"),
    (doctor, ""),
):
    _line = f"Example: causal-attn {_command.__name__} {_example}".rstrip()
    app.command(_command.__name__, epilog=_line)(one_option_each(_command))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; a user's mistake is one sentence on stderr."""
    try:
        app(args=None if arguments is None else list(arguments))
    # A fault of ours. Python would exit with 1, which says that a check failed; nothing did.
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        fail("this is a fault of causal-attn itself: nothing was decided", UNDECIDED)
    sys.exit(0)
