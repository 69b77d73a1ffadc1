"""Which inputs of a graph hold tokens, which hold the past, which are fixed, which outputs count.

For our own models the contract says so. For anyone's, names and dims of the ecosystem do
(`input_ids`, `attention_mask`, `past_key_values.0.key`, `q`, `sequence_length`, …); where they do
not, the caller is asked, never guessed for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from causal_attn.contract import Contract, TensorContract
from causal_attn.errors import UsageError
from causal_attn.verify import influence
from causal_attn.verify.feeds import Feeder, Fixed, Sizes
from causal_attn.verify.vocabulary import integer_bounds

__all__ = ["Interface", "discover", "from_contract"]

TOKENS, PAST, BATCH = "tokens", "past_tokens", "batch"
TOTAL = f"{PAST} + {TOKENS}"

_TOKEN_DIMS = {
    "tokens", "sequence_length", "seq_length", "seq_len", "sequence", "seq", "num_tokens", "T",
    "decoder_sequence_length", "input_length", "seqlen", "q_tokens", "length", "time",
}  # fmt: skip
_PAST_DIMS = {"past_tokens", "past_sequence_length", "past_seq_len", "past_length", "past_seq"}

_TOKEN_AXES = {
    "input_ids": 1, "decoder_input_ids": 1, "inputs_embeds": 1, "hidden_states": 1,
}  # fmt: skip
_ATTENTION = {"q", "k", "v", "query", "key", "value", "Q", "K", "V"}
_POSITIONS = {"position_ids", "cache_position", "positions"}
_MASKS = {"attention_mask", "input_mask"}
_PAST_INPUT = re.compile(r"past.*(key|value)|(key|value).*(past|cache)|past_\d+|\bcache\b", re.I)
_PRESENT = re.compile(r"present|new_key|new_value|key_cache|value_cache", re.I)


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
        cache: Pairs of a past input and the present output that continues it.
        notes: What was left out and why.
    """

    feeder: Feeder
    tokens: Mapping[str, int]
    past: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, influence.Known] = field(default_factory=dict)
    cache: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fixed_tokens(self) -> int | None:
        """The number of tokens, if the graph has only one."""
        return self.feeder.pinned.get(TOKENS)


def from_contract(contract: Contract, model: onnx.ModelProto) -> Interface:
    """The interface of a model of ours."""
    feeder = Feeder(contract=contract, bounds=integer_bounds(model.graph))
    tokens: dict[str, int] = {}
    past: dict[str, int] = {}
    total: dict[str, int] = {}
    for tensor in contract.inputs:
        for axis, dim in enumerate(tensor.dims):
            if dim == contract.tokens:
                tokens.setdefault(tensor.name, axis)
            elif dim == PAST:
                past.setdefault(tensor.name, axis)
            elif isinstance(dim, str) and contract.tokens in re.findall(r"\w+", dim):
                total.setdefault(tensor.name, axis)
    names = [tensor.name for tensor in contract.outputs]
    return Interface(
        feeder=feeder,
        tokens=tokens,
        past=past,
        total={name: axis for name, axis in total.items() if name not in tokens},
        outputs=_watched(feeder),
        cache=_pairs(past, names),
    )


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
    tokens = dict(tokens_axis or _token_inputs(inputs, path))
    past = {
        name: axis for name, dims in inputs.items() if (axis := _past_axis(name, dims, tokens))
    }
    roles = _Roles(inputs, tokens, past)
    contract = Contract(
        inputs=tuple(
            _tensor(value, roles.input_dims(value.name))
            for value in model.graph.input
            if value.name in inputs
        ),
        outputs=tuple(
            _tensor(value, roles.output_dims(results[value.name])) for value in model.graph.output
        ),
        form="foreign",
        opset=next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1),
    )
    feeder = Feeder(
        contract=contract,
        bounds=integer_bounds(model.graph),
        fixed=roles.fixed,
        pinned=roles.pinned,
    )
    watched = {
        t.name: axis for t in contract.outputs if (axis := feeder.token_axis(t)) is not None
    }
    notes = []
    if outputs is not None:
        watched = {name: watched.get(name, _guess_axis(results[name])) for name in outputs}
    for name in results:
        if name not in watched:
            notes.append(f"output {name!r} was not examined: it has no token axis")
    return Interface(
        feeder=feeder,
        tokens=tokens,
        past=past,
        total=roles.total,
        outputs=watched,
        known=roles.known,
        cache=_pairs(past, list(results)),
        notes=tuple(notes),
    )


