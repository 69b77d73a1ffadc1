"""Which inputs of a graph hold tokens, which hold the past, which are fixed, which outputs count.

For our own models the contract says so. For anyone's, names and dims of the ecosystem do
(`input_ids`, `attention_mask`, `past_key_values.0.key`, `q`, `sequence_length`, …); where they do
not, the caller is asked, never guessed for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from causal_attn.errors import UsageError
from causal_attn.package.cache_layout import EntryKind
from causal_attn.package.contract import DTYPES, Contract, TensorContract
from causal_attn.package.dims import DimExpression
from causal_attn.verify import influence
from causal_attn.verify.feeds.cache_slots import buffers, held
from causal_attn.verify.feeds.feeder import Feeder, Fixed
from causal_attn.verify.interface.carried_by_name import carried_cache, growing_inputs
from causal_attn.verify.interface.decoder_inputs import (
    behind_held,
    consecutive,
    decoder_roles,
    unpadded,
)
from causal_attn.verify.interface.fixed_dims import fixed_sizes
from causal_attn.verify.interface.id_bounds import integer_bounds
from causal_attn.verify.interface.naming import (
    ATTENTION,
    PAST_DIMS,
    POSITIONS,
    TOKEN_DIMS,
    Dims,
    belongs_to_cache,
    is_encoders,
    is_mask,
    token_axis_by_name,
)
from causal_attn.verify.interface.roles import BATCH, PAST, TOKENS, Roles

__all__ = ["BATCH", "PAST", "TOKENS", "Interface", "discover", "from_contract", "with_outputs"]

_KINDS = {onnx.TensorProto.BFLOAT16} | {
    onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in DTYPES if name != "bfloat16"
}
"""Element types of ONNX that a contract has a name for."""


@dataclass(frozen=True, kw_only=True)
class Interface:
    """How to feed a graph and what to look at.

    Attributes:
        feeder: Makes inputs; its contract has the dims ``batch``, ``tokens``, ``past_tokens``.
        tokens: Inputs of new tokens, ``name -> axis``.
        past: Inputs of the past.
        total: Inputs of past and new tokens together.
        outputs: Outputs with a token axis, ``name -> axis``.
        known: Fixed inputs, as the influence proof takes them.
        held: Of every input whose values follow from the sizes, what they are, in words.
        conditions: Likewise, of those that a caller may feed otherwise.
        mask: The input ``[batch, past and new tokens]`` that is 0 for padding, if there is one.
        positions: The input of position ids, if there is one.
        sizes: Dims of the graph, by the graph's own names, that have one size.
        unplaced: Outputs to examine whose token axis only running shows.
        notes: What was left out and why.
        rowless: Whether no output grows with the tokens: each is of all of them.
    """

    feeder: Feeder
    tokens: Mapping[str, int]
    past: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, influence.Known] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    mask: str | None = None
    positions: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    unplaced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rowless: bool = False

    @property
    def others(self) -> tuple[str, ...]:
        """Outputs that are examined and have no token axis, as far as is known."""
        examined = self.feeder.examined
        return tuple(
            tensor.name
            for tensor in self.feeder.contract.outputs
            if tensor.name not in {*self.outputs, *self.states}
            and (examined is None or tensor.name in examined)
        )

    @property
    def states(self) -> tuple[str, ...]:
        """Outputs that replace an input in the next call: of all tokens, so none has a row."""
        layout = self.feeder.contract.cache
        entries = () if layout is None else layout.of(EntryKind.REPLACED)
        return tuple(entry.output for entry in entries if entry.output is not None)

    @property
    def cache(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a past input and the present output that continues it."""
        return _pairs(self.feeder.contract)

    @property
    def fixed_tokens(self) -> int | None:
        """The number of tokens, if the graph has only one."""
        return self.feeder.pinned.get(TOKENS)


