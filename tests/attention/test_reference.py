"""The reference keeps every promise of its docstring."""

from __future__ import annotations

import doctest
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import causal_attn.attention.reference
from causal_attn.attention.reference import CausalAttention, attend, causal_attention, visibility
from causal_attn.errors import CausalAttnError, InputError, SpecError

SIZES = st.integers(1, 17)
HEADS = st.integers(1, 3)
SEEDS = st.integers(0, 2**32 - 1)

repeatable = settings(derandomize=True, deadline=None, max_examples=40)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def operands(
    seed: int,
    tokens: int,
    features: int,
    *,
    batch: int = 1,
    heads: int = 1,
    kv_heads: int | None = None,
    past: int = 0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    kv_heads = heads if kv_heads is None else kv_heads
    return (
        normal(seed, batch, heads, tokens, features, dtype=dtype),
        normal(seed + 1, batch, kv_heads, past + tokens, features, dtype=dtype),
        normal(seed + 2, batch, kv_heads, past + tokens, features, dtype=dtype),
    )


def by_loops(
    q: Tensor, k: Tensor, v: Tensor, past: int = 0, **options: Any
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """One head in extended precision, one score at a time: nothing shared with the reference."""
    queries, keys, values = (tensor.numpy().astype(np.longdouble) for tensor in (q, k, v))
    scale = options.get("scale") or 1 / np.sqrt(np.longdouble(queries.shape[1]))
    softcap, window = options.get("softcap"), options.get("window") or len(keys)
    output = np.zeros((len(queries), values.shape[1]), np.longdouble)
    weights = np.zeros((len(queries), len(keys)), np.longdouble)
    for i, query in enumerate(queries):
        seen = range(max(0, past + i - window + 1), past + i + 1)
        scores = [(query * keys[j]).sum() * scale for j in seen]
        if softcap:
            scores = [softcap * np.tanh(score / softcap) for score in scores]
        total = sum(np.exp(score - max(scores)) for score in scores)
        for j, score in zip(seen, scores, strict=True):
            weights[i, j] = np.exp(score - max(scores)) / total
            output[i] += weights[i, j] * values[j]
    return output, weights


def same(ours: CausalAttention, theirs: CausalAttention, atol: float = 1e-13) -> None:
    torch.testing.assert_close(ours.output, theirs.output, rtol=0, atol=atol)
    torch.testing.assert_close(ours.weights, theirs.weights, rtol=0, atol=atol)


def test_worked_example() -> None:
    q = k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    v = torch.tensor([[2.0, 0.0], [0.0, 4.0], [2.0, 2.0]], dtype=torch.float64)
    output, weights = causal_attention(q, k, v)

    one, two = math.exp(1 / math.sqrt(2)), math.exp(2 / math.sqrt(2))
    first, second = 1 / (1 + one), one / (1 + one)
    low, high = one / (2 * one + two), two / (2 * one + two)
    expected_weights = torch.tensor(
        [[1, 0, 0], [first, second, 0], [low, low, high]], dtype=torch.float64
    )
    expected_output = torch.tensor(
        [[2, 0], [2 * first, 4 * second], [2 * low + 2 * high, 4 * low + 2 * high]],
        dtype=torch.float64,
    )
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-15)
    torch.testing.assert_close(output, expected_output, rtol=0, atol=1e-15)


def test_docstring_examples() -> None:
    results = doctest.testmod(causal_attn.attention.reference, extraglobs={"torch": torch})
    assert results.attempted == 5
    assert results.failed == 0


# Properties


@repeatable
@given(seed=SEEDS, tokens=SIZES, features=SIZES, batch=HEADS, heads=HEADS)
def test_rows_sum_to_one_and_the_future_weighs_exactly_nothing(
    seed: int, tokens: int, features: int, batch: int, heads: int
) -> None:
    q, k, v = operands(seed, tokens, features, batch=batch, heads=heads)
    output, weights = causal_attention(q, k, v)
    assert output.shape == (batch, heads, tokens, features)
    assert weights.shape == (batch, heads, tokens, tokens)
    assert (weights >= 0).all()
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@repeatable
@given(
    seed=SEEDS,
    tokens=st.integers(2, 17),
    features=SIZES,
    size=st.sampled_from([1e-3, 1.0, 1e4, 1e30]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
    data=st.data(),
)
def test_earlier_rows_are_bitwise_blind_to_the_future(
    seed: int, tokens: int, features: int, size: float, dtype: torch.dtype, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, tokens - 1))
    q, k, v = operands(seed, tokens, features, dtype=dtype)
    changed = [tensor.clone() for tensor in (q, k, v)]
    for index, tensor in enumerate(changed):
        tensor[:, :, cut:] += size * normal(seed + 10 + index, tokens - cut, features, dtype=dtype)
    before, after = causal_attention(q, k, v), causal_attention(*changed)
    assert torch.equal(before.output[:, :, :cut], after.output[:, :, :cut])
    assert torch.equal(before.weights[:, :, :cut], after.weights[:, :, :cut])
    # A change below half a bit of bfloat16 is none.
    assert size < 1 or not torch.equal(before.output, after.output)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("cut", [1, 127, 128, 256])
def test_long_rows_are_bitwise_blind_too(cut: int, dtype: torch.dtype) -> None:
    """Matrix products of this size are split into blocks and over threads."""
    q, k, v = operands(0, 257, 64, heads=2, dtype=dtype)
    before = causal_attention(q, k, v)
    k[:, :, cut:], v[:, :, cut:] = -100 * k[:, :, cut:], 6e4 * v[:, :, cut:].sign()
    after = causal_attention(q, k, v)
    assert torch.equal(before.output[:, :, :cut], after.output[:, :, :cut])
    assert not torch.equal(before.output[:, :, cut:], after.output[:, :, cut:])


@repeatable
@given(seed=SEEDS, tokens=SIZES, features=SIZES, data=st.data())
def test_a_prefix_alone_gives_the_rows_it_gives_in_the_whole(
    seed: int, tokens: int, features: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, tokens))
    q, k, v = operands(seed, tokens, features)
    whole = causal_attention(q, k, v)
    prefix = causal_attention(q[:, :, :cut], k[:, :, :cut], v[:, :, :cut])
    same(prefix, CausalAttention(whole.output[:, :, :cut], whole.weights[:, :, :cut, :cut]))


