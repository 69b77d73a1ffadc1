"""How large a call may be: tokens, and bytes of its inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from causal_attn.errors import InputError, UsageError
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.package.dims import DimExpression

__all__ = ["SizeLimits", "named_sizes"]


class SizeLimits:
    """Refuses calls by their sizes alone, before anything is copied or allocated for them.

    Outputs count with the dims that the contract gives them; one whose dims do not follow from
    the inputs counts as nothing. What a kernel needs in between does not count.

    Args:
        contract: Of the model.
        max_tokens: Of one call, >= 1; ``None``: any number.
        max_bytes: Of all inputs and outputs of one call, >= 1; ``None``: any number.

    Raises:
        UsageError: A limit is no such number, or no input has a dim of tokens to limit.
    """

    def __init__(self, contract: Contract, *, max_tokens: int | None, max_bytes: int | None):
        for name, limit in (("max_tokens", max_tokens), ("max_bytes", max_bytes)):
            if limit is not None and (
                not isinstance(limit, int) or isinstance(limit, bool) or limit < 1
            ):
                raise UsageError(f"`{name}` must be an integer >= 1 or None, got {limit!r}.")
        self._tokens = contract.tokens
        if max_tokens is not None and not any(
            contract.tokens in tensor.dims for tensor in contract.inputs
        ):
            raise UsageError(
                f"`max_tokens` must be None for a model without a dim {contract.tokens!r} in its "
                "inputs. Use `max_bytes`."
            )
        self._max_tokens = max_tokens
        self._max_bytes = max_bytes
        self._inputs = {tensor.name: np.dtype(tensor.dtype).itemsize for tensor in contract.inputs}
        self._outputs = contract.outputs

    def check(self, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> None:
        """Refuse a call that is too large.

        Args:
            shapes: Of every input.
            sizes: Of the named dims of the inputs.

        Raises:
            InputError: It has more tokens or bytes than it may.
        """
        tokens = sizes.get(self._tokens, 0)
        if self._max_tokens is not None and tokens > self._max_tokens:
            raise InputError(
                f"The inputs must have at most {self._max_tokens} {self._tokens}, got {tokens}. "
                "Send less, or load with a larger `max_tokens`."
            )
        if self._max_bytes is None:
            return
        taken = sum(math.prod(shape) * self._inputs[name] for name, shape in shapes.items())
        taken += sum(_bytes_of(tensor, sizes) for tensor in self._outputs)
        if taken > self._max_bytes:
            raise InputError(
                f"The inputs and outputs must take at most {self._max_bytes} bytes, got {taken} "
                f"for {dict(sizes)}. Send less, or load with a larger `max_bytes`."
            )


def named_sizes(contract: Contract, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The largest size of each named dim: what ONNX Runtime would broadcast to.

    Args:
        contract: Of the model.
        shapes: Of inputs; one that is missing, or has another rank, adds what it can.
    """
    sizes: dict[str, int] = {}
    for tensor in contract.inputs:
        for dim, size in zip(tensor.dims, shapes.get(tensor.name, ()), strict=False):
            if isinstance(dim, str):
                sizes[dim] = max(size, sizes.get(dim, 0))
    return sizes


def _bytes_of(tensor: TensorContract, sizes: Mapping[str, int]) -> int:
    elements = 1
    for dim in tensor.dims:
        size = dim if isinstance(dim, int) else DimExpression.parse(dim).size(sizes)
        if size is None:
            return 0
        elements *= max(size, 0)
    return elements * np.dtype(tensor.dtype).itemsize
