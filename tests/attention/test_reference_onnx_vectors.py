"""The reference agrees with the official vectors of ONNX Attention that causal attention covers.

onnx ships its node tests as Python that builds model, inputs and outputs on import; none of them
was written here. Each vector is run in one of two ways:

* ``whole``: the vector is causal and hides nothing else by a mask, so it is one call for each
  sequence, with past, window and key length as the vector gives them.
* ``rows``: every query sees an unbroken run of keys, causal or not. A query alone with the keys
  before ``stop`` as its past and a window of ``stop - start`` sees just the run: a decode step.

What is left is in `OUTSIDE`, and a test holds that list against the data. The operator's debug
output is compared where it holds the weights (mode 3); scores are no result of the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.backend.test.case.node as onnx_node_tests

# Only this module: loading them all costs seconds and numpy warnings of other operators.
import onnx.backend.test.case.node.attention
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from causal_attn.attention.reference import CausalAttention, attend, causal_attention, visibility

Array = NDArray[Any]

OUTSIDE = {
    # pattern of the name, without test_attention_ and _expanded -> why the reference cannot say it
    "*_attn_mask": "adds real numbers to the scores: a bias, not a visibility",
    "*_attn_mask_[34]d": "bias",
    "*_attn_mask_[34]d_causal": "bias",
    "4d_attn_mask_causal_bf16": "bias",
    "[34]d*_with_past_and_present": "bias over past and new keys",
    "4d_diff_heads_with_past_and_present_mask[34]d": "bias over past and new keys",
    "4d_gqa_with_past_and_present_fp16": "bias over past and new keys",
    "[34]d_with_past_and_present_qk_matmul*": "bias over past and new keys",
    "4d_with_qk_matmul_bias": "bias",
    "4d_with_qk_matmul_soft*": "bias",
    "4d*_padded_kv*": "bias beside key lengths",
    "local_window_ext_cache_rank*_mask": "bias beside key lengths and window",
    "4d_causal_nonpad_attn_mask_composition": "sees keys with gaps; the reference sees a run",
}
# The same names without a mask: causal or rows.
NOT_OUTSIDE = {"4d_causal_with_past_and_present"}

TOLERANCE = {
    # dtype -> rtol, atol. onnx computes the 16-bit vectors in 16 bits, the reference in float32
    # with one rounding at the end: what is allowed is the rounding of the vectors.
    "float32": (1e-6, 1e-6),
    "float16": (1e-3, 1e-3),
    "bfloat16": (8e-3, 8e-3),
}


@dataclass(frozen=True)
class Vector:
    """One official test case.

    Attributes:
        name: Without ``test_attention_``.
        attributes: Of the Attention node.
        inputs: By the operator's input name; absent ones are left out.
        outputs: By the operator's output name.
    """

    name: str
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def __str__(self) -> str:
        return self.name


CASES = [
    case for case in onnx_node_tests._NodeTestCases if case.name.startswith("test_attention_")
]


def _vectors() -> tuple[dict[str, Vector], dict[str, Any]]:
    """The plain vectors, and the test cases whose graph is the operator's expansion."""
    plain, expanded = {}, {}
    for case in CASES:
        name = case.name.removeprefix("test_attention_")
        if "_expanded" in name:
            expanded[name] = case
            continue
        (node,) = case.model.graph.node
        ((inputs, outputs),) = case.data_sets
        plain[name] = Vector(
            name,
            {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute},
            dict(zip(filter(None, node.input), inputs, strict=True)),
            dict(zip(filter(None, node.output), outputs, strict=True)),
        )
    return plain, expanded


PLAIN, EXPANDED = _vectors()


def _is_outside(name: str) -> bool:
    return name not in NOT_OUTSIDE and any(fnmatchcase(name, pattern) for pattern in OUTSIDE)


COVERED = [vector for name, vector in PLAIN.items() if not _is_outside(name)]


def _tensor(array: Array) -> Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(array.copy())


def _heads(tensor: Tensor, heads: int | None) -> Tensor:
    """``[batch, tokens, heads * features]`` to ``[batch, heads, tokens, features]``."""
    if tensor.dim() == 4:
        return tensor
    assert heads is not None
    return tensor.reshape(*tensor.shape[:2], heads, -1).transpose(1, 2)


def _operands(vector: Vector) -> tuple[Tensor, Tensor, Tensor, int]:
    """4-D q, k and v with the past in front, and how many tokens the past has."""
    inputs, attributes = vector.inputs, vector.attributes
    q = _heads(_tensor(inputs["Q"]), attributes.get("q_num_heads"))
    k = _heads(_tensor(inputs["K"]), attributes.get("kv_num_heads"))
    v = _heads(_tensor(inputs["V"]), attributes.get("kv_num_heads"))
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        k = torch.cat((_tensor(inputs["past_key"]), k), dim=2)
        v = torch.cat((_tensor(inputs["past_value"]), v), dim=2)
    return q, k, v, past