@repeatable
@given(seed=SEEDS, tokens=SIZES, features=SIZES, batch=st.integers(2, 4), heads=HEADS)
def test_a_sequence_alone_gives_what_it_gives_in_a_batch(
    seed: int, tokens: int, features: int, batch: int, heads: int
) -> None:
    q, k, v = operands(seed, tokens, features, batch=batch, heads=heads)
    together = causal_attention(q, k, v)
    for b in range(batch):
        for h in range(heads):
            alone = causal_attention(q[b, h], k[b, h], v[b, h])
            same(alone, CausalAttention(together.output[b, h], together.weights[b, h]))


@repeatable
@given(
    seed=SEEDS,
    tokens=SIZES,
    features=SIZES,
    window=st.none() | st.integers(1, 20),
    softcap=st.none() | st.floats(0.5, 50),
    data=st.data(),
)
def test_split_at_any_token_the_past_gives_the_whole(
    seed: int,
    tokens: int,
    features: int,
    window: int | None,
    softcap: float | None,
    data: st.DataObject,
) -> None:
    past = data.draw(st.integers(0, tokens - 1))
    q, k, v = operands(seed, tokens, features)
    whole = causal_attention(q, k, v, window=window, softcap=softcap)
    rest = causal_attention(q[:, :, past:], k, v, past=past, window=window, softcap=softcap)
    same(rest, CausalAttention(whole.output[:, :, past:], whole.weights[:, :, past:]))


@repeatable
@given(
    seed=SEEDS,
    tokens=SIZES,
    past=st.integers(0, 9),
    features=SIZES,
    window=st.none() | st.integers(1, 30),
    softcap=st.none() | st.floats(0.1, 50),
    scale=st.none() | st.floats(1e-3, 3),
)
def test_float64_is_exact(
    seed: int,
    tokens: int,
    past: int,
    features: int,
    window: int | None,
    softcap: float | None,
    scale: float | None,
) -> None:
    """Scale and softcap kept as float32 would be wrong by 1e-8, an other window by everything."""
    q, k, v = operands(seed, tokens, features, past=past)
    ours = causal_attention(q, k, v, past=past, window=window, softcap=softcap, scale=scale)
    output, weights = by_loops(
        q[0, 0], k[0, 0], v[0, 0], past, window=window, softcap=softcap, scale=scale
    )
    # A score up to about 50 is rounded to 50 * 2**-53 before exp makes that a relative error.
    np.testing.assert_allclose(ours.weights[0, 0], weights.astype(float), rtol=0, atol=2e-14)
    np.testing.assert_allclose(ours.output[0, 0], output.astype(float), rtol=0, atol=5e-14)


