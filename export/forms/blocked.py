"""Form ``blocked``: query blocks, each over the part of the past that it can see.

Half of a causal ``[tokens, tokens]`` matrix is masked, and all of it is memory. Here an ONNX
``Scan`` walks over blocks of queries; a block meets only the keys from the first that its first
query sees to the last that its last query sees, so that what is masked is one triangle a block
(two with a window), and nothing of ``[tokens, tokens]`` exists. The op inside a block is ONNX
Runtime's ``GroupQueryAttention`` where it fits, see `causal_attn.export.forms.blocked_gqa`, and
``Attention`` elsewhere, see `causal_attn.export.forms.blocked_attention`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from causal_attn.attention.call import AttendCall, AttendResult
from causal_attn.export.forms.attention import NARROW_ATTENTION
from causal_attn.export.forms.blocked_attention import LEAST_HEADS, UNLIMITED, blocks_of_attention
from causal_attn.export.forms.blocked_gqa import blocks_of_gqa
from causal_attn.export.forms.demand import Need
from causal_attn.export.forms.form import LONGEST_WINDOW, Form
from causal_attn.machine.provider import Provider

__all__ = ["BLOCKED", "blocked"]


def _lower(call: AttendCall, *, least_heads: int) -> AttendResult:
    query, key, value = call.query, call.key, call.value
    if call.past is not None:
        past_key, past_value = call.past
        key = torch.cat([past_key, key], dim=-2)
        value = torch.cat([past_value, value], dim=-2)
    step = _heads_of_a_step(query, key, value, least_heads)
    name, attributes = (
        _blocks_of_attention(call, least_heads) if step is None else _blocks_of_gqa(call, step)
    )
    (output,) = torch.onnx.ops.symbolic_multi_out(
        f"causal_attn::{name}",
        [query, key, value],
        attributes,
        dtypes=(query.dtype,),
        shapes=((*query.shape[:3], value.shape[3]),),
        version=1,
    )
    return AttendResult(
        output=output,
        present_key=None if call.past is None else key,
        present_value=None if call.past is None else value,
    )


def _blocks_of_attention(call: AttendCall, least_heads: int) -> tuple[str, dict[str, Any]]:
    """Name and attributes of the function whose blocks are ``Attention``."""
    attributes: dict[str, Any] = {
        "window": call.window or UNLIMITED,
        "least_heads": least_heads,
        "softcap": float(call.softcap or 0),
    }
    if call.scale is None:
        return "Blocks", attributes
    return "ScaledBlocks", {**attributes, "scale": float(call.scale)}


def _blocks_of_gqa(call: AttendCall, step: int) -> tuple[str, dict[str, Any]]:
    """The same where they are ``GroupQueryAttention``, `step` key/value heads at a time."""
    heads, kv_heads = call.query.shape[1], call.key.shape[1]
    # 0 is the op's own word for the default scale, and for no softcap.
    attributes: dict[str, Any] = {
        "num_heads": heads,
        "kv_num_heads": kv_heads,
        "scale": float(call.scale or 0),
        "softcap": float(call.softcap or 0),
    }
    stepped, window = "", ""
    if step < kv_heads:
        stepped = "Stepped"
        attributes["step_num_heads"] = step * heads // kv_heads
        attributes["step_kv_num_heads"] = step
    if call.window is not None:
        window = "Window"
        attributes["local_window_size"] = min(call.window, LONGEST_WINDOW)
    return f"Grouped{stepped}{window}Blocks", attributes


def _heads_of_a_step(query: Tensor, key: Tensor, value: Tensor, least_heads: int) -> int | None:
    """Key/value heads of a step of `GroupQueryAttention`; ``None``: the op does not fit.

    As few as have `least_heads` query heads, since the scores of a step should stay in cache.
    """
    heads, kv_heads, features = query.shape[1], key.shape[1], query.shape[3]
    known = isinstance(heads, int) and isinstance(kv_heads, int) and isinstance(features, int)
    if not known or features % 8 or value.shape[3] != features:
        return None
    steps = [count for count in range(1, kv_heads + 1) if kv_heads % count == 0]
    enough = [count for count in steps if count * heads // kv_heads >= least_heads]
    return enough[0] if enough else kv_heads


FUNCTIONS = (
    blocks_of_gqa("GroupedBlocks", window=False, stepped=False),
    blocks_of_gqa("GroupedWindowBlocks", window=True, stepped=False),
    blocks_of_gqa("GroupedSteppedBlocks", window=False, stepped=True),
    blocks_of_gqa("GroupedSteppedWindowBlocks", window=True, stepped=True),
    blocks_of_attention("Blocks", scaled=False),
    blocks_of_attention("ScaledBlocks", scaled=True),
)


def blocked(least_heads: int = LEAST_HEADS) -> Form:
    """The form, for a machine that runs `least_heads` heads at once."""
    return Form(
        name="blocked",
        lower=partial(_lower, least_heads=least_heads),
        opset=23,
        dtypes=frozenset({torch.float32}),
        has=frozenset({Need.WINDOW, Need.NARROW_VALUES}),
        providers=frozenset({Provider.CPU}),
        elsewhere="outside cpu a loop in the graph goes back to the host at every step",
        narrow=NARROW_ATTENTION,
        functions=FUNCTIONS,
    )


BLOCKED = blocked()