def _options(vector: Vector) -> dict[str, Any]:
    """Keyword arguments of every call; ONNX writes "off" as 0 or leaves the attribute out."""
    return {
        name: vector.attributes[name]
        for name in ("scale", "softcap")
        if name in vector.attributes and vector.attributes[name] != 0
    }


def _adds_a_bias(vector: Vector) -> bool:
    mask = vector.inputs.get("attn_mask")
    if mask is None or mask.dtype == np.bool_:
        return False
    return not np.isin(mask.astype(np.float32), (0, -np.inf)).all()


def _visible(vector: Vector) -> NDArray[np.bool_]:
    """``[batch, heads, q_tokens, kv_tokens]``, by the operator's definition and not by ours."""
    q, k, _, past = _operands(vector)
    batch, heads, q_tokens, _ = q.shape
    kv_tokens = k.shape[2]
    lengths = vector.inputs.get("nonpad_kv_seqlen", np.full(batch, kv_tokens))
    first = lengths - q_tokens if "nonpad_kv_seqlen" in vector.inputs else np.full(batch, past)
    query = first[:, None, None, None] + np.arange(q_tokens)[:, None]
    key = np.arange(kv_tokens)
    visible = np.broadcast_to(
        key < lengths[:, None, None, None], (batch, heads, q_tokens, kv_tokens)
    )
    if vector.attributes.get("is_causal", 0):
        visible = visible & (key <= query)
    if (left := vector.attributes.get("left_window_size", -1)) >= 0:
        visible = visible & (query - key <= left)
    if (right := vector.attributes.get("right_window_size", -1)) >= 0:
        visible = visible & (key - query <= right)
    mask = vector.inputs.get("attn_mask")
    if mask is not None:
        seen = mask if mask.dtype == np.bool_ else mask.astype(np.float32) == 0
        short = kv_tokens - seen.shape[-1]
        visible = visible & np.pad(seen, [(0, 0)] * (seen.ndim - 1) + [(0, short)])
    return visible


