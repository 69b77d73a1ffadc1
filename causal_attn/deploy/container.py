"""The recipe of an image that runs `causal-attn serve`: no torch, no root, versions pinned."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from causal_attn.machine.provider import Provider

__all__ = ["constraints_text", "dockerfile_text"]

_PYTHON = "3.11-slim"

_PINNED = (
    "causal-attn", "numpy", "typer", "rich", "kserve", "fastapi", "uvicorn", "grpcio", "protobuf",
    "orjson", "prometheus-client", "tokenizers", "jinja2",
)  # fmt: skip
"""What answers requests; the ONNX Runtime is the one that the certificate was made with."""

_DOCKERFILE = """\
# The image of the runtime. Build it beside a wheel of causal-attn:
#   python -m pip wheel --no-deps --wheel-dir wheels .   (in a checkout; move wheels/ here)
#   docker build -t IMAGE .
FROM python:{python}

COPY constraints.txt /tmp/constraints.txt
COPY wheels/ /tmp/wheels/
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt --find-links /tmp/wheels \\
    'causal-attn[{extra},serve,text]' \\
    && useradd --uid 10001 --no-create-home server

USER 10001
EXPOSE 8080 8081
HEALTHCHECK --interval=5s --start-period=60s \\
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('{health}')"]
# SIGTERM reaches the server itself, which answers what it took before it ends.
ENTRYPOINT ["causal-attn"]
CMD ["serve", "model=/mnt/models", "--host=0.0.0.0"]
"""


def dockerfile_text(provider: Provider) -> str:
    """The Dockerfile for packages that run on `provider`."""
    gpu = provider in (Provider.CUDA, Provider.TENSORRT)
    return _DOCKERFILE.format(
        python=_PYTHON,
        extra="cuda" if gpu else "cpu",
        health="http://127.0.0.1:8080/v2/health/ready",
    )


def constraints_text() -> str:
    """A line for each distribution of `_PINNED` that this environment has, at its version."""
    lines = []
    for name in (*_PINNED, "onnxruntime"):
        try:
            # A local part (1.0+cpu) is no version that an index has.
            lines.append(f"{name}=={version(name).partition('+')[0]}\n")
        except PackageNotFoundError:
            continue
    return "".join(lines)
