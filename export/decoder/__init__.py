"""Whole language models of `transformers`, with their caches, as one graph each.

The model's own code is traced. What changes is what the library lets anyone change: the attention
function and the mask function by their registries, and the cache that is handed in.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["is_language_model"]


def is_language_model(target: Any) -> TypeGuard[PreTrainedModel]:
    """Whether `target` is a model of `transformers`; the library is not imported to find out."""
    library = sys.modules.get("transformers")
    return library is not None and isinstance(target, library.PreTrainedModel)
