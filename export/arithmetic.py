"""Two arithmetics that a module can be run in: float64 throughout, and random rounding.

In the second every result of every op is computed in float64 and rounded at random to a narrower
dtype, up with the probability with which the value lies towards the upper neighbour. A few such
runs show how far apart honest runs at that dtype may be, whatever their order of operations: what
the computation itself does with roundings (Parker, "Monte Carlo arithmetic", 1997; Denis, de
Oliveira Castro and Petit, "Verificarlo", 2016). One run in plain arithmetic is one draw of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from causal_attn.attention.call import AttendCall
from causal_attn.attention.operator import ATTEND, by_reference

__all__ = ["InFloat64", "RoundedAtRandom", "round_at_random"]

_NARROW = (torch.float16, torch.bfloat16, torch.float32)

_WIDE = {
    **dict.fromkeys(_NARROW, torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}

_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""Binary digits of the significand."""


_SUMS = {
    torch.ops.aten.mm.default: (0, 1),
    torch.ops.aten.bmm.default: (0, 1),
    torch.ops.aten.addmm.default: (1, 2),
    torch.ops.aten.baddbmm.default: (1, 2),
    torch.ops.aten.sum.default: (0,),
    torch.ops.aten.sum.dim_IntList: (0,),
    torch.ops.aten.mean.default: (0,),
    torch.ops.aten.mean.dim: (0,),
}
"""Ops that sum, and where what they sum, or its two factors, is among the arguments."""


_PICKS = (torch.ops.aten.embedding.default,)
"""Ops that take a few values out of a table, which need not be widened whole."""

_POOL = 1_048_573
"""Draws for one tensor, a prime: what has more values than that meets them again and again."""


class InFloat64(TorchDispatchMode):
    """Ops that ask for a narrower float get float64, and narrower floats that go in are widened.

    Norms that go through float32 on purpose, and tensors made inside forward, would otherwise
    leave float32 roundings in the oracle. A module may keep its own weights: each is widened where
    it is used, so that no second model is held.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A mode is entered again inside its own handler.
        self._defaults: list[torch.dtype] = []

    def __enter__(self) -> Self:
        self._defaults.append(torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._defaults.pop())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = {
            name: _WIDE.get(value, value) if name == "dtype" else value
            for name, value in (kwargs or {}).items()
        }
        result = func(*_widened(func, args), **_widened(func, kwargs))
        return tree_map_only(Tensor, _wide, result) if func in _PICKS else result


class RoundedAtRandom(InFloat64):
    """Every float result of every op is rounded at random to `dtype`, and stays a float64.

    Args:
        dtype: Whose values results are rounded to.
        seed: Of the roundings.
    """

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is ATTEND:
            # Inside a mode's own handler the mode is off.
            with self:
                return by_reference(AttendCall.of(*args, **(kwargs or {}))).tensors()
        if func in _SUMS:
            args = tuple(
                self._shaken(value) if place in _SUMS[func] else value
                for place, value in enumerate(args)
            )
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten.cumsum.default:
            # Every partial sum is rounded, and what comes after it is built on that.
            result = result + (self._round(result) - result).cumsum(args[1])
        if func.is_view:
            return result
        if func._schema.is_mutable:
            return tree_map_only(Tensor, self._round_in_place, result)
        return tree_map_only(Tensor, self._round, result)

    def _round(self, tensor: Tensor) -> Tensor:
        if tensor.dtype is not torch.float64:
            return tensor
        return round_at_random(tensor, self._dtype, self._generator)

    def _shaken(self, terms: Tensor) -> Tensor:
        """`terms` moved by up to half a unit in the last place.

        Products and partial sums inside an op are rounded too, and no op shows them.
        """
        if not terms.is_floating_point():
            return terms
        half = 2.0 ** -_DIGITS[self._dtype]
        shape = terms.shape if terms.numel() <= _POOL else (_POOL,)
        draws = torch.rand(shape, generator=self._generator, dtype=torch.float64)
        factors = 1 + (2 * draws - 1) * half
        if terms.numel() <= _POOL:
            # Whole numbers are summed exactly: a count of visible keys that is compared with 1
            # does not come out as 0.99999994 in any honest run.
            return torch.where(terms == terms.trunc(), terms, terms * factors)
        # Of as many draws as a large weight has values the drawing would take most of a run.
        shaken = torch.empty_like(terms, dtype=torch.float64)
        for piece in shaken.as_strided((shaken.numel(),), (1,)).split(_POOL):
            piece.copy_(factors[: piece.numel()])
        return shaken.mul_(terms)

    def _round_in_place(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(self._round(tensor))


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype in _NARROW else value


def _widened(func: Any, arguments: Any) -> Any:
    """`arguments` of `func`, with narrow floats as float64 where it computes with them."""
    if func.is_view or func in _PICKS or func._schema.is_mutable:
        # What is written to must stay the tensor that it is.
        return arguments
    return tree_map_only(Tensor, _wide, arguments)


def round_at_random(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Float64 `values` rounded to those of `dtype`: exact ones stay, others go up or down.

    The expected result is the value itself. What lies beyond the largest number of `dtype`
    becomes that number, so that masks made of float64's lowest number stay finite; NaN and
    infinities stay.
    """
    limits = torch.finfo(dtype)
    digits = _DIGITS[dtype]
    exponents = torch.frexp(values)[1] - digits
    lowest = torch.frexp(torch.tensor(limits.smallest_normal, dtype=torch.float64))[1] - digits
    units = torch.ldexp(torch.ones_like(values), torch.maximum(exponents, lowest))
    draws = torch.rand(values.shape, generator=generator, dtype=torch.float64)
    rounded = (torch.floor(values / units + draws) * units).clamp(limits.min, limits.max)
    return torch.where(torch.isfinite(values), rounded, values)
