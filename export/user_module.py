"""A user's module as the exporter needs it: tensors in by name, named tensors out.

What a module takes besides tensors (a flag, a factor, a word) is bound to the value that it was
given, and what it returns (a dataclass, a dict in a tuple, a cache of pairs) is laid out flat.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from causal_attn.errors import InputError, UsageError
from causal_attn.export.user_function import FunctionModule

__all__ = [
    "Constant", "as_module", "named_results", "with_constants", "with_flat_results",
    "with_parameters",
]  # fmt: skip

Constant = bool | int | float | str | None
"""What may be bound: values that a contract can list."""


def as_module(target: Any) -> nn.Module:
    """`target` as a module whose ``forward`` can be traced.

    A module that torch.compile wrapped is taken out of its wrapper.

    Raises:
        UsageError: `target` is TorchScript, which torch.export does not trace, or no function.
    """
    original = getattr(target, "_orig_mod", None)
    if isinstance(original, nn.Module):
        target = original
    # Likewise a function: torch.compile keeps the one that it was given.
    target = getattr(target, "_torchdynamo_orig_callable", target)
    if isinstance(target, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise UsageError(
            f"`target` must be the module or function itself, got TorchScript "
            f"({type(target).__name__}), which torch.export does not trace. Export what was given "
            "to torch.jit.trace or torch.jit.script."
        )
    if isinstance(target, nn.Module):
        return target
    if not callable(target):
        raise UsageError(
            "`target` must be causal_attention, an AttentionSpec, an nn.Module or a function, "
            f"got {type(target).__name__}."
        )
    return FunctionModule(target)


def with_constants(module: nn.Module, constants: Mapping[str, Constant]) -> nn.Module:
    """`module` with the arguments in `constants` bound to their values."""
    if not constants:
        return module
    signature = inspect.signature(module.forward)
    kept = [
        parameter for parameter in signature.parameters.values() if parameter.name not in constants
    ]
    bound: nn.Module = with_parameters(_Bound, kept)(module, constants)
    return bound


def with_flat_results(module: nn.Module, result: Any) -> nn.Module:
    """`module`, returning a flat tuple if `result`, what it returns, is anything deeper.

    torch.export knows no dataclass but those that are registered with it.
    """
    values = result.values() if isinstance(result, Mapping) else result
    plain = isinstance(result, Tensor) or (
        isinstance(result, tuple | list | Mapping)
        and all(value is None or isinstance(value, Tensor) for value in values)
    )
    if plain:
        return module
    parameters = list(inspect.signature(module.forward).parameters.values())
    flattened: nn.Module = with_parameters(_FlatResults, parameters)(module)
    return flattened


def named_results(result: Any) -> dict[str, Tensor]:
    """The tensors in `result` by name, without what is ``None``, such as a loss without labels.

    A tensor alone is ``output``, items of a tuple are ``output_0``, ``output_1``, …; fields of
    dataclasses and NamedTuples and keys of dicts keep their names. Deeper ones are joined by dots:
    ``cache.0.key``.

    Raises:
        InputError: There is something else in it, or no tensor.
    """
    if isinstance(result, Tensor):
        return {"output": result}
    found = {".".join(path): tensor for path, tensor in _walk(result, ())}
    if not found:
        raise InputError(f"`target` must return tensors, got {type(result).__name__}.")
    return found


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    if value is None:
        return
    if isinstance(value, Tensor):
        yield path or ("output",), value
        return
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif is_dataclass(value) and not isinstance(value, type):
        items = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = list(zip(value._fields, value, strict=True))
    elif isinstance(value, tuple | list):
        prefix = "" if path else "output_"
        items = [(f"{prefix}{index}", item) for index, item in enumerate(value)]
    else:
        where = ".".join(path) or "output"
        raise InputError(
            f"`target` must return tensors, got {type(value).__name__} for `{where}`. "
            "Return a tensor, or tuples, dicts and dataclasses of them."
        )
    for name, item in items:
        yield from _walk(item, (*path, name))


class _Bound(nn.Module):
    def __init__(self, module: nn.Module, constants: Mapping[str, Constant]) -> None:
        super().__init__()
        self.module, self.constants = module, dict(constants)

    def call(self, tensors: Mapping[str, Tensor]) -> Any:
        return self.module(**tensors, **self.constants)


class _FlatResults(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def call(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(named_results(self.module(**tensors)).values())


def with_parameters(kind: Any, parameters: list[inspect.Parameter]) -> Any:
    """A subclass of `kind` whose ``forward`` has `parameters`: torch.export reads names off it.

    A subclass, not a function on the instance: a copy of the module would call the original.
    ``*args`` and ``**kwargs`` of the module's own are left out: nothing was given for them.
    """

    def forward(self: Any, **tensors: Tensor) -> Any:
        return self.call(tensors)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in parameters
        if parameter.kind not in rest
    ]
    forward.__signature__ = inspect.Signature([own, *named])  # type: ignore[attr-defined]
    return type(kind.__name__, (kind,), {"forward": forward})
