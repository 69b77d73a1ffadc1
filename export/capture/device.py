"""Where a target must be while it is exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram

from causal_attn.errors import InputError

__all__ = ["require_cpu"]


def require_cpu(
    target: nn.Module | ExportedProgram | Callable[..., Any],
    example_inputs: Sequence[Any] | Mapping[str, Any] | None,
) -> None:
    """Refuse tensors on another device before anything runs.

    The checks run the target on the CPU, in float64 too, which some devices do not have.

    Raises:
        InputError: Naming the first example, parameter or buffer that is elsewhere.
    """
    held: chain[tuple[Any, Tensor]] = chain()
    if isinstance(target, nn.Module | ExportedProgram):
        held = chain(target.named_parameters(), target.named_buffers())
    given = example_inputs or ()
    examples = given.items() if isinstance(given, Mapping) else enumerate(given)
    for where, tensors, remedy in (
        ("example_inputs", examples, "Move it with .cpu()"),
        ("target", held, "Export copy.deepcopy(target).cpu()"),
    ):
        for name, tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.device.type != "cpu":
                raise InputError(
                    f"`{where}` must be on the CPU while it is exported, where the checks run it, "
                    f"got {name!r} on {tensor.device}. {remedy}: the package runs on any provider."
                )
