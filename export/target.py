"""What is exported: a module, the names of its inputs, examples, and which axes are dynamic."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from causal_attn.attention.operator import attend
from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.errors import InputError, UsageError
from causal_attn.export.dims import Dims, Limits, name_axes
from causal_attn.export.exported_program import open_program
from causal_attn.export.one_run import run_once
from causal_attn.export.user_module import (
    Constant,
    as_module,
    named_results,
    with_constants,
    with_flat_results,
)
from causal_attn.package.cache_layout import CacheLayout

__all__ = ["LARGE_BYTES", "Target", "reference_target", "resized", "size_of", "user_target"]

T = TypeVar("T")

LARGE_BYTES = 256 * 2**20
"""Weights above this are not copied where it can be helped."""

# No two of these sizes are equal and none is 0 or 1, which torch.export takes for constants.
_TRACED = {
    "batch": 2, "heads": 6, "kv_heads": 3, "tokens": 13, "features": 8, "past_tokens": 5,
    "capacity": 29,
}  # fmt: skip


# Not Module.to, which takes the imaginary part off complex tables of rotary embeddings.
_CAST: Mapping[torch.dtype, Callable[[nn.Module], nn.Module]] = {
    torch.float16: nn.Module.half, torch.float32: nn.Module.float, torch.float64: nn.Module.double
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Target:
    """A module ready to be traced.

    Attributes:
        module: Its ``forward`` takes the tensors of `examples` by name.
        examples: By the names of the graph's inputs, in the order of ``forward``'s parameters;
            see `arguments`.
        dims: For every example: axis to the name of its dynamic dim, or to a sum of names.
        outputs: A name for every tensor that ``forward`` returns.
        spec: The attention it is, if it is the reference op.
        bounds: Integer inputs: low and high (exclusive) of fresh values.
        limits: Of dims that may not have every size.
        untraced: Numbers of tokens within `limits` that the trace does not cover, so that only
            running the graph there shows what it says.
        suggested: Whether `dims` are those that the names of the inputs suggest: any but the
            tokens may then turn out to have one size.
        constants: Arguments of the module that are no tensors, and the values they have.
        guarded: Whether someone sees to it that lengths are what the traced code asks for, as
            torch.compile does: they may then be tied together, or fixed, and inputs ignored.
        reference: What the results are held against, called as `module` is; ``None``: `module`
            itself.
        companions: Files that lie beside the graph, by name.
        cache: The graph's cache; ``None``: as spec, names and dims say.
    """

    module: nn.Module
    examples: Mapping[str, Tensor]
    dims: Mapping[str, Mapping[int, str]]
    outputs: tuple[str, ...]
    spec: AttentionSpec | None = None
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    limits: Mapping[str, Limits] = field(default_factory=dict)
    untraced: tuple[int, ...] = ()
    suggested: bool = False
    constants: Mapping[str, Constant] = field(default_factory=dict)
    guarded: bool = False
    reference: nn.Module | None = None
    companions: Mapping[str, bytes] = field(default_factory=dict)
    cache: CacheLayout | None = None

    @property
    def weight_bytes(self) -> int:
        """What parameters and buffers take, each counted once."""
        return sum(tensor.nbytes for tensor in (*self.module.parameters(), *self.module.buffers()))

    def arguments(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """`tensors` by the parameters of ``forward``: dots in names of inputs are underscores."""
        return {name.replace(".", "_"): tensor for name, tensor in tensors.items()}


class _ReferenceOp(nn.Module):
    """The op without a cache; batch, heads, tokens and features are the caller's."""

    def __init__(self, spec: AttentionSpec, return_weights: bool) -> None:
        super().__init__()
        self.spec, self.return_weights = spec, return_weights

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return self.attend(q, k, v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **past: Tensor) -> tuple[Tensor, ...]:
        """The results that there are, in the order of the op's."""
        spec = self.spec
        output, weights, *present = attend(
            q,
            k,
            v,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            return_weights=self.return_weights,
            **past,
        )
        return (
            output,
            *([weights] if self.return_weights else []),
            *(present if past else []),
        )


