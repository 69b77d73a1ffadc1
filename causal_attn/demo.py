"""`causal-attn demo`: the whole way once, from the torch reference to a running package."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.atomic_file import refusals_of_the_disk
from causal_attn.attention.example import worked_example
from causal_attn.package.certificate import Certificate

__all__ = ["Demo", "run_demo"]


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What the demo made.

    Attributes:
        package: The folder of the package.
        picture: The PNG with weights and visibility.
        output: ``[3, 2]``.
        weights: ``[3, 3]``.
        certificate: Of the CPU variant.
        export_seconds: Export and all checks.
    """

    package: Path
    picture: Path
    output: NDArray[np.float32]
    weights: NDArray[np.float32]
    certificate: Certificate
    export_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "package": str(self.package),
            "picture": str(self.picture),
            "output": self.output.tolist(),
            "weights": self.weights.tolist(),
            "verdict": str(self.certificate.verdict),
            "passed": self.certificate.passed,
            "export_seconds": round(self.export_seconds, 3),
        }


def run_demo(out: Path, on_step: Callable[[str], None]) -> Demo:
    """Export the reference to `out`, run the worked example, draw its weights.

    Raises:
        CausalAttnError: As `causal_attn.export.export`.
        UsageError: `out` cannot be written.
    """
    on_step("import torch")
    from causal_attn import causal_attention
    from causal_attn.export import export
    from causal_attn.picture import draw_weights
    from causal_attn.runtime import load

    with refusals_of_the_disk(out, "out"):
        out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    package = export(causal_attention, out / "causal_attention", on_step=on_step)
    seconds = time.perf_counter() - start
    on_step("run on ONNX Runtime")
    with load(package.root) as session:
        results = session.run(worked_example())
        assert session.certificate is not None  # load accepts no other
        certificate = session.certificate
    on_step("draw the weights")
    output, weights = results["output"][0, 0], results["weights"][0, 0]
    draw_weights(weights, out / "weights.png")
    return Demo(
        package=package.root,
        picture=out / "weights.png",
        output=output,
        weights=weights,
        certificate=certificate,
        export_seconds=seconds,
    )
