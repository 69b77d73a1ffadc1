"""What of a user's attention becomes the op, what stays as it is written, and that both hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from causal_attn import causal_attention
from causal_attn.attention.call import by_name
from causal_attn.attention.operator import ATTEND, attend
from causal_attn.errors import CaptureError, CheckError, InputError, UsageError
from causal_attn.export import export
from causal_attn.export.capture.sdpa import attention_calls, lower_sdpa, rewrite_sdpa
from causal_attn.export.capture.trace import capture
from causal_attn.export.dims import Dims
from causal_attn.export.target import user_target
from causal_attn.export.torch_output import ExportLog
from causal_attn.package import read_package
from causal_attn.runtime import load

FEW = (1, 2, 5, 33)
"""Lengths of an export whose subject is not the checks themselves."""

Target = nn.Module | Callable[..., Any]

SDPA = F.scaled_dot_product_attention

OTHER_MASK = "its mask is not known to be the causal one"

CROSSED = {name: {0: "batch", 2: "tokens" if name == "q" else "kv_tokens"} for name in "qkv"}


def traced(
    target: nn.Module | Callable[..., Any],
    examples: Mapping[str, Tensor],
    dims: Dims | None = None,
) -> ExportedProgram:
    return capture(user_target(target, examples, dims, dtype=None), ExportLog()).program


def calls(
    target: nn.Module | Callable[..., Any],
    examples: Mapping[str, Tensor],
    dims: Dims | None = None,
) -> dict[str, Any]:
    return attention_calls(traced(target, examples, dims))


def qkv(*shape: int) -> dict[str, Tensor]:
    return {name: torch.randn(*shape) for name in "qkv"}


def reading(module: nn.Module, *names: str) -> dict[str, Any]:
    """What the graph of the only op in `module`, called on q, k and v, passes to it."""
    dims = {name: {0: "batch", 2: "tokens"} for name in "qkv"}
    program = traced(module, qkv(2, 6, 5, 8), dims)
    (node,) = program.graph.find_nodes(op="call_function", target=ATTEND)
    given = by_name(node.args, node.kwargs)
    return {name: given[name] for name in names}


class Calls(nn.Module):
    """A function of q, k and v as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return self.function(q, k, v)


class SelfAttention(nn.Module):
    """``nn.MultiheadAttention`` with the mask that its documentation asks for."""

    def __init__(self, need_weights: bool, hint: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)
        self.need_weights, self.hint = need_weights, hint

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        result: Tensor = self.inner(
            x, x, x, attn_mask=mask, is_causal=self.hint, need_weights=self.need_weights
        )[0]
        return result


class TestWhatBecomesTheOp:
    def test_causal_sdpa_of_two_to_four_axes(self) -> None:
        def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return SDPA(q, k, v, is_causal=True)

        assert calls(causal, qkv(2, 3, 5, 8)) == {"attend": 1, "kept": {}}
        assert calls(causal, qkv(5, 8)) == {"attend": 1, "kept": {}}
        three = dict.fromkeys("qkv", ("batch", "tokens", None))
        assert calls(causal, qkv(6, 5, 8), three) == {"attend": 1, "kept": {}}

    def test_scale_and_grouped_heads_reach_it(self) -> None:
        def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return SDPA(q, k[:, :2], v[:, :2], is_causal=True, scale=2, enable_gqa=True)

        assert reading(Calls(grouped), "scale", "return_weights") == {
            "scale": 2.0,
            "return_weights": False,
        }

    @pytest.mark.parametrize("hint", [True, False])
    def test_multihead_attention_without_weights(self, hint: bool) -> None:
        dims = {"x": ("batch", "tokens", None)}
        module = SelfAttention(need_weights=False, hint=hint)
        found = calls(module, {"x": torch.randn(2, 5, 16)}, dims)
        assert found == {"attend": 1, "kept": {}}

    def test_the_reference_with_its_options(self) -> None:
        def local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return causal_attention(q, k, v, window=3, softcap=5.0, scale=0.5).output

        names = ("scale", "window", "softcap", "return_weights")
        assert list(reading(Calls(local), *names).values()) == [0.5, 3, 5.0, False]

    def test_the_reference_with_a_past_that_depends_on_lengths(self) -> None:
        def cached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return causal_attention(q, k, v, past=k.shape[2] - q.shape[2]).output

        examples = {name: torch.randn(2, 3, 4 if name == "q" else 9, 8) for name in "qkv"}
        dims = {name: {2: "tokens" if name == "q" else "total"} for name in "qkv"}
        program = traced(cached, examples, dims)
        assert attention_calls(program) == {"attend": 1, "kept": {}}
        wanted = cached(**examples)
        torch.testing.assert_close(program.module()(**examples), wanted)

    def test_the_reference_of_two_axes_with_weights(self) -> None:
        examples = qkv(5, 8)
        program = traced(lambda q, k, v: causal_attention(q, k, v), examples)
        assert attention_calls(program)["attend"] == 1
        for got, wanted in zip(
            program.module()(**examples), causal_attention(*examples.values()), strict=True
        ):
            torch.testing.assert_close(got, wanted)

    def test_the_op_itself_gives_weights_only_where_they_are_read(self) -> None:
        read = Calls(lambda q, k, v: attend(q, k, v)[:2])
        unread = Calls(lambda q, k, v: attend(q, k, v)[0])
        assert reading(read, "return_weights") == {"return_weights": True}
        assert reading(unread, "return_weights") == {"return_weights": False}