def from_contract(contract: Contract, model: onnx.ModelProto) -> Interface:
    """The interface of a model of ours."""
    contract = _with_our_past(contract)
    # To the proof the slots that are written hold the new tokens already: whoever reads one before
    # its time reads the future.
    slots = {entry.input: entry.axis for entry in buffers(contract) if entry.axis is not None}
    lengths = contract.cache.lengths if contract.cache is not None and slots else None
    fixed: dict[str, Fixed] = {} if lengths is None else {lengths: held(contract)}
    known: dict[str, influence.Known] = {} if lengths is None else {lengths: _held_by_all}
    mask, positions = decoder_roles(contract)
    words = {} if lengths is None else {lengths: f"{lengths} are the past, of each sequence"}
    if mask is not None:
        fixed[mask], known[mask] = unpadded, influence.ones
        words[mask] = f"{mask} is all ones"
    if positions is not None:
        fixed[positions] = consecutive if lengths is None else behind_held(contract)
        known[positions] = influence.positions
        words[positions] = f"{positions} count up"
    feeder = Feeder(contract=contract, bounds=integer_bounds(model.graph), fixed=fixed)
    tokens: dict[str, int] = {}
    past: dict[str, int] = {}
    total: dict[str, int] = {}
    loose: list[str] = []
    for tensor in contract.inputs:
        for axis, dim in enumerate(tensor.dims):
            if isinstance(dim, int):
                continue
            factor = DimExpression.parse(dim).factor(contract.tokens)
            if dim == contract.tokens:
                tokens.setdefault(tensor.name, axis)
            elif dim == PAST:
                past.setdefault(tensor.name, axis)
            elif factor == 1:
                total.setdefault(tensor.name, axis)
            elif factor != 0:
                loose.append(f"input {tensor.name!r}: no position is followed along {dim!r}")
    return Interface(
        feeder=feeder,
        tokens=tokens,
        past=past,
        total={name: axis for name, axis in total.items() if name not in tokens} | slots,
        outputs=_watched(feeder)
        | {entry.output: slots[entry.input] for entry in buffers(contract) if entry.output},
        known=known,
        held=words,
        conditions={} if positions is None else {positions: words[positions]},
        mask=mask,
        positions=positions,
        notes=(*loose, *_undecoded(contract, past)),
        rowless=_is_rowless(contract),
    )


def _is_rowless(contract: Contract) -> bool:
    """Whether the dims of all outputs follow from inputs' other than tokens and past."""

    def names(tensors: Iterable[TensorContract]) -> set[str]:
        dims = (dim for tensor in tensors for dim in tensor.dims if isinstance(dim, str))
        return {name for dim in dims for name in DimExpression.parse(dim).names}

    return names(contract.outputs) <= names(contract.inputs) - {contract.tokens, PAST}


def _with_our_past(contract: Contract) -> Contract:
    """`contract` with `PAST` for the dims, whatever their names, along which its cache grows."""
    if contract.cache is None:
        return contract
    dims = {tensor.name: tensor.dims for tensor in contract.inputs}
    grown = {
        dim
        for entry in contract.cache.of(EntryKind.GROWING)
        if entry.axis is not None and isinstance(dim := dims[entry.input][entry.axis], str)
    }
    names = dict.fromkeys(grown, PAST)

    def renamed(tensor: TensorContract) -> TensorContract:
        new = tuple(
            dim if isinstance(dim, int) else DimExpression.parse(dim).renamed(names).text
            for dim in tensor.dims
        )
        return replace(tensor, dims=new)

    return replace(
        contract,
        inputs=tuple(map(renamed, contract.inputs)),
        outputs=tuple(map(renamed, contract.outputs)),
    )


def _undecoded(contract: Contract, past: Mapping[str, int]) -> list[str]:
    """What of a cache cannot be handed from call to call."""
    layout = contract.cache
    if layout is None:
        return ["decode: no output continues every past input"] if past else []
    if layout.of(EntryKind.FIXED) and layout.lengths is None:
        return ["cache: no input says how much of its fixed capacity is filled"]
    return []