class _Roles:
    """What each axis of each input is, in our words."""

    def __init__(
        self,
        inputs: Mapping[str, list[str | int | None]],
        tokens: dict[str, int],
        past: Mapping[str, int],
    ) -> None:
        self.inputs, self.tokens, self.past = inputs, tokens, past
        self.total: dict[str, int] = {}
        self.fixed: dict[str, Fixed] = {}
        self.known: dict[str, influence.Known] = {}
        self.pinned: dict[str, int] = {}
        self.names: dict[str, str] = {}
        for name, axis in tokens.items():
            self._call(inputs[name][axis], TOKENS)
        for name, axis in past.items():
            self._call(inputs[name][axis], PAST)
        for name, dims in inputs.items():
            if len(dims) > 1 and (tokens.get(name) or past.get(name) or name in _MASKS):
                self._call(dims[0], BATCH)
            self._fix(name, dims)

    def input_dims(self, name: str) -> tuple[str | int, ...]:
        dims: list[str | int] = [
            self._named(dim, f"{name}_{axis}") for axis, dim in enumerate(self.inputs[name])
        ]
        for axes, word in (
            (self.tokens, TOKENS), (self.past, PAST), (self.total, TOTAL if self.past else TOKENS),
        ):  # fmt: skip
            if name in axes:
                dims[axes[name]] = word
        return tuple(dims)

    def output_dims(self, dims: list[str | int | None]) -> tuple[str | int, ...]:
        named = [self._named(dim, f"output_{axis}") for axis, dim in enumerate(dims)]
        pinned = self.pinned.get(TOKENS)
        if pinned is not None and TOKENS not in named and named.count(pinned) == 1:
            named[named.index(pinned)] = TOKENS
        return tuple(named)

    def _call(self, dim: str | int | None, word: str) -> None:
        if isinstance(dim, int):
            self.pinned[word] = dim
        elif dim is not None:
            self.names.setdefault(dim, word)

    def _named(self, dim: str | int | None, fallback: str) -> str | int:
        if isinstance(dim, int):
            return dim
        if dim is None:
            return fallback
        if dim in self.names:
            return self.names[dim]
        swapped = re.sub(r"[A-Za-z_]\w*", lambda m: self.names.get(m[0], m[0]), dim)
        terms = sorted(term.strip() for term in swapped.split("+"))
        if {TOKENS, PAST} == set(terms) or dim in ("total_sequence_length", "total_seq_len"):
            return TOTAL
        return swapped if all(re.fullmatch(r"\w+", term) for term in terms) else fallback

    def _fix(self, name: str, dims: list[str | int | None]) -> None:
        """Inputs whose values follow from the call: no position is in them."""
        if name in _MASKS and len(dims) == 2:
            self.total[name] = 1
            self.fixed[name] = lambda shape, sizes: np.ones(shape, np.int64)
            self.known[name] = influence.ones
        elif name in _POSITIONS:
            axis = self.tokens.pop(name, len(dims) - 1)
            self.tokens[name] = axis
            self.fixed[name] = lambda shape, sizes: _positions(shape, axis, sizes)
            self.known[name] = influence.positions
        elif name == "token_type_ids":
            self.fixed[name] = lambda shape, sizes: np.zeros(shape, np.int64)
            self.known[name] = 0
        elif name in ("seqlens_k", "past_seq_len"):
            # GroupQueryAttention wants the total less one; past_seq_len of genai is the same.
            self.fixed[name] = lambda shape, sizes: np.full(shape, _total(sizes) - 1)
            self.known[name] = lambda shape, axis, past: np.full(shape, -1)
        elif name in ("total_sequence_length", "total_seq_len"):
            self.fixed[name] = lambda shape, sizes: np.full(shape, _total(sizes))


