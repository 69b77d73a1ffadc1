"""A user's function as a module, with the modules and tensors that it reads from outside.

``lambda ids: model(ids)[:, -1]`` computes with a model that is no argument of it, and so do a
method of a module and a `functools.partial`. Here they belong to the module that the function
becomes: a copy of it computes with copies, and in float64 they are float64 too.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional as F

from causal_attn.errors import UsageError

__all__ = ["FunctionModule"]

Held = nn.Module | Tensor


class FunctionModule(nn.Module):
    """`function` as ``forward``, its parameters those of the function.

    Raises:
        UsageError: The parameters of `function`, a builtin, are not known.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        function = _with_signature(function)
        self._function = function
        self._held = _held(function)
        for index, value in enumerate(self._held):
            # Without a place in this module they would keep their dtype.
            if isinstance(value, nn.Module):
                self.add_module(f"held_{index}", value)
        # An attribute, not a method: torch.export and inspect then see the function's parameters.
        self.forward = function

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copies = {id(value): copy.deepcopy(value, memo) for value in self._held}
        return type(self)(_replaced(self._function, copies))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = {id(value): fn(value) for value in self._held if isinstance(value, Tensor)}
        if moved:
            self._function = self.forward = _replaced(self._function, moved)
            self._held = _held(self._function)
        return self


def _with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, or one that says what its parameters are."""
    if isinstance(function, functools.partial):
        inner = function.func
        if isinstance(inner, nn.Module):
            inner = inner.forward
        return functools.partial(_with_signature(inner), *function.args, **function.keywords)
    if function is F.scaled_dot_product_attention:
        return _scaled_dot_product_attention
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        raise UsageError(
            "`target` must have parameters with names, got the builtin "
            f"{getattr(function, '__name__', function)!r}, which does not say them. Call it in a "
            "function of your own."
        ) from None
    return function


# The arguments are those of torch's own schema.
def _scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _held(function: Callable[..., Any]) -> list[Held]:
    """The modules and tensors that `function` reads and is not given, each once."""
    if isinstance(function, functools.partial):
        values = [*function.args, *function.keywords.values()]
        return _distinct([*values, *_held(function.func)])
    if isinstance(function, types.MethodType):
        return _distinct([function.__self__, *_held(function.__func__)])
    if isinstance(function, types.FunctionType):
        return _distinct([*_cells(function).values(), *_globals(function).values()])
    return []


def _distinct(values: list[Any]) -> list[Held]:
    return list({id(value): value for value in values if isinstance(value, Held)}.values())


def _cells(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            # A name that is assigned after the function was made.
            continue
    return found


def _globals(function: types.FunctionType) -> dict[str, Any]:
    return {
        name: function.__globals__[name]
        for name in function.__code__.co_names
        if isinstance(function.__globals__.get(name), Held)
    }


def _replaced(function: Callable[..., Any], new: Mapping[int, Any]) -> Callable[..., Any]:
    """`function`, reading ``new[id(value)]`` for each value that it holds."""
    if isinstance(function, functools.partial):
        args = [new.get(id(value), value) for value in function.args]
        keywords = {name: new.get(id(value), value) for name, value in function.keywords.items()}
        return functools.partial(_replaced(function.func, new), *args, **keywords)
    if isinstance(function, types.MethodType):
        owner = new.get(id(function.__self__), function.__self__)
        return types.MethodType(_replaced(function.__func__, new), owner)
    if not isinstance(function, types.FunctionType):
        return function
    swapped = {name: new[id(v)] for name, v in _globals(function).items() if id(v) in new}
    cells = _cells(function)
    closure = tuple(
        types.CellType(new[id(cells[name])]) if id(cells.get(name)) in new else cell
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
    )
    made = types.FunctionType(
        function.__code__,
        {**function.__globals__, **swapped} if swapped else function.__globals__,
        function.__name__,
        function.__defaults__,
        closure,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, function)