def discover(
    model: onnx.ModelProto,
    path: Path,
    *,
    tokens_axis: Mapping[str, int] | None = None,
    outputs: Iterable[str] | None = None,
) -> Interface:
    """The interface of any model.

    Args:
        model: Without its external data.
        path: Of the model, for messages.
        tokens_axis: Says which inputs hold new tokens and on which axis, instead of their names.
        outputs: Says which outputs to look at, instead of all that have a token axis.

    Raises:
        UsageError: No input is known to hold tokens, or several axes might; or a name is wrong.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {v.name: _dims(v) for v in model.graph.input if v.name not in weights}
    results = {v.name: _dims(v) for v in model.graph.output}
    _check_names("tokens_axis", tokens_axis or {}, inputs)
    _check_names("outputs", dict.fromkeys(outputs or (), 0), results)
    tokens = _sharing(dict(tokens_axis or _named_tokens(inputs, path)), inputs)
    caches = {
        name: axis
        for name, dims in inputs.items()
        if (axis := _past_axis(name, dims, tokens)) is not None
    }
    past = growing_inputs(caches, inputs, results)
    sizes = fixed_sizes(model.graph)
    roles = Roles(inputs, tokens, past, sizes)
    taken = tuple(
        _tensor(value, roles.input_dims(value.name))
        for value in model.graph.input
        if value.name in inputs
    )
    returned = tuple(
        _tensor(value, roles.output_dims(results[value.name])) for value in model.graph.output
    )
    carried = carried_cache(
        past,
        taken,
        returned,
        tokens=TOKENS,
        others={*roles.tokens, *roles.total, *roles.fixed},
    )
    contract = Contract(
        inputs=taken,
        outputs=carried.outputs,
        cache=carried.layout,
        form="foreign",
        opset=next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1),
    )
    feeder = Feeder(
        contract=contract,
        bounds=integer_bounds(model.graph),
        fixed=roles.fixed,
        pinned=roles.pinned,
        examined=None if outputs is None else frozenset(outputs),
    )
    watched = _watched(feeder)
    wanted = list(results) if outputs is None else list(outputs)
    return Interface(
        feeder=feeder,
        tokens=tokens,
        past=past,
        total=roles.total,
        outputs={name: axis for name, axis in watched.items() if name in wanted},
        known=roles.known,
        held=roles.held,
        conditions=roles.conditions,
        mask=roles.mask,
        positions=next((name for name in inputs if name in POSITIONS), None),
        sizes=sizes,
        # A dim without a name may still be the tokens: running it shows which grows with them.
        unplaced=tuple(
            name
            for name in wanted
            if name not in watched
            and name not in {output for _, output in _pairs(contract)}
            and (outputs or not all(isinstance(d, int) for d in results[name]))
        ),
        notes=(
            *_unasked(results, wanted),
            *carried.notes,
            *_unfollowed(inputs, roles, {name for name, _ in _pairs(contract)}),
        ),
    )


def _unasked(results: Mapping[str, Dims], wanted: list[str]) -> list[str]:
    return [f"output {name!r}: it was not asked for" for name in results if name not in wanted]


def _pairs(contract: Contract) -> tuple[tuple[str, str], ...]:
    """Inputs of the cache and the outputs that continue them."""
    return () if contract.cache is None else tuple(contract.cache.pairs.items())


def _unfollowed(inputs: Mapping[str, Dims], roles: Roles, carried: Collection[str]) -> list[str]:
    """Inputs in which no position is followed, since their axes are unknown."""
    notes = []
    followed = {*roles.tokens, *roles.past, *roles.total, *roles.fixed, *carried}
    for name, dims in inputs.items():
        if name in followed:
            continue
        loose = [axis for axis, dim in enumerate(dims[1:], 1) if not isinstance(dim, int)]
        if loose and not (belongs_to_cache(name) or is_encoders(name, dims)):
            notes.append(
                f"input {name!r}: axis {loose[0]} is dynamic and not known to hold tokens; if it "
                f"does, say --tokens-axis {name}={loose[0]}"
            )
    return notes


def _named_tokens(inputs: Mapping[str, Dims], path: Path) -> dict[str, int]:
    """Token inputs by their names and dims.

    Raises:
        UsageError: There are none, or it could be one or the other.
    """
    found: dict[str, int] = {}
    unclear: list[str] = []
    for name, dims in inputs.items():
        if belongs_to_cache(name) or is_mask(name):
            continue
        axis = token_axis_by_name(name, dims)
        named = [at for at, dim in enumerate(dims) if dim in TOKEN_DIMS]
        if axis is None and len(named) == 1:
            axis = named[0]
        if axis is None:
            unclear += [f"{name}={at}" for at in named]
        elif name in found or axis < len(dims):
            found[name] = axis
    # Queries and keys may have dims of their own, and positions follow the tokens.
    leading = {name: axis for name, axis in found.items() if name not in ATTENTION | POSITIONS}
    dims_of = {inputs[name][axis] for name, axis in leading.items()}
    if len({dim for dim in dims_of if isinstance(dim, str)}) > 1:
        unclear = [f"{name}={axis}" for name, axis in leading.items()]
    elif set(found) - POSITIONS:
        return found
    if len(unclear) > 1:
        raise UsageError(
            f"`tokens_axis` must pick the tokens of {path.name} out of several candidates, got "
            f"{', '.join(unclear)}. For example --tokens-axis {unclear[0]}"
        )
    listed = ", ".join(f"{name} {dims}" for name, dims in inputs.items())
    example = next(iter(inputs), "x")
    raise UsageError(
        f"`tokens_axis` must say which axis of {path.name} the tokens lie along, got nothing and "
        f"the names do not tell: {listed or 'it has no inputs'}. For example "
        f"--tokens-axis {example}=1"
    )


def _sharing(tokens: dict[str, int], inputs: Mapping[str, Dims]) -> dict[str, int]:
    """`tokens` and the inputs with an axis of the same name: they run along the tokens too."""
    words = {inputs[name][axis] for name, axis in tokens.items()}
    for name, dims in inputs.items():
        shared = [at for at, dim in enumerate(dims) if isinstance(dim, str) and dim in words]
        if shared and not is_mask(name) and not belongs_to_cache(name):
            tokens.setdefault(name, shared[0])
    return tokens


def _past_axis(name: str, dims: Dims, tokens: Mapping[str, int]) -> int | None:
    if name in tokens or not belongs_to_cache(name):
        return None
    named = [axis for axis, dim in enumerate(dims) if dim in PAST_DIMS]
    if named:
        return named[0]
    return {4: 2, 3: 1, 5: 3}.get(len(dims))


def _held_by_all(shape: tuple[int, ...], axis: int, past: int) -> NDArray[Any]:
    return np.full(shape, past)


def _watched(feeder: Feeder) -> dict[str, int]:
    axes = {tensor.name: feeder.token_axis(tensor) for tensor in feeder.contract.outputs}
    return {name: axis for name, axis in axes.items() if axis is not None}


def _dims(value: onnx.ValueInfoProto) -> Dims:
    return [
        # torch writes some sizes as names.
        int(dim.dim_param)
        if dim.dim_param.isdigit()
        else (dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None))
        for dim in value.type.tensor_type.shape.dim
    ]


def _tensor(value: onnx.ValueInfoProto, dims: tuple[str | int, ...]) -> TensorContract:
    kind = value.type.tensor_type.elem_type
    if not value.type.HasField("tensor_type") or kind not in _KINDS:
        raise UsageError(
            f"`path` must have tensors of numbers as inputs and outputs, got {value.name!r} of "
            f"another type. Such a model cannot be fed here."
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind).name
    return TensorContract(name=value.name, dtype=dtype, dims=dims)


def _check_names(argument: str, given: Mapping[str, int], known: Mapping[str, Any]) -> None:
    for name, axis in given.items():
        if name not in known:
            raise UsageError(f"`{argument}` must name one of {list(known)}, got {name!r}.")
        if not 0 <= axis < max(1, len(known[name])):
            raise UsageError(
                f"`{argument}[{name!r}]` must be an axis of {known[name]}, got {axis}."
            )


def with_outputs(interface: Interface, axes: Mapping[str, int]) -> Interface:
    """`interface` with the token axes of outputs found by running it."""
    contract = interface.feeder.contract
    outputs = tuple(
        replace(
            tensor,
            dims=tuple(
                TOKENS if axes.get(tensor.name) == axis else dim
                for axis, dim in enumerate(tensor.dims)
            ),
        )
        for tensor in contract.outputs
    )
    feeder = replace(interface.feeder, contract=replace(contract, outputs=outputs))
    return replace(interface, feeder=feeder, outputs={**interface.outputs, **axes}, unplaced=())
