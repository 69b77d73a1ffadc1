"""The target itself as a yardstick: in float64, at its own dtype, and rounded at random."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from causal_attn.errors import InputError
from causal_attn.export.arithmetic import InFloat64, RoundedAtRandom
from causal_attn.export.capture.causal_bias import biases_as_masks
from causal_attn.export.eager import as_written
from causal_attn.export.one_run import evaluating
from causal_attn.export.target import LARGE_BYTES, Target
from causal_attn.verify.feeds.feeder import Feeds
from causal_attn.verify.oracle.yardstick import Yardstick

__all__ = ["RAISES", "yardstick"]

RAISES = "`target` must run at every length that is checked"
"""How the error begins where the target itself raises."""


def yardstick(target: Target) -> Yardstick:
    """`target` run in float64 throughout, as it is, and in float64 rounded to its own dtype.

    A run raises `InputError` where the target itself does.
    """
    module = target.module if target.reference is None else target.reference
    # The arithmetic widens what it uses. Code that compares dtypes itself gets a module of one.
    wide = copy.deepcopy(module).double() if target.weight_bytes <= LARGE_BYTES else module
    dtype = _float_dtype(target)

    def oracle(feeds: Feeds) -> dict[str, NDArray[Any]]:
        return _run(target, wide, feeds, InFloat64)

    def rounded(feeds: Feeds, seed: int) -> dict[str, NDArray[Any]]:
        with _WrittenOut():
            return _run(target, wide, feeds, lambda: RoundedAtRandom(dtype, seed))

    def baseline(feeds: Feeds) -> dict[str, NDArray[Any]]:
        return _run(target, module, feeds, contextlib.nullcontext)

    return Yardstick(oracle=oracle, baseline=baseline, rounded=rounded)


class _WrittenOut(TorchFunctionMode):
    """torch's fused attention as products and a softmax, laid out in memory as the fused one is.

    A fused kernel would have its result rounded alone and none of the scores. Code that views the
    result without a copy counts on the fused kernel's strides.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        with sdpa_kernel(SDPBackend.MATH):
            result = func(*args, **kwargs)
        return torch.empty_like(func(*args, **kwargs)).copy_(result)


def _float_dtype(target: Target) -> torch.dtype:
    """Of the first floating tensor that goes in or is held."""
    held = (*target.examples.values(), *target.module.parameters(), *target.module.buffers())
    return next((tensor.dtype for tensor in held if tensor.is_floating_point()), torch.float32)


def _run(
    target: Target,
    module: nn.Module,
    feeds: Feeds,
    arithmetic: Callable[[], contextlib.AbstractContextManager[object]],
) -> dict[str, NDArray[Any]]:
    # Copies: a module may write to its inputs, and the feeds are compared later.
    inputs = target.arguments(
        {name: torch.from_numpy(array.copy()) for name, array in feeds.items()}
    )
    with evaluating(module), torch.no_grad(), as_written(), biases_as_masks(), arithmetic():
        try:
            result = module(**inputs)
        # The caller's code: whatever it raises is an answer about these sizes.
        except Exception as error:
            raise InputError(f"{RAISES}, got {type(error).__name__}: {error}") from error
    tensors: list[Tensor] = [leaf for leaf in tree_leaves(result) if leaf is not None]
    return {name: tensor.numpy() for name, tensor in zip(target.outputs, tensors, strict=True)}
