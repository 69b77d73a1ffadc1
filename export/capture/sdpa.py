"""torch's ``scaled_dot_product_attention`` in a user's module.

Where it is causal attention as the op says it, by `is_causal` or by its mask, it becomes
``causal_attn::attend``, and is then written in whichever form is asked for. Anything else (another
mask, lengths that may differ) is written here, so that no trap remains: torch.onnx 2.13 has a
finite mask constant and a mean of v for empty rows below opset 23, keeps the scale of float64 in
float32, and from opset 23 on hands it to kernels that add the lowest finite number. Here a mask is
a select of ``-inf``, a row that sees no key is zeros, and scores and softmax are at least float32.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from causal_attn.attention.call import RESULTS, by_name
from causal_attn.attention.operator import ATTEND
from causal_attn.errors import InputError
from causal_attn.export.capture.causal_mask import is_causal_mask, seen_prefix
from causal_attn.export.capture.views import loosen_views

__all__ = ["PREFIX", "SDPA", "attention_calls", "lower_sdpa", "rewrite_sdpa"]

SDPA = torch.ops.aten.scaled_dot_product_attention.default


# The arguments are those of torch's own schema.
def lower_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The op in terms of products, a select and a softmax.

    Args:
        query: ``[…, heads, q_tokens, features]``.
        key: ``[…, kv_heads, kv_tokens, features]``.
        value: ``[…, kv_heads, kv_tokens, v_features]``.
        attn_mask: bool (True: may be seen) or float (added), broadcast to the scores.
        dropout_p: 0; `rewrite_sdpa` has refused anything else.
        is_causal: Query ``i`` sees keys ``0 … i``, torch's upper-left alignment.
        scale: Default ``1 / sqrt(features)``.
        enable_gqa: Fewer key/value heads than query heads.
    """
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        group = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    # Tensors, not Python floats: see causal_attn.attention.reference.
    if scale is None:
        width = torch.full((), query.shape[-1], dtype=query.dtype, device=query.device)
        scores = query @ key.transpose(-2, -1) / width.sqrt()
    else:
        factor = torch.full((), scale, dtype=query.dtype, device=query.device)
        scores = query @ key.transpose(-2, -1) * factor
    visible = None
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)[:, None]
        visible = torch.arange(key.shape[-2], device=query.device)[None, :] <= rows
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask.to(scores.dtype)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if attn_mask is not None:
        # Softmax makes NaN of a row that is -inf throughout; a causal row sees at least itself.
        hidden = scores == float("-inf")
        weights = weights.masked_fill(hidden, 0)
    return (weights @ value).to(dtype)


def rewrite_sdpa(program: ExportedProgram) -> None:
    """Turn every call in `program` that the op can express into ``causal_attn::attend``, in place.

    Raises:
        InputError: A call has an argument that torch.export lets through and that means something
            else in ONNX; the message names it.
    """
    graph = program.graph
    for node in list(graph.find_nodes(op="call_function", target=SDPA)):
        _refuse_arguments(node)
        node.meta[_KEPT] = _why_kept(program, node)
        if node.meta[_KEPT] is not None:
            continue
        arguments = _arguments(node)
        query, key, value = (arguments[name] for name in _PARAMETERS[:3])
        scale = arguments["scale"]
        # [tokens, features] or [batch * heads, tokens, features]: heads are then 1, a number that
        # forms with their heads in an attribute can write down.
        axes = {2: (0, 0), 3: (1,), 4: ()}[query.meta["val"].dim()]
        with graph.inserting_before(node):
            for axis in axes:
                query, key, value = (
                    _call(torch.ops.aten.unsqueeze.default, (tensor, axis), like=node)
                    for tensor in (query, key, value)
                )
            scale = None if scale is None else float(scale)
            given = {"scale": scale, "return_weights": False}
            arguments = by_name((query, key, value), given)
            results = _call(ATTEND, tuple(arguments.values()), like=node)
            output = _call(operator.getitem, (results, RESULTS.index("output")), like=node)
            for axis in reversed(axes):
                output = _call(torch.ops.aten.squeeze.dim, (output, axis), like=node)
        node.replace_all_uses_with(output)
        graph.erase_node(node)
    _drop_unread_weights(program)
    loosen_views(program, (ATTEND, SDPA))
    graph.lint()
    program.graph_module.recompile()


