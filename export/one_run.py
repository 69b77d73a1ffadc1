"""A target run in eval mode, and left as it was."""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
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
    attributes = [(child, dict(vars(child))) for child in module.modules()]
    # Buffers, hooks and the like are containers among the attributes: they stay the same ones.
    filled = [
        (held, copy.copy(held))
        for _, named in attributes
        for held in named.values()
        if type(held) in (dict, OrderedDict, list, set)
    ]
    try:
        yield
    finally:
        for child, named in attributes:
            vars(child).clear()
            vars(child).update(named)
        for held, before in filled:
            held.clear()
            if isinstance(held, list):
                held.extend(before)
            else:
                held.update(before)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