class TestWhatStays:
    @pytest.mark.parametrize(
        ("function", "reason"),
        [
            (lambda q, k, v: SDPA(q, k, v), "it is not causal"),
            (
                lambda q, k, v: SDPA(q, k, v, torch.zeros(q.shape[2], k.shape[2])),
                OTHER_MASK,
            ),
            (
                lambda q, k, v: SDPA(q, k[:, :1], v[:, :1], is_causal=True),
                "its batch or heads broadcast",
            ),
            (
                lambda q, k, v: SDPA(q[None], k[None], v[None], is_causal=True),
                "its query has 5 axes",
            ),
        ],
    )
    def test_a_call_that_the_op_cannot_say_is_named(
        self, function: Callable[..., Any], reason: str
    ) -> None:
        found = calls(function, qkv(2, 3, 5, 8))
        assert found == {"attend": 0, "kept": {f"scaled_dot_product_attention: {reason}": 1}}

    def test_lengths_that_are_equal_in_the_example_only(self) -> None:
        def crossed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return SDPA(q, k, v, is_causal=True)

        found = calls(crossed, qkv(2, 3, 5, 8), CROSSED)
        reason = "scaled_dot_product_attention: q_tokens and kv_tokens may differ"
        assert found == {"attend": 0, "kept": {reason: 1}}

    def test_a_softmax_written_by_hand_is_named(self) -> None:
        def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            visible = torch.ones(q.shape[-2], k.shape[-2]).bool().tril()
            scores = (q @ k.mT).masked_fill(~visible, float("-inf"))
            return torch.softmax(scores, -1) @ v + SDPA(q, k, v, is_causal=True)

        found = calls(by_hand, qkv(2, 3, 5, 8))
        assert found == {"attend": 1, "kept": {"softmax: written by hand": 1}}

    def test_multihead_attention_that_returns_weights(self) -> None:
        dims = {"x": ("batch", "tokens", None)}
        found = calls(SelfAttention(need_weights=True), {"x": torch.randn(2, 5, 16)}, dims)
        assert found == {"attend": 0, "kept": {"softmax: written by hand": 1}}


