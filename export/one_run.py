"""A target run in eval mode, and left as it was."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from causal_attn.errors import InputError
from causal_attn.export.eager import as_written

__all__ = ["evaluating", "run_once", "unchanged"]


def run_once(module: nn.Module, examples: Mapping[str, Tensor]) -> Any:
    """What `module` returns for `examples`, in eval mode; it is as it was after it.

    Raises:
        InputError: It raises.
    """
    try:
        with evaluating(module), unchanged(module), torch.no_grad(), as_written():
            return module(**examples)
    # The caller's code: whatever it raises is an answer about the examples.
    except Exception as error:
        raise InputError(
            f"`example_inputs` must run through the target, got {type(error).__name__}: {error}"
        ) from error


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """`module` in eval mode inside the block; every submodule's own mode comes back after it."""
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, training in modes:
            child.training = training


@contextlib.contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """What the block makes `module` write to its buffers and attributes is taken back after it.

    A mask that is kept from call to call would otherwise be a constant of one length to the trace.
    """
    values = [(buffer, buffer.clone()) for buffer in module.buffers()]
    # Buffers and the like are dicts among the attributes; what they hold is copied above.
    attributes = [
        (child, {name: _shelf(held) for name, held in vars(child).items()})
        for child in module.modules()
    ]
    try:
        yield
    finally:
        for child, held in attributes:
            vars(child).clear()
            vars(child).update(held)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)


def _shelf(held: Any) -> Any:
    """`held`, or a copy of it if it is a container, whose entries are not copied."""
    return copy.copy(held) if type(held) in (dict, list, set) else held