@repeatable
@given(seed=SEEDS, tokens=SIZES, features=SIZES, kv_heads=HEADS, group=HEADS)
def test_shared_heads_equal_repeated_ones(
    seed: int, tokens: int, features: int, kv_heads: int, group: int
) -> None:
    q, k, v = operands(seed, tokens, features, heads=kv_heads * group, kv_heads=kv_heads)
    grouped = causal_attention(q, k, v)
    for head in range(kv_heads * group):
        alone = causal_attention(q[0, head], k[0, head // group], v[0, head // group])
        same(alone, CausalAttention(grouped.output[0, head], grouped.weights[0, head]))


@repeatable
@given(
    seed=SEEDS,
    features=SIZES,
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    garbage=st.sampled_from([math.nan, math.inf, -math.inf, 1e300]),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_padding_reaches_nothing_whatever_it_holds(
    seed: int, features: int, lengths: list[int], garbage: float, dtype: torch.dtype
) -> None:
    q, k, v = operands(seed, 9, features, batch=len(lengths), heads=2, kv_heads=1)
    for b, length in enumerate(lengths):
        k[b, :, length:] = v[b, :, length:] = garbage
    output, weights = causal_attention(q, k, v, kv_lengths=torch.tensor(lengths, dtype=dtype))
    assert output.isfinite().all()
    assert weights.isfinite().all()
    for b, length in enumerate(lengths):
        assert (weights[b, :, :, length:] == 0).all()
        if length == 0:
            assert (output[b] == 0).all()
            continue
        alone = causal_attention(q[[b], :, :length], k[[b], :, :length], v[[b], :, :length])
        same(
            alone,
            CausalAttention(output[[b], :, :length], weights[[b], :, :length, :length]),
        )


def test_a_row_whose_window_holds_only_padding_is_zeros() -> None:
    q, k, v = operands(0, 6, 4)
    output, weights = causal_attention(q, k, v, window=2, kv_lengths=torch.tensor([3]))
    assert (weights[0, 0, 4:] == 0).all()
    assert (output[0, 0, 4:] == 0).all()
    # Row 3 still sees key 2, its window is keys 2 and 3.
    assert weights[0, 0, 3].tolist() == [0, 0, 1, 0, 0, 0]


def test_empty_rows_have_no_gradient_and_no_nan_in_it() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in operands(0, 3, 4, batch=2))
    output, _ = causal_attention(q, k, v, kv_lengths=torch.tensor([0, 2]))
    for gradient in torch.autograd.grad(output.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert (gradient[0] == 0).all()
        assert gradient[1].any()


def test_garbage_in_padding_reaches_no_gradient() -> None:
    """The mask alone keeps NaN out of the output; 0 * NaN in the backward pass is NaN again."""
    q, k, v = operands(0, 4, 4)
    k[:, :, 2:] = v[:, :, 2:] = math.nan
    q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
    output, _ = causal_attention(q, k, v, kv_lengths=torch.tensor([2]))
    for gradient in torch.autograd.grad(output.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("score", [1e5, 1e15, 1e30])
def test_the_future_stays_hidden_when_the_past_scores_far_below_it(score: float) -> None:
    """A finite mask constant would be the highest score of the row."""
    q = torch.ones(3, 1)
    k = torch.tensor([[-score], [-score], [score]])
    v = torch.tensor([[1.0], [3.0], [1e6]])
    output, weights = causal_attention(q, k, v)
    assert weights.tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]]
    assert output.tolist() == [[1], [2], [1e6]]


# Values of the options


@pytest.mark.parametrize(
    ("past", "window", "expected"),
    [
        (0, None, ["100", "110", "111"]),
        (2, None, ["11100", "11110", "11111"]),
        (0, 1, ["100", "010", "001"]),
        (0, 2, ["100", "110", "011"]),
        (2, 2, ["01100", "00110", "00011"]),
        (2, 99, ["11100", "11110", "11111"]),
    ],
)
def test_visibility_is_the_drawn_matrix(
    past: int, window: int | None, expected: list[str]
) -> None:
    q, k, v = operands(0, 3, 4, past=past)
    matrix = torch.tensor([[digit == "1" for digit in row] for row in expected])
    assert torch.equal(visibility(q, k, past=past, window=window), matrix)
    _, weights = causal_attention(q, k, v, past=past, window=window)
    assert torch.equal(weights[0, 0] > 0, matrix)


def test_visibility_with_lengths_has_a_matrix_for_each_sequence() -> None:
    q, k, _ = operands(0, 2, 4, batch=2, past=1)
    seen = visibility(q, k, past=1, kv_lengths=torch.tensor([1, 3]))
    assert seen.shape == (2, 1, 2, 3)
    assert seen[:, 0].int().tolist() == [[[1, 0, 0], [1, 0, 0]], [[1, 1, 0], [1, 1, 1]]]


def test_scale_is_a_factor_on_the_scores() -> None:
    q, k, v = operands(0, 5, 16)
    default = causal_attention(q, k, v)
    same(causal_attention(q, k, v, scale=0.25), default, atol=1e-15)
    same(causal_attention(3 * q, k, v, scale=0.25), causal_attention(q, k, v, scale=0.75))


def test_softcap_bounds_the_scores_and_comes_before_the_mask() -> None:
    """A softcap after the mask turns -inf into -softcap: the future is attended to."""
    q, k, v = operands(0, 8, 4)
    _, weights = causal_attention(1e3 * q, k, v, softcap=0.5)
    assert (weights.triu(1) == 0).all()
    # Scores within ±0.5 keep the weights of a row within a factor of e.
    last = weights[0, 0, -1]
    assert last.max() / last.min() <= math.e
    same(causal_attention(q, k, v, softcap=1e9), causal_attention(q, k, v), atol=1e-12)


def test_a_sink_is_one_more_key_of_its_head_whose_value_is_zero() -> None:
    q, k, v = operands(0, 5, 4, heads=2, past=3)
    sinks = torch.tensor([-1.0, 40.0], dtype=q.dtype)
    output, weights = causal_attention(q, k, v, past=3, softcap=2.0, window=3, sinks=sinks)
    plain = causal_attention(q, k, v, past=3, softcap=2.0, window=3)
    scores = 2 * torch.tanh(q @ k.transpose(-2, -1) / 2 / 2)
    shown = scores.exp() * (plain.weights > 0)
    total = shown.sum(-1, keepdim=True) + sinks.exp()[:, None, None]
    torch.testing.assert_close(weights, shown / total, rtol=0, atol=1e-15)
    torch.testing.assert_close(output, shown / total @ v, rtol=0, atol=1e-15)
    assert weights[0, 1].sum(-1).max() < 1e-15 < 0.5 < weights[0, 0].sum(-1).min()


def test_a_sink_of_minus_infinity_is_none() -> None:
    q, k, v = operands(0, 5, 4)
    sinks = torch.full((1,), -math.inf, dtype=q.dtype)
    same(causal_attention(q, k, v, sinks=sinks), causal_attention(q, k, v), atol=0)


def test_values_may_have_features_of_their_own() -> None:
    q, k, v = operands(0, 5, 4)
    wide = torch.cat((v, 2 * v), dim=-1)
    output, _ = causal_attention(q, k, wide)
    expected = causal_attention(q, k, v).output
    torch.testing.assert_close(output, torch.cat((expected, 2 * expected), dim=-1))


# Precision


@pytest.mark.parametrize("tokens", [1, 2, 17, 64, 129])
@pytest.mark.parametrize("features", [3, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_error_is_at_most_twice_plain_torchs(
    dtype: torch.dtype, features: int, tokens: int
) -> None:
    q, k, v = operands(7, tokens, features, heads=2, dtype=dtype)
    oracle = causal_attention(q.double(), k.double(), v.double())
    ours = causal_attention(q, k, v)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-2, -1) / math.sqrt(features)).masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    plain = CausalAttention(weights @ v, weights)
    for name in CausalAttention._fields:
        result, exact = getattr(ours, name), getattr(oracle, name)
        assert result.dtype == dtype
        error = (result.double() - exact).abs().max()
        plain_error = (getattr(plain, name).double() - exact).abs().max()
        rounding = exact.abs().max() * torch.finfo(dtype).eps / 2
        assert error <= 2 * plain_error + rounding
        if dtype != torch.float32:
            # Computed in float32, rounded once: the rounding is all there is.
            assert error <= 1.01 * rounding


def test_half_scores_beyond_the_range_of_half_stay_finite() -> None:
    q = torch.full((1, 1, 2, 64), 200.0, dtype=torch.float16)
    output, weights = causal_attention(q, q, q)
    assert weights[0, 0].tolist() == [[1, 0], [0.5, 0.5]]
    assert (output == 200).all()


def test_gradients_are_those_of_the_function() -> None:
    q, k, v = (
        tensor.requires_grad_() for tensor in operands(3, 3, 2, heads=2, kv_heads=1, past=2)
    )

    def function(q: Tensor, k: Tensor, v: Tensor) -> CausalAttention:
        lengths = torch.tensor([4])
        return causal_attention(q, k, v, past=2, window=3, softcap=2.0, kv_lengths=lengths)

    assert torch.autograd.gradcheck(function, (q, k, v))


def test_attend_is_the_same_function_without_the_checks() -> None:
    q, k, v = operands(0, 4, 8, batch=2, heads=2, kv_heads=1, past=3)
    options: dict[str, Any] = {
        "past": 3,
        "window": 5,
        "softcap": 3.0,
        "scale": 0.3,
        "kv_lengths": torch.tensor([4, 7]),
    }
    same(attend(q, k, v, **options), causal_attention(q, k, v, **options), atol=0)


def test_inputs_are_left_as_they_were() -> None:
    q, k, v = operands(0, 4, 8, batch=2)
    copies = [tensor.clone() for tensor in (q, k, v)]
    causal_attention(q, k, v, kv_lengths=torch.tensor([2, 4]))
    assert all(torch.equal(*pair) for pair in zip((q, k, v), copies, strict=True))


# Refusals

F = torch.zeros(1, 2, 3, 4)
REFUSALS: dict[str, tuple[dict[str, Any], type[CausalAttnError], str]] = {
    "q is no tensor": ({"q": [[1.0]]}, InputError, r"`q` must be a torch.Tensor, got list."),
    "v is an array": ({"v": np.zeros(3)}, InputError, r"`v` must be a torch.Tensor, got ndarray."),
    "k of integers": (
        {"k": F.long()},
        InputError,
        r"`k` must be floating point, got torch.int64. Convert it first.",
    ),
    "complex": (
        {"q": F.to(torch.complex64)},
        InputError,
        r"`q` must be floating point, got torch.complex64",
    ),
    "3-D": (
        {"q": F[0]},
        InputError,
        r"`q` must be \[tokens, features\] or \[batch, heads, tokens, features\], got shape "
        r"\[2, 3, 4\].",
    ),
    "ranks differ": (
        {"k": F[0, 0]},
        InputError,
        r"`k` must have the rank, dtype and device of `q` \(4-D, torch.float32, cpu\), got 2-D, ",
    ),
    "dtypes differ": (
        {"v": F.double()},
        InputError,
        r"`v` must have the rank.*got 4-D, .*64, cpu",
    ),
    "devices differ": ({"v": F.to("meta")}, InputError, r"`v` must have the rank.*, meta\."),
    "no tokens": (
        {"q": F[:, :, :0]},
        InputError,
        r"`q` must have no empty dim, got shape \[1, 2, 0, 4\]: attention over zero tokens",
    ),
    "past < 0": ({"past": -1}, InputError, r"`past` must be an integer >= 0, got -1."),
    "past is a bool": ({"past": True}, InputError, r"`past` must be .*, got True."),
    "past is a float": ({"past": 1.0}, InputError, r"`past` must be .*, got 1.0."),
    "v has other tokens": (
        {"v": torch.zeros(1, 2, 5, 4)},
        InputError,
        r"`v` must have the shape of `k`, got \[1, 2, 5, 4\] for \[1, 2, 3, 4\].",
    ),
    "2-D v has other features": (
        {"q": F[0, 0], "k": F[0, 0], "v": F[0, 0, :, :2]},
        InputError,
        r"`v` must have the shape of `k`, got \[3, 2\] for \[3, 4\].",
    ),
    "features differ": (
        {"q": torch.zeros(1, 2, 3, 5)},
        InputError,
        r"`k` must have the features of `q`, got 4 for 5.",
    ),
    "more keys than past says": (
        {"q": F[:, :, :1]},
        InputError,
        r"`k` must have past \+ q_tokens = 0 \+ 1 tokens, got 3. Say how many tokens came before "
        r"with past=…; lengths are never aligned silently.",
    ),
    "fewer keys than past says": ({"past": 1}, InputError, r"= 1 \+ 3 tokens, got 3."),
    "batches differ": (
        {"q": torch.zeros(2, 2, 3, 4)},
        InputError,
        r"`k` must have the batch of `q`, 2, got 1.",
    ),
    "heads do not divide": (
        {"q": torch.zeros(1, 3, 3, 4)},
        InputError,
        r"`k` must have a number of heads that divides those of `q`, 3, got 2.",
    ),
    "lengths are a list": (
        {"kv_lengths": [3]},
        InputError,
        r"`kv_lengths` must be a torch.Tensor, got list. Make it with torch.tensor",
    ),
    "lengths of an other batch": (
        {"kv_lengths": torch.tensor([3, 3])},
        InputError,
        r"`kv_lengths` must be \[batch\], beside 4-D q, k and v, got shape \[2\] for q of",
    ),
    "lengths beside 2-D": (
        {"q": F[0, 0], "k": F[0, 0], "v": F[0, 0], "kv_lengths": torch.tensor([3])},
        InputError,
        r"`kv_lengths` must be \[batch\], beside 4-D",
    ),
    "lengths are a mask": (
        {"kv_lengths": torch.tensor([True])},
        InputError,
        r"`kv_lengths` must be int32 or int64, got torch.bool: it counts keys, it is not a mask.",
    ),
    "lengths elsewhere": (
        {"kv_lengths": torch.tensor([3], device="meta")},
        InputError,
        r"`kv_lengths` must be on the device of `q`, cpu, got meta.",
    ),
    "sinks are a number": (
        {"sinks": 1.0},
        InputError,
        r"`sinks` must be a torch.Tensor, got float.",
    ),
    "sinks of other heads": (
        {"sinks": torch.zeros(3)},
        InputError,
        r"`sinks` must be \[heads\], beside 4-D q, k and v, got shape \[3\] for q of \[1, 2, 3, 4",
    ),
    "sinks beside 2-D": (
        {"q": F[0, 0], "k": F[0, 0], "v": F[0, 0], "sinks": torch.zeros(1)},
        InputError,
        r"`sinks` must be \[heads\], beside 4-D",
    ),
    "sinks of another dtype": (
        {"sinks": torch.zeros(2).double()},
        InputError,
        r"`sinks` must have the dtype and device of `q` .*, got torch.float64, cpu",
    ),
    "scale 0": ({"scale": 0}, SpecError, r"`scale` must be a finite number > 0 or None, got 0."),
    "scale < 0": ({"scale": -0.5}, SpecError, r"`scale` must be .* got -0.5."),
    "scale NaN": ({"scale": math.nan}, SpecError, r"`scale` must be .* got nan."),
    "softcap 0": ({"softcap": 0.0}, SpecError, r"`softcap` must be .* got 0.0."),
    "softcap inf": ({"softcap": math.inf}, SpecError, r"`softcap` must be .* got inf."),
    "window 0": ({"window": 0}, SpecError, r"`window` must be an integer >= 1 or None, got 0."),
    "window is a bool": ({"window": True}, SpecError, r"`window` must be .* got True."),
    "window is a float": ({"window": 2.0}, SpecError, r"`window` must be .* got 2.0."),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case: str) -> None:
    changes, error, message = REFUSALS[case]
    arguments: dict[str, Any] = {"q": F, "k": F, "v": F} | changes
    with pytest.raises(error, match=message):
        causal_attention(**arguments)
