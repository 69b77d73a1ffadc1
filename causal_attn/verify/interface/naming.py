"""What the ecosystem calls things: inputs of tokens, of the past, masks, positions, their dims.

One table a role, so that a convention that is missing is one entry away. Names decide only where
they are unambiguous; everything else is the caller's to say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ATTENTION",
    "BATCH",
    "BEAMS",
    "HAS_PAST",
    "LENGTHS",
    "PAST",
    "PAST_DIMS",
    "POSITIONS",
    "TOKENS",
    "TOKEN_DIMS",
    "TOTAL_DIMS",
    "Dims",
    "belongs_to_cache",
    "continues_cache",
    "is_encoders",
    "is_mask",
    "is_state",
    "kind_of_token",
    "pair_cache",
    "pair_some",
    "same_state",
    "token_axis_by_name",
]

Dims = list[str | int | None]
"""Of one tensor: a size, a name, or ``None`` for an axis of which nothing is said."""

TOKENS, PAST, BATCH = "tokens", "past_tokens", "batch"
"""Our own names of dims, in every contract."""

TOKEN_DIMS = {
    "tokens", "sequence_length", "seq_length", "seq_len", "sequence", "seq", "num_tokens", "T",
    "decoder_sequence_length", "input_length", "seqlen", "q_tokens", "length", "time",
}  # fmt: skip
PAST_DIMS = {"past_tokens", "past_sequence_length", "past_seq_len", "past_length", "past_seq"}
TOTAL_DIMS = {"total_sequence_length", "total_seq_len", "total_tokens", "kv_length"}

ATTENTION = {"q", "k", "v", "query", "key", "value", "Q", "K", "V"}
POSITIONS = {"position_ids", "cache_position", "positions"}
BEAMS = {"beam_idx", "beam_index", "beam_indices", "beam_ids"}
"""Inputs ``[batch]`` of the sequences whose past each sequence goes on from."""
HAS_PAST = {"use_cache_branch", "use_past"}
"""Flags that say whether there is a past: which half of a merged decoder runs."""
LENGTHS = {"past_lengths", "cache_lengths", "write_indices"}
"""Inputs ``[batch]`` of how many tokens each sequence holds before the call."""
_IDS = {"input_ids", "decoder_input_ids"}
_EMBEDDED = {"inputs_embeds", "hidden_states", "decoder_inputs_embeds"}

_CACHE = re.compile(r"past|cache|present", re.I)
_KINDS = re.compile(r"(?:^|_)token_types?(?:_ids?)?$", re.I)
_DOCUMENTS = re.compile(
    r"(?:^|_)(?:segments?|documents?|docs?|sequence|seq)(?:_(?:ids?|idx))$", re.I
)
_PART = re.compile(r"(?:^|[._])(?:past_|present_)?(keys?|values?|k|v)(?=$|[._\d])", re.I)
_ENCODER = re.compile(r"encoder|cross", re.I)
_STATE = re.compile(r"past|present|cache|state|conv|ssm|recurrent|hidden_in|hidden_out", re.I)
_HANDED = {
    "past", "present", "new", "next", "prev", "previous", "in", "out", "input", "output", "init",
    "initial", "final", "last", "updated", "cache", "old",
}  # fmt: skip
"""Words that say on which side of a call a state is."""
_PAST = re.compile(r"past.*(key|value)|(key|value).*(past|cache)|past_\d+|\bcache\b", re.I)


def token_axis_by_name(name: str, dims: Dims) -> int | None:
    """The axis of new tokens that the name of an input promises, or ``None``."""
    rank = len(dims)
    if name in _IDS or name in POSITIONS:
        return rank - 1 if rank else None
    if name in _EMBEDDED:
        return rank - 2 if rank >= 2 else None
    if name in ATTENTION:
        return {2: 0, 3: 1, 4: 2}.get(rank)
    return None


def is_mask(name: str) -> bool:
    """Whether an input says which tokens are padding."""
    return name.endswith("attention_mask") or name == "input_mask"


def kind_of_token(name: str) -> int | None:
    """The value of an input of token types, or of documents in one sequence, if all are alike.

    Types count from 0; numbers of documents from 1, 0 being padding.
    """
    if _KINDS.search(name):
        return 0
    return 1 if _DOCUMENTS.search(name) else None


def belongs_to_cache(name: str) -> bool:
    """Whether an input holds keys, values or both of earlier calls."""
    return _PAST.search(name) is not None


def continues_cache(name: str) -> bool:
    """Whether an output holds keys, values or both for later calls."""
    return _CACHE.search(name) is not None or re.match(r"new_(key|value)", name) is not None


def is_encoders(name: str, dims: Sequence[str | int | None] = ()) -> bool:
    """Whether a tensor is of an encoder: read by every call of the decoder as it is."""
    return _ENCODER.search(name) is not None or any(
        isinstance(dim, str) and dim.startswith("encoder") for dim in dims
    )


def pair_cache(past: Iterable[str], outputs: Mapping[str, Dims]) -> tuple[tuple[str, str], ...]:
    """Past inputs and the outputs that continue them, see `pair_some`.

    Where a pair is missing there is none: half a cache cannot be handed on.
    """
    past = list(past)
    pairs = pair_some(past, outputs)
    return pairs if len(pairs) == len(past) else ()


def pair_some(past: Iterable[str], outputs: Mapping[str, Dims]) -> tuple[tuple[str, str], ...]:
    """Past inputs and the outputs that continue them, as far as there is one and only one.

    Two names go together if they have the same numbers, the same part, key or value, and the same
    side, encoder or decoder, in them: ``past_key_values.0.key`` and ``present.0.key``, or
    ``input.cache.layers.0.keys`` and ``output.cache.layers.0.keys``.
    """
    past = list(past)
    signed: dict[tuple[object, ...], list[str]] = {}
    for name, dims in outputs.items():
        # A scalar beside the cache, such as a counter, has no rows.
        if len(dims) > 1 and continues_cache(name):
            signed.setdefault(_signature(name), []).append(name)
    pairs = []
    for name in past:
        found = signed.get(_signature(name), [])
        if len(found) == 1:
            pairs.append((name, found[0]))
    times = Counter(output for _, output in pairs)
    return tuple((name, output) for name, output in pairs if times[output] == 1)


def same_state(name: str, output: str) -> bool:
    """Whether an output is called as an input is, but for words such as ``past`` and ``new``."""
    return _stem(name) == _stem(output)


def is_state(name: str) -> bool:
    """Whether a name says that calls hand the tensor on."""
    return _STATE.search(name) is not None


def _stem(name: str) -> tuple[str, ...]:
    words = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return tuple(word.removesuffix("s") for word in words if word not in _HANDED)


def _signature(name: str) -> tuple[object, ...]:
    parts = _PART.findall(name.replace("past_key_values", "past").replace("key_value", "past"))
    side = "encoder" if is_encoders(name) else ""
    return (*map(int, re.findall(r"\d+", name)), parts[-1][0].lower() if parts else "", side)