def _total(sizes: Sizes) -> int:
    return sizes.get(PAST, 0) + sizes[TOKENS]


def _positions(shape: tuple[int, ...], axis: int, sizes: Sizes) -> NDArray[Any]:
    return influence.positions(shape, axis, sizes.get(PAST, 0))


def _token_inputs(inputs: Mapping[str, list[str | int | None]], path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, dims in inputs.items():
        if _PAST_INPUT.search(name) or name in _MASKS:
            continue
        axis = _TOKEN_AXES.get(name)
        if name in _ATTENTION:
            axis = {2: 0, 3: 1, 4: 2}.get(len(dims))
        if name in _POSITIONS:
            axis = len(dims) - 1
        named = [at for at, dim in enumerate(dims) if dim in _TOKEN_DIMS]
        if axis is None and len(named) == 1:
            axis = named[0]
        if axis is not None and axis < len(dims):
            found[name] = axis
    if set(found) - _POSITIONS:
        # Others that share the dim run along the tokens too.
        words = {inputs[name][axis] for name, axis in found.items()}
        words = {word for word in words if isinstance(word, str)}
        for name, dims in inputs.items():
            shared = [at for at, dim in enumerate(dims) if dim in words]
            if shared and name not in _MASKS and not _PAST_INPUT.search(name):
                found.setdefault(name, shared[0])
        return found
    listed = ", ".join(f"{name} {dims}" for name, dims in inputs.items())
    example = next(iter(inputs), "x")
    raise UsageError(
        f"`tokens_axis` must say which axis of {path.name} the tokens lie along, got nothing and "
        f"the names do not tell: {listed or 'it has no inputs'}. For example "
        f"--tokens-axis {example}=1"
    )


def _past_axis(name: str, dims: list[str | int | None], tokens: Mapping[str, int]) -> int | None:
    if name in tokens or not _PAST_INPUT.search(name):
        return None
    named = [axis for axis, dim in enumerate(dims) if dim in _PAST_DIMS]
    if named:
        return named[0]
    return {4: 2, 3: 1, 5: 3}.get(len(dims))


def _watched(feeder: Feeder) -> dict[str, int]:
    axes = {tensor.name: feeder.token_axis(tensor) for tensor in feeder.contract.outputs}
    return {name: axis for name, axis in axes.items() if axis is not None}


def _guess_axis(dims: list[str | int | None]) -> int:
    return 1 if len(dims) > 1 else 0


def _pairs(past: Mapping[str, int], outputs: list[str]) -> tuple[tuple[str, str], ...]:
    """Past inputs and present outputs, by name where names agree, else in order."""
    presents = [name for name in outputs if _PRESENT.search(name)]
    keyed = {re.sub(r"present|new", "", name).strip("._"): name for name in presents}
    pairs = []
    for name in past:
        stem = re.sub(r"past_key_values|past", "", name).strip("._")
        if stem in keyed:
            pairs.append((name, keyed[stem]))
    if len(pairs) == len(past):
        return tuple(pairs)
    return tuple(zip(past, presents, strict=False)) if len(presents) == len(past) else ()


def _dims(value: onnx.ValueInfoProto) -> list[str | int | None]:
    shape = value.type.tensor_type.shape
    return [
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
        for dim in shape.dim
    ]


def _tensor(value: onnx.ValueInfoProto, dims: tuple[str | int, ...]) -> TensorContract:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
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
    return replace(interface, feeder=feeder, outputs={**interface.outputs, **axes})