class TestRefusals:
    @pytest.mark.parametrize("scale", [0.0, -1.0])
    def test_scale_that_is_not_positive(self, scale: float) -> None:
        with pytest.raises(InputError, match=r"`scale` of scaled_dot_product_attention must be"):
            traced(lambda q, k, v: SDPA(q, k, v, is_causal=True, scale=scale), qkv(2, 3, 5, 8))

    def test_dropout(self) -> None:
        with pytest.raises(InputError, match=r"`dropout_p` of .* must be 0, got 0.1"):
            traced(lambda q, k, v: SDPA(q, k, v, is_causal=True, dropout_p=0.1), qkv(2, 3, 5, 8))

    def test_a_branch_on_equal_lengths(self) -> None:
        def branching(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if q.shape[2] == k.shape[2]:
                return SDPA(q, k, v, is_causal=True)
            return SDPA(q, k, v)

        with pytest.raises(CaptureError, match="only the branch taken"):
            traced(branching, qkv(2, 3, 5, 8), CROSSED)


def masks(q_tokens: int, kv_tokens: int) -> dict[str, Tensor | None]:
    visible = torch.rand(2, 1, q_tokens, kv_tokens) < 0.7
    visible[:, :, -1] = False
    return {
        "none": None,
        "bool": visible,
        "bool of one key": torch.rand(2, 4, q_tokens, 1) < 0.5,
        "float": torch.randn(q_tokens, kv_tokens),
        "float -inf": torch.zeros(2, 1, q_tokens, kv_tokens).masked_fill(~visible, -torch.inf),
    }


class TestTheLoweringThatStays:
    @pytest.mark.parametrize("mask", ["none", "bool", "bool of one key", "float", "float -inf"])
    @pytest.mark.parametrize(("q_tokens", "kv_tokens"), [(5, 5), (1, 7), (7, 3)])
    def test_it_is_torchs(self, mask: str, q_tokens: int, kv_tokens: int) -> None:
        torch.manual_seed(0)
        chosen = masks(q_tokens, kv_tokens)[mask]
        for heads, scale in itertools.product((4, 2), (None, 0.3)):
            q = torch.randn(2, 4, q_tokens, 8, dtype=torch.float64)
            k, v = torch.randn(2, 2, heads, kv_tokens, 8, dtype=torch.float64)
            options: dict[str, Any] = {"scale": scale, "enable_gqa": heads != 4}
            given = None if chosen is None else chosen
            if given is not None and given.is_floating_point():
                given = given.double()
            wanted = SDPA(q, k, v, given, **options)
            torch.testing.assert_close(lower_sdpa(q, k, v, given, **options), wanted)

    @pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8)])
    @pytest.mark.parametrize("q_tokens", [5, 3, 1])
    def test_causal_masks_are_aligned_at_the_upper_left(
        self, shape: tuple[int, ...], q_tokens: int
    ) -> None:
        q, k, v = torch.randn(3, *shape, dtype=torch.float64)
        q = q[..., :q_tokens, :]
        wanted = SDPA(q, k, v, is_causal=True)
        torch.testing.assert_close(lower_sdpa(q, k, v, is_causal=True), wanted)

    def test_a_row_that_sees_nothing_is_zeros(self) -> None:
        q, k, v = torch.randn(3, 1, 1, 4, 8)
        hidden = torch.zeros(4, 4, dtype=torch.bool)
        assert (lower_sdpa(q, k, v, hidden) == 0).all()