def _runs(visible: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """``[batch, q_tokens, 2]``: start and stop of each query's keys; None if they are no runs."""
    if (visible != visible[:, :1]).any():
        return None
    rows = visible[:, 0]
    count = rows.sum(axis=-1)
    start = np.where(count > 0, rows.argmax(axis=-1), 0)
    key = np.arange(rows.shape[-1])
    run = (key >= start[..., None]) & (key < (start + count)[..., None])
    return np.stack((start, start + count), axis=-1) if (run == rows).all() else None


def _runs_whole(vector: Vector) -> bool:
    """Whether the vector is causal attention as the reference says it, one call a sequence."""
    attributes, inputs = vector.attributes, vector.inputs
    lengths = inputs.get("nonpad_kv_seqlen")
    return bool(
        attributes.get("is_causal", 0)
        and "attn_mask" not in inputs
        and attributes.get("right_window_size", -1) <= 0
        and (lengths is None or (lengths >= _operands(vector)[0].shape[2]).all())
    )


def _call_whole(vector: Vector) -> CausalAttention:
    q, k, v, past = _operands(vector)
    left = vector.attributes.get("left_window_size", -1)
    window = left + 1 if left >= 0 else None
    lengths = vector.inputs.get("nonpad_kv_seqlen")
    if lengths is None:
        # ONNX lets keys and queries end at different positions. Keys after the last query are
        # nobody's past; keys that the last queries lack are padding, whatever it holds.
        keys, last = k.shape[2], past + q.shape[2]
        k, v = (
            pad(tensor[:, :, :last], (0, 0, 0, max(last - keys, 0)), value=torch.nan)
            for tensor in (k, v)
        )
        result = causal_attention(
            q,
            k,
            v,
            past=past,
            window=window,
            kv_lengths=torch.full(q.shape[:1], keys) if keys < last else None,
            **_options(vector),
        )
        weights = pad(result.weights[..., :keys], (0, max(keys - last, 0)))
        return CausalAttention(result.output, weights)
    results = [
        attend(
            q[[index]],
            k[[index]],
            v[[index]],
            past=int(length) - q.shape[2],
            window=window,
            kv_lengths=torch.tensor([length]),
            **_options(vector),
        )
        for index, length in enumerate(lengths)
    ]
    return CausalAttention(*(torch.cat(parts) for parts in zip(*results, strict=True)))


def _call_rows(vector: Vector) -> CausalAttention:
    q, k, v, _ = _operands(vector)
    runs = _runs(_visible(vector))
    assert runs is not None
    output = q.new_zeros(*q.shape[:3], v.shape[3])
    weights = q.new_zeros(*q.shape[:3], k.shape[2])
    for batch, query in np.ndindex(runs.shape[:2]):
        start, stop = (int(bound) for bound in runs[batch, query])
        one = slice(batch, batch + 1)
        # An empty run still needs a key to be asked about: one, of length 0.
        keys = max(stop, 1)
        result = causal_attention(
            q[one, :, query : query + 1],
            k[one, :, :keys],
            v[one, :, :keys],
            past=keys - 1,
            window=max(stop - start, 1),
            kv_lengths=torch.tensor([stop]),
            **_options(vector),
        )
        output[batch, :, query] = result.output[0, :, 0]
        weights[batch, :, query, :keys] = result.weights[0, :, 0]
    return CausalAttention(output, weights)


def _assert_close(actual: Tensor, expected: Array, what: str) -> None:
    assert str(actual.dtype).removeprefix("torch.") == expected.dtype.name
    rtol, atol = TOLERANCE[expected.dtype.name]
    np.testing.assert_allclose(
        actual.float().numpy(), expected.astype(np.float32), rtol=rtol, atol=atol, err_msg=what
    )


@pytest.mark.parametrize("vector", COVERED, ids=str)
def test_reference_agrees_with_the_official_vector(vector: Vector) -> None:
    result = _call_whole(vector) if _runs_whole(vector) else _call_rows(vector)

    output = result.output
    if vector.inputs["Q"].ndim == 3:
        output = output.transpose(1, 2).flatten(2)
    _assert_close(output, vector.outputs["Y"], "Y")
    if vector.attributes.get("qk_matmul_output_mode", 0) == 3:
        _assert_close(result.weights, vector.outputs["qk_matmul_output"], "weights")
    # What the reference calls k and v is what the operator hands on as present.
    _, k, v, _ = _operands(vector)
    if "present_key" in vector.outputs:
        _assert_close(k, vector.outputs["present_key"], "present_key")
        _assert_close(v, vector.outputs["present_value"], "present_value")


@pytest.mark.parametrize("vector", COVERED, ids=str)
def test_weights_are_zero_where_the_operator_hides(vector: Vector) -> None:
    result = _call_whole(vector) if _runs_whole(vector) else _call_rows(vector)
    assert (result.weights.float().numpy()[~_visible(vector)] == 0).all()


@pytest.mark.parametrize(
    "vector",
    [v for v in COVERED if _runs_whole(v) and "nonpad_kv_seqlen" not in v.inputs],
    ids=str,
)
def test_visibility_is_the_operators(vector: Vector) -> None:
    q, k, _, past = _operands(vector)
    left = vector.attributes.get("left_window_size", -1)
    ours = visibility(q, k, past=past, window=left + 1 if left >= 0 else None)
    np.testing.assert_array_equal(ours.numpy(), _visible(vector)[0, 0])


def test_every_vector_is_covered_or_outside() -> None:
    covered = {vector.name for vector in COVERED}
    outside = {name for name in PLAIN if _is_outside(name)}
    shipped = {case.name for case in CASES}
    assert not covered & outside
    assert {
        f"test_attention_{name}{suffix}"
        for name in covered | outside
        for suffix in ("", "_expanded")
    } == shipped
    # Guards against an onnx that loads nothing, and against a list that swallows everything.
    assert len(covered) >= 50
    assert sum(_runs_whole(vector) for vector in COVERED) >= 14


@pytest.mark.parametrize("pattern", OUTSIDE)
def test_outside_is_as_small_as_it_can_be(pattern: str) -> None:
    names = [name for name in PLAIN if fnmatchcase(name, pattern) and name not in NOT_OUTSIDE]
    assert names, "no vector has such a name"
    for name in names:
        vector = PLAIN[name]
        assert _adds_a_bias(vector) or _runs(_visible(vector)) is None, name


@pytest.mark.parametrize("name", EXPANDED)
def test_expanded_vector_has_the_data_of_the_plain_one(name: str) -> None:
    """An expanded case is another graph over the same arrays: the plain one covers it."""
    plain = PLAIN[name.removesuffix("_expanded")]
    ((inputs, outputs),) = EXPANDED[name].data_sets
    for ours, theirs in zip(
        (*plain.inputs.values(), *plain.outputs.values()), (*inputs, *outputs), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
