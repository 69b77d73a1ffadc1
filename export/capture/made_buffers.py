"""Buffers that ``forward`` makes: a bias or a mask that is there from the first call on.

``register_buffer("bias", None)`` in ``__init__`` and the tensor in ``forward`` is a write to a
buffer, which torch.export takes for a state that goes out. While tracing it is an attribute, made
anew for every length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch import Tensor, nn

from causal_attn.export.one_run import unchanged

__all__ = ["made_buffers"]


@contextmanager
def made_buffers(module: nn.Module) -> Iterator[None]:
    """Inside this block buffers that `module` makes are attributes; after it all is as it was."""

    def register(
        owner: nn.Module, name: str, tensor: Tensor | None, persistent: bool = True
    ) -> None:
        _forget(owner, name)
        setattr(owner, name, tensor)

    with unchanged(module), patch.object(nn.Module, "register_buffer", register):
        for child in module.modules():
            for name in [name for name, buffer in child._buffers.items() if buffer is None]:
                _forget(child, name)
                setattr(child, name, None)
        yield


def _forget(owner: nn.Module, name: str) -> None:
    owner._buffers.pop(name, None)
    owner._non_persistent_buffers_set.discard(name)