class Mixed(nn.Module):
    """Causal attention beside a fixed memory of which each token may be barred.

    The mask has a key axis of 1, which ONNX Attention-25 pads with ``-inf`` instead of repeating,
    and barred tokens are rows that see no key.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.keys, self.values = (nn.Parameter(torch.randn(1, 2, 6, 8)) for _ in range(2))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        recalled = SDPA(q, self.keys, self.values, attn_mask=allowed)
        return SDPA(q, k, v, is_causal=True) + recalled


class TestExports:
    def test_the_form_is_the_ops_where_there_is_one(self, tmp_path: Path) -> None:
        package = export(
            SelfAttention(need_weights=False),
            tmp_path / "attention",
            form="attention",
            example_inputs={"x": torch.randn(2, 5, 16)},
            dims={"x": ("batch", "tokens", None)},
            lengths=FEW,
        )
        (variant,) = package.variants
        assert variant.contract.form == "attention"
        assert variant.contract.choice == {"captured": {"attend": 1, "kept": {}}}
        assert variant.certificate is not None
        assert variant.certificate.verdict == "conditional"

    def test_attention_that_is_not_captured_sets_no_condition(self, tmp_path: Path) -> None:
        export(
            SelfAttention(need_weights=True),
            tmp_path / "captured",
            example_inputs={"x": torch.randn(2, 5, 16)},
            dims={"x": ("batch", "tokens", None)},
            lengths=FEW,
        )
        (variant,) = read_package(tmp_path / "captured").variants
        assert variant.contract.form == "captured"
        assert variant.contract.choice["captured"]["kept"] == {"softmax: written by hand": 1}
        assert variant.certificate is not None
        assert variant.certificate.verdict == "causal"

    def test_lengths_that_differ(self, tmp_path: Path) -> None:
        def crossed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return SDPA(q, k, v, is_causal=True) + SDPA(q, q, q, is_causal=True)

        export(
            crossed,
            tmp_path / "crossed",
            example_inputs={n: torch.randn(2, 3, 5 if n == "q" else 7, 8) for n in "qkv"},
            dims=CROSSED,
            lengths=FEW,
        )
        with load(tmp_path / "crossed") as session:
            assert session.contract.choice["captured"]["attend"] == 1
            assert sum(session.contract.choice["captured"]["kept"].values()) == 1
            for q_tokens, kv_tokens in ((1, 1), (1, 9), (4, 9), (9, 4)):
                q, k, v = (torch.randn(1, 3, n, 8) for n in (q_tokens, kv_tokens, kv_tokens))
                got = session(q.numpy(), k.numpy(), v.numpy()).output
                np.testing.assert_allclose(got, crossed(q, k, v), rtol=2e-5, atol=2e-6)

    def test_names_that_torch_export_changes(self, tmp_path: Path) -> None:
        def causal(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
            return SDPA(Q, K, V, is_causal=True)

        dims = {name: {0: "batch", 2: "tokens"} for name in "QKV"}
        examples = {name: torch.randn(2, 3, 5, 8) for name in "QKV"}
        export(causal, tmp_path / "named", example_inputs=examples, dims=dims, lengths=FEW)
        with load(tmp_path / "named") as session:
            assert [tensor.name for tensor in session.contract.inputs] == ["Q", "K", "V"]
            assert session.contract.inputs[1].dims == ("batch", 3, "tokens", 8)

    @pytest.mark.parametrize("opset", [18, 25])
    def test_masks_of_one_key_and_rows_without_any(self, opset: int, tmp_path: Path) -> None:
        module = Mixed()
        examples = qkv(2, 2, 5, 8) | {"allowed": torch.rand(2, 1, 5, 1) < 0.5}
        dims = {name: {0: "batch", 2: "tokens"} for name in examples}
        package = export(
            module,
            tmp_path / "mixed",
            example_inputs=examples,
            dims=dims,
            opset=opset,
            lengths=FEW,
        )
        assert package.variants[0].contract.choice["captured"] == {
            "attend": 1,
            "kept": {f"scaled_dot_product_attention: {OTHER_MASK}": 1},
        }
        with load(tmp_path / "mixed") as session:
            got = session.run({name: tensor.numpy() for name, tensor in examples.items()})
        wanted = module(**examples).detach()
        np.testing.assert_allclose(got["output"], wanted, rtol=2e-5, atol=2e-6)

    def test_a_finite_mask_written_by_hand_is_found(self, tmp_path: Path) -> None:
        def leaking(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(1)
            return torch.softmax(q @ k.mT - 1e4 * hidden, -1) @ v

        with pytest.raises(CheckError, match="it sees the future"):
            export(leaking, tmp_path / "leaking", example_inputs=qkv(2, 3, 5, 8), lengths=(2, 13))
        assert not (tmp_path / "leaking").exists()

    def test_float16_scores_that_lie_far_apart(self, tmp_path: Path) -> None:
        def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return SDPA(q, k, v, is_causal=True)

        export(
            causal, tmp_path / "half", example_inputs=qkv(2, 3, 5, 8), dtype="float16", lengths=FEW
        )
        # Scores of -125,000 and 125,000: the future wins against any mask that float16 can add.
        q = np.full((1, 1, 2, 8), 200, np.float16)
        k = np.stack([np.full((1, 1, 8), -200), np.full((1, 1, 8), 200)], 2).astype(np.float16)
        v = np.array([1, 2], np.float16).repeat(8).reshape(1, 1, 2, 8)
        with load(tmp_path / "half") as session:
            heads = session.contract.inputs[0].dims[1]
            shape = (1, heads if isinstance(heads, int) else 3, 2, 8)
            q, k, v = (np.broadcast_to(array, shape).copy() for array in (q, k, v))
            output = session(q, k, v).output
        assert (output[:, :, 0] == 1).all()
        assert (output[:, :, 1] == 2).all()


def bits(tokens: Any) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool)


class Masked(nn.Module):
    def __init__(self, mask: Callable[..., Tensor], buffer: Tensor | None) -> None:
        super().__init__()
        self.mask = mask
        if buffer is not None:
            self.register_buffer("buffer", buffer)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        given = (self.buffer,) if hasattr(self, "buffer") else ()
        return SDPA(q, k, v, self.mask(q.shape[-2], *given))


def shorter(tokens: Any) -> Any:
    return torch.sym_min(tokens, 4096)


def written_through_a_view(mask: Tensor) -> Tensor:
    return mask[:, :1].fill_(True).expand(-1, mask.shape[0])


CAUSAL_MASKS: dict[str, tuple[Callable[..., Tensor], Tensor | None]] = {
    "lower triangle": (lambda n: bits(n).tril(), None),
    "no upper triangle": (lambda n: ~bits(n).triu(1), None),
    "floats": (lambda n: torch.full((n, n), -torch.inf).triu(1), None),
    "places": (lambda n: torch.arange(n)[:, None] >= torch.arange(n), None),
    "select": (lambda n: torch.where(bits(n).tril(), 0.0, -torch.inf)[None, None], None),
    "filled": (lambda n: torch.zeros(n, n).masked_fill(bits(n).triu(1), -torch.inf), None),
    "filled in place": (
        lambda n: torch.zeros(n, n).masked_fill_(bits(n).triu_(1), -torch.inf), None),
    "torch's own": (nn.Transformer.generate_square_subsequent_mask, None),
    "buffer": (lambda n, buffer: buffer[:, :, :n, :n], bits(64).tril()[None, None]),
    "buffer of floats": (
        lambda n, buffer: buffer[:n, :n], torch.full((64, 64), -torch.inf).triu(1)),
}  # fmt: skip

OTHER_MASKS: dict[str, tuple[Callable[..., Tensor], Tensor | None]] = {
    "a key too many": (lambda n: bits(n).tril(1), None),
    "the past": (lambda n: bits(n).triu(), None),
    "window": (lambda n: bits(n).tril() & bits(n).triu(-5000), None),
    "window of sizes": (lambda n: bits(n).tril() & bits(n).triu(-shorter(n)), None),
    "window of places": (
        lambda n: bits(n).tril() & (torch.arange(n)[:, None] - torch.arange(n) < 4096), None),
    "window in a buffer": (
        lambda n, buffer: buffer[:n, :n], bits(64).tril() & ~bits(64).tril(-60)),
    "window in a scalar": (
        lambda n: bits(n).tril()
        & (torch.arange(n)[:, None] - torch.arange(n) < torch.tensor(4096)), None),
    "window in a corner": (
        lambda n, buffer: bits(n).tril()
        & (torch.arange(n)[:, None] - torch.arange(n) < buffer[0, 0]), torch.full((64, 64), 4096)),
    "narrow window beside a short constant": (
        lambda n, buffer: bits(n).tril()
        & (torch.arange(n)[:, None] - torch.arange(n) < 4) & (buffer.sum() > 0), torch.ones(3)),
    "finite": (lambda n: torch.full((n, n), -1e9).triu(1), None),
    "lowest": (lambda n: torch.full((n, n), torch.finfo(torch.float32).min).triu(1), None),
    "written to through a view": (lambda n: written_through_a_view(bits(n).tril()), None),
    "random": (lambda n: torch.rand(n, n) * 0, None),
    "no square": (lambda n: bits(n).tril()[:1], None),
}  # fmt: skip


def masked_calls(mask: Callable[..., Tensor], buffer: Tensor | None) -> dict[str, Any]:
    examples = qkv(2, 3, 5, 8)
    tokens = Dim("tokens", max=63 if buffer is not None else None)
    program = torch.export.export(
        Masked(mask, buffer).eval(),
        tuple(examples.values()),
        dynamic_shapes={name: {2: tokens} for name in examples},
    )
    rewrite_sdpa(program)
    if attention_calls(program)["attend"]:
        q, k, v = examples.values()
        torch.testing.assert_close(program.module()(q, k, v), SDPA(q, k, v, is_causal=True))
    return attention_calls(program)


@pytest.mark.parametrize("name", CAUSAL_MASKS)
def test_a_mask_that_is_the_causal_one_at_every_length(name: str) -> None:
    assert masked_calls(*CAUSAL_MASKS[name]) == {"attend": 1, "kept": {}}


@pytest.mark.parametrize("name", OTHER_MASKS)
def test_a_mask_that_is_not_or_may_not_be(name: str) -> None:
    kept = {f"scaled_dot_product_attention: {OTHER_MASK}": 1}
    assert masked_calls(*OTHER_MASKS[name]) == {"attend": 0, "kept": kept}


@pytest.mark.parametrize("form", ["attention", "gqa", "blocked"])
def test_a_form_asked_for_attention_that_stays_as_it_is_is_refused(
    form: str, tmp_path: Path
) -> None:
    window = Masked(OTHER_MASKS["window"][0], None)
    with pytest.raises(UsageError, match=f"{form!r}: scaled_dot_product_attention: {OTHER_MASK}"):
        export(window, tmp_path / "p", form=form, example_inputs=qkv(2, 3, 5, 8))
    assert not (tmp_path / "p").exists()
