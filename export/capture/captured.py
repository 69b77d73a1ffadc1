"""A target as torch.export traced it: all that choosing, writing and checking a graph need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.export import ExportedProgram

from causal_attn.export.capture.sdpa import attention_calls
from causal_attn.export.capture.trace import capture, input_values
from causal_attn.export.target import Target
from causal_attn.export.torch_output import ExportLog

__all__ = ["Captured"]


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A target and its program, which no form that is written from it changes.

    Attributes:
        program: With causal attention as calls of the op.
        target: What was traced, with the bounds on its lengths that tracing found.
        dtype: That attention runs in.
        calls: How attention stands in the program: ``attend``, calls of the op, and ``kept``,
            reason to the number of calls that stay as they are written.
        inputs: The fake tensor of every input, by the name that `target` has for it.
        log: Gets whatever torch prints.
    """

    program: ExportedProgram
    target: Target
    dtype: torch.dtype
    calls: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    log: ExportLog

    @classmethod
    def of(cls, target: Target, dtype: torch.dtype, log: ExportLog) -> Self:
        """Trace `target`.

        Raises:
            CaptureError: It cannot be traced; see `capture`.
            InputError: An attention in it has arguments that ONNX reads differently.
        """
        program, target = capture(target, log)
        return cls(
            program=program,
            target=target,
            dtype=dtype,
            calls=attention_calls(program),
            inputs=input_values(program, target),
            log=log,
        )