def attention_calls(program: ExportedProgram) -> dict[str, Any]:
    """How attention stands in `program`, after `rewrite_sdpa`, as JSON values.

    Returns:
        ``attend``: calls of the op. ``kept``: reason to the number of calls that stay as they are
        written, a softmax outside any attention call among them.
    """
    counts: Counter[str] = Counter()
    attends = 0
    for node in program.graph.nodes:
        if node.target is ATTEND:
            attends += 1
        elif node.target is SDPA:
            counts[f"scaled_dot_product_attention: {node.meta[_KEPT]}"] += 1
        elif node.target in _SOFTMAX:
            counts["softmax: written by hand"] += 1
    return {"attend": attends, "kept": dict(counts)}


def _why_kept(program: ExportedProgram, node: Node) -> str | None:
    """Why a call is not ``causal_attn::attend``; ``None``: it is."""
    arguments = _arguments(node)
    query, key, value = (arguments[name].meta["val"] for name in _PARAMETERS[:3])
    mask = arguments["attn_mask"]
    if mask is None and not arguments["is_causal"]:
        return "it is not causal"
    if not 2 <= query.dim() <= 4 or not query.dim() == key.dim() == value.dim():
        return f"its query has {query.dim()} axes"
    # torch aligns the mask of unequal lengths at the upper left; the op never aligns.
    if not statically_known_true(query.shape[-2] == key.shape[-2]):
        return _OTHER_MASK if mask is not None else "q_tokens and kv_tokens may differ"
    if mask is not None and not is_causal_mask(program, mask, query.shape[-2]):
        first = seen_prefix(program, mask, query.shape[-2])
        return _OTHER_MASK if first is None else f"{first} first tokens, {PREFIX}"
    leading = [list(tensor.shape[:-2]) for tensor in (query, key, value)]
    if arguments["enable_gqa"] and query.dim() >= 3:
        # The op repeats fewer key/value heads as torch does.
        leading[0][-1] = leading[1][-1]
    for sizes in zip(*leading, strict=True):
        if not all(statically_known_true(size == sizes[0]) for size in sizes):
            return "its batch or heads broadcast"
    return None


def _refuse_arguments(node: Node) -> None:
    arguments = _arguments(node)
    scale, dropout = arguments["scale"], arguments["dropout_p"]
    if scale is not None and not (isinstance(scale, int | float) and scale > 0):
        raise InputError(
            f"`scale` of scaled_dot_product_attention must be > 0, got {scale!r}: the square root "
            "that ONNX takes of it is NaN."
        )
    if dropout != 0:
        raise InputError(
            f"`dropout_p` of scaled_dot_product_attention must be 0, got {dropout!r}: torch drops "
            "weights in eval mode too. Write dropout_p=p if self.training else 0."
        )
    mask = arguments["attn_mask"]
    if mask is not None:
        dtype = mask.meta["val"].dtype
        if dtype != torch.bool and not dtype.is_floating_point:
            raise InputError(
                f"`attn_mask` of scaled_dot_product_attention must be bool or floating, got "
                f"{dtype}: ONNX adds it to the scores. Write attn_mask.bool()."
            )


def _drop_unread_weights(program: ExportedProgram) -> None:
    """Ask the op for its weights only where something reads them: not every form has them."""
    index = RESULTS.index("weights")
    for node in program.graph.find_nodes(op="call_function", target=ATTEND):
        arguments = by_name(node.args, node.kwargs)
        getters = [user for user in node.users if user.args[1] == index]
        if not arguments["return_weights"] or any(user.users for user in getters):
            continue
        for user in getters:
            program.graph.erase_node(user)
        arguments["return_weights"] = False
        node.args, node.kwargs = tuple(arguments.values()), {}
        node.meta["val"] = _value(ATTEND, node.args)


def _call(target: Any, args: tuple[Any, ...], *, like: Node) -> Node:
    """A new node of `like`'s graph, with the fake result that torch.export keeps of each."""
    node = like.graph.call_function(target, args)
    node.meta = {name: like.meta[name] for name in _KEPT_META if name in like.meta}
    node.meta["val"] = _value(target, args)
    return node


def _value(target: Any, args: tuple[Any, ...]) -> Any:
    values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
    return target(*values)


def _arguments(node: Node) -> Mapping[str, Any]:
    return {**_DEFAULTS, **dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}


_KEPT = "causal_attn.kept"
PREFIX = "a prefix, see one another under its mask"
_OTHER_MASK = "its mask is not known to be the causal one"
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_DEFAULTS: Mapping[str, Any] = {
    "attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False
}  # fmt: skip
_SOFTMAX = (torch.ops.aten.softmax.int, torch.ops.aten._softmax.default)
_KEPT_META = ("nn_module_stack", "stack_trace", "torch_fn")