class _CachedReferenceOp(_ReferenceOp):
    """The op with a growing cache: the past goes in, the present comes out."""

    def forward(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, ...]:
        return self.attend(q, k, v, past_key=past_key, past_value=past_value)


class _StaticReferenceOp(_ReferenceOp):
    """The op with a cache of fixed capacity: new tokens are written into the buffers."""

    def forward(  # type: ignore[override]
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        past_lengths: Tensor,
    ) -> tuple[Tensor, ...]:
        return self.attend(
            q, k, v, past_key=past_key, past_value=past_value, past_lengths=past_lengths
        )


def reference_target(
    spec: AttentionSpec, *, dtype: torch.dtype, return_weights: bool = True
) -> Target:
    """The reference op of `spec`, with everything dynamic that the spec leaves open."""
    grouped = spec.num_kv_heads is not None and spec.num_kv_heads != spec.num_heads
    kv_heads = "kv_heads" if grouped else "heads"
    fixed = {
        "heads": spec.num_heads, "kv_heads": spec.num_kv_heads, "features": spec.head_dim,
    }  # fmt: skip

    def example(heads: str, tokens: str) -> tuple[Tensor, dict[int, str]]:
        names = ("batch", heads, tokens, "features")
        sizes = [fixed.get(name) or _TRACED[name] for name in names]
        dynamic = {axis: name for axis, name in enumerate(names) if fixed.get(name) is None}
        try:
            return torch.randn(sizes, dtype=dtype), dynamic
        except (RuntimeError, TypeError, OverflowError):
            raise UsageError(
                f"`spec` must have sizes that fit into memory, got an example of {sizes}."
            ) from None

    layout = {"q": ("heads", "tokens"), "k": (kv_heads, "tokens"), "v": (kv_heads, "tokens")}
    outputs = ["output", "weights"] if return_weights else ["output"]
    module: nn.Module = _ReferenceOp(spec, return_weights)
    if spec.cache is CacheKind.DYNAMIC:
        layout |= dict.fromkeys(("past_key", "past_value"), (kv_heads, "past_tokens"))
        outputs += ["present_key", "present_value"]
        module = _CachedReferenceOp(spec, return_weights)
    elif spec.cache is CacheKind.STATIC:
        layout |= dict.fromkeys(("past_key", "past_value"), (kv_heads, "capacity"))
        outputs += ["present_key", "present_value"]
        module = _StaticReferenceOp(spec, return_weights)
    made = {
        name: example(heads if name != "q" else "heads", tokens)
        for name, (heads, tokens) in layout.items()
    }
    if spec.cache is CacheKind.STATIC:
        made["past_lengths"] = torch.arange(_TRACED["batch"]), {0: "batch"}
    return Target(
        module=module,
        examples={name: tensor for name, (tensor, _) in made.items()},
        dims={name: dims for name, (_, dims) in made.items()},
        outputs=tuple(outputs),
        spec=spec,
    )


def user_target(
    target: nn.Module | ExportedProgram | Callable[..., Any],
    example_inputs: Sequence[Any] | Mapping[str, Any] | None,
    dims: Dims | None,
    *,
    dtype: torch.dtype | None,
) -> Target:
    """Bind a user's module or function to its example inputs, or take a program with its own.

    Raises:
        InputError: Examples that are missing, unknown, not tensors, or one tensor twice; dims
            that name no axis.
    """
    if isinstance(target, ExportedProgram):
        opened = open_program(target, named=dims is not None)
        target, dims = opened.module, dims if dims is not None else opened.dims
        example_inputs = example_inputs or opened.examples
    module = as_module(target)
    examples, constants = _bind(module, example_inputs)
    module = with_constants(module, constants)
    _refuse_aliases(examples)
    if dtype is not None:
        # A copy: it changes the caller's module in place, for good.
        module = _CAST[dtype](copy.deepcopy(module))
        examples = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in examples.items()
        }
    axes = name_axes(examples, dims)
    examples = {name: _at_least_two(tensor, axes.dims[name]) for name, tensor in examples.items()}
    result = run_once(module, examples)
    outputs = tuple(named_results(result))
    module = with_flat_results(module, result)
    bounds = {
        name: (int(tensor.min()), int(tensor.max()) + 1)
        for name, tensor in examples.items()
        if tensor.dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    }
    return Target(
        module=module,
        examples=examples,
        dims=axes.dims,
        outputs=outputs,
        bounds=bounds,
        limits=axes.limits,
        suggested=axes.suggested,
        constants=constants,
    )


def _bind(
    module: nn.Module, example_inputs: Sequence[Any] | Mapping[str, Any] | None
) -> tuple[dict[str, Tensor], dict[str, Constant]]:
    """Examples by parameter name, in the order of ``forward``, and what is given but no tensor.

    torch.onnx binds names to the order of keyword arguments: k and v swap without a word.
    """
    if not example_inputs:
        raise InputError(
            "`example_inputs` must hold a tensor for every input of the target, got none. "
            "Give a tuple in the order of forward, or a dict by name."
        )
    signature = inspect.signature(module.forward)
    try:
        if isinstance(example_inputs, Mapping):
            bound = signature.bind(**example_inputs)
        else:
            bound = signature.bind(*example_inputs)
    except TypeError as error:
        raise InputError(
            f"`example_inputs` must fit forward{signature}, got {_described(example_inputs)}: "
            f"{error}."
        ) from None
    examples: dict[str, Tensor] = {}
    constants: dict[str, Constant] = {}
    for name, value in bound.arguments.items():
        if isinstance(value, Tensor):
            examples[name] = value
        elif value is None or type(value) in (bool, int, float, str):
            constants[name] = value
        else:
            raise InputError(
                f"`example_inputs` must be tensors, numbers, words or None, got "
                f"{type(value).__name__} for `{name}`. Fix it beforehand, with functools.partial "
                "or a small module."
            )
    if not examples:
        raise InputError(
            f"`example_inputs` must hold a tensor for the tokens, got {list(constants)} alone, "
            "which would be fixed for good."
        )
    # What is left out has its default, which is as fixed from now on as what was given.
    for name, parameter in signature.parameters.items():
        if name not in bound.arguments and type(parameter.default) in (bool, int, float, str):
            constants[name] = parameter.default
    return examples, constants


def _described(example_inputs: Sequence[Any] | Mapping[str, Any]) -> str:
    if isinstance(example_inputs, Mapping):
        return f"the names {sorted(example_inputs)}"
    return f"{len(example_inputs)} tensors"


def _refuse_aliases(examples: Mapping[str, Tensor]) -> None:
    """One tensor given for two inputs makes torch.export read one input for both."""
    seen: dict[int, str] = {}
    for name, tensor in examples.items():
        if id(tensor) in seen:
            raise InputError(
                f"`example_inputs` must be different tensors, got one tensor for "
                f"`{seen[id(tensor)]}` and `{name}`. The graph would read only one of the two; "
                f"pass {name}.clone()."
            )
        seen[id(tensor)] = name


def _at_least_two(tensor: Tensor, axes: Mapping[int, str]) -> Tensor:
    """Repeat dynamic axes of size 1: torch.export would take the 1 for a constant."""
    for axis in axes:
        if tensor.shape[axis] == 1:
            tensor = tensor.repeat_interleave(2, dim=axis)
    return tensor


def size_of(target: Target, dim: str) -> int | None:
    """The size that `dim` has in the examples."""
    for name, axes in target.dims.items():
        for axis, named in axes.items():
            if named == dim:
                return target.examples[name].shape[axis]
    return None


def resized(target: Target, dim: str, size: int) -> dict[str, Tensor]:
    """The examples with `dim` of `size`, cut off or repeated."""
    examples = dict(target.examples)
    for name, axes in target.dims.items():
        for axis, named in axes.items():
            if named == dim:
                places = torch.arange(size) % examples[name].shape[axis]
                examples[name] = examples[name].index_select(axis, places)
    return examples
