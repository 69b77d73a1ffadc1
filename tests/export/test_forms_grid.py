"""Every form on one grid of sizes: each within the error budget of the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from causal_attn.attention.numpy_reference import attention, run_spec
from causal_attn.attention.operator import attend
from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.errors import CaptureError
from causal_attn.export.capture.captured import Captured
from causal_attn.export.choose.choice import Choice
from causal_attn.export.forms.table import FORMS
from causal_attn.export.target import Target, reference_target, user_target
from causal_attn.export.torch_output import ExportLog
from causal_attn.export.write.graph_file import write_graph
from causal_attn.machine.provider import Provider
from causal_attn.runtime import Session, load
from causal_attn.verify.compare.comparison import Comparison, compare
from causal_attn.verify.feeds.feeder import Feeder

DYNAMIC = CacheKind.DYNAMIC
OPSET = 23

SPECS = {
    "open": AttentionSpec(),
    "three heads on one, softcap, scale, cache": AttentionSpec(
        num_heads=3, num_kv_heads=1, head_dim=40, softcap=5.0, scale=0.3, cache=DYNAMIC
    ),
    "eight heads on two, window, cache": AttentionSpec(
        num_heads=8, num_kv_heads=2, head_dim=64, window=9, cache=DYNAMIC
    ),
    "wide heads, long window, softcap": AttentionSpec(
        num_heads=8, head_dim=128, window=65, softcap=2.0
    ),
}

TOKENS = (1, 2, 5, 63, 64, 65, 127, 128, 129, 193, 300)
PAST = (0, 1, 7, 70)
HEADS, FEATURES = (1, 3, 8), (8, 40, 64, 128)


def cases(spec: AttentionSpec) -> Iterator[dict[str, int]]:
    """Sizes that meet in many pairs; 600 tokens are past the place where blocks get longer."""
    for index, tokens in enumerate((*TOKENS, 600)):
        yield {
            "tokens": tokens,
            "batch": 1 if tokens == 600 else 1 + (index % 3),
            "heads": HEADS[index // 2 % 3],
            "features": 8 if tokens == 600 else FEATURES[index % 4],
            "past_tokens": PAST[(index + index // 4) % 4],
        }
    if spec.cache is DYNAMIC:
        # Several new tokens after a past, and one, for more than one sequence.
        for tokens in (1, 7, 65):
            yield {"tokens": tokens, "batch": 3, "heads": 3, "features": 8, "past_tokens": 70}


def write(target: Target, form: str, folder: Path, captured: Captured | None = None) -> Session:
    captured = captured or Captured.of(target, torch.float32, ExportLog())
    choice = Choice(forms=(FORMS[form],))
    file, _ = write_graph(captured, choice, OPSET, folder / form)
    return load(file, accept="unverified")


def usable(spec: AttentionSpec) -> list[str]:
    return [
        name
        for name, form in FORMS.items()
        if form.refusal(spec, torch.float32, Provider.CPU, OPSET) is None
    ]


@pytest.fixture(scope="module", params=SPECS)
def graphs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[AttentionSpec, dict[str, Session]]]:
    spec = SPECS[request.param]
    target = reference_target(spec, dtype=torch.float32, return_weights=False)
    folder = tmp_path_factory.mktemp("forms")
    captured = Captured.of(target, torch.float32, ExportLog())
    sessions = {name: write(target, name, folder, captured) for name in usable(spec)}
    yield spec, sessions
    for session in sessions.values():
        session.close()


def test_every_form_agrees_with_the_reference(
    graphs: tuple[AttentionSpec, dict[str, Session]],
) -> None:
    spec, sessions = graphs
    random = np.random.default_rng(0)
    for sizes in cases(spec):
        contract = next(iter(sessions.values())).contract
        feeds = Feeder(contract=contract).make(sizes, random)
        wide = {name: array.astype(np.float64) for name, array in feeds.items()}
        oracle, plain = run_spec(spec, wide), run_spec(spec, feeds)
        found: dict[str, dict[str, Comparison]] = {}
        results: dict[str, dict[str, NDArray[Any]]] = {}
        for form, session in sessions.items():
            results[form] = session.run(feeds)
            found[form] = {
                name: compare(array, oracle[name], plain[name])
                for name, array in results[form].items()
            }
            for name, comparison in found[form].items():
                assert comparison.passed, (form, name, sizes, comparison.reason)
        for one, other in combinations(sessions, 2):
            for name, array in results[one].items():
                apart = np.abs(array - results[other][name]).max()
                assert apart <= 2 * found[one][name].budget, (one, other, name, sizes)


def test_the_grid_has_every_form() -> None:
    assert {form for spec in SPECS.values() for form in usable(spec)} == set(FORMS)


class Sinks(nn.Module):
    """Attention with sinks that are weights, without a past, with one, or with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.tensor([0.5, -1.0, 3.0, 0.0]))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **past: Tensor) -> tuple[Tensor, ...]:
        output, _, *present = attend(
            q, k, v, window=9, softcap=3.0, sinks=self.sinks, return_weights=False, **past
        )
        return (output, *present) if past else (output,)


class GrowingSinks(Sinks):
    def forward(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, ...]:
        return super().forward(q, k, v, past_key=past_key, past_value=past_value)


class FixedSinks(Sinks):
    def forward(  # type: ignore[override]
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        past_lengths: Tensor,
    ) -> tuple[Tensor, ...]:
        return super().forward(
            q, k, v, past_key=past_key, past_value=past_value, past_lengths=past_lengths
        )


SINKS: dict[CacheKind, type[Sinks]] = {
    CacheKind.NONE: Sinks, DYNAMIC: GrowingSinks, CacheKind.STATIC: FixedSinks
}  # fmt: skip


def sinks_target(cache: CacheKind) -> Target:
    """Four query heads on two, of 8 features; the dims are those of the op with this cache."""
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, cache=cache)
    bare = reference_target(spec, dtype=torch.float32, return_weights=False)
    return replace(bare, module=SINKS[cache](), spec=None)


@pytest.mark.parametrize("cache", SINKS)
@pytest.mark.parametrize("form", ["decomposed", "gqa"])
def test_sinks_in_the_forms_that_have_them(tmp_path: Path, form: str, cache: CacheKind) -> None:
    target = sinks_target(cache)
    sinks = target.module.get_parameter("sinks").detach().numpy()
    random = np.random.default_rng(2)
    with write(target, form, tmp_path) as session:
        for tokens, batch, past in ((1, 2, 12), (7, 1, 0), (33, 3, 5)):
            sizes = {"tokens": tokens, "batch": batch, "past_tokens": past}
            feeds = Feeder(contract=session.contract).make(
                {**sizes, "capacity": past + tokens}, random
            )
            if cache is CacheKind.STATIC:
                feeds["past_lengths"][:] = past
                feeds["past_key"], feeds["past_value"] = (
                    random.standard_normal((batch, 2, past + tokens, 8), np.float32)
                    for _ in range(2)
                )
            if cache is CacheKind.NONE:
                past = 0
            k, v = (
                np.concatenate([feeds[before][:, :, :past], feeds[new]], axis=2)
                if past
                else feeds[new]
                for before, new in (("past_key", "k"), ("past_value", "v"))
            )
            options: dict[str, Any] = {"past": past, "window": 9, "softcap": 3.0}
            plain, _ = attention(feeds["q"], k, v, sinks=sinks, **options)
            wide = [array.astype(np.float64) for array in (feeds["q"], k, v)]
            oracle, _ = attention(*wide, sinks=sinks.astype(np.float64), **options)
            output = session.run(feeds)[session.contract.outputs[0].name]
            comparison = compare(output, oracle, plain)
            assert comparison.passed, (sizes, comparison.reason)


@pytest.mark.parametrize("form", ["attention", "blocked"])
def test_other_forms_refuse_sinks(form: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="has no `sinks`: use form 'decomposed' or 'gqa'"):
        write(sinks_target(CacheKind.NONE), form, tmp_path)


class Padded(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        output: Tensor = attend(q, k, v, None, None, lengths, None, 6, None, False)[0]
        return output


def padded_target() -> Target:
    q, k, v = (torch.randn(3, 2, 5, 8) for _ in range(3))
    axes = {0: "batch", 1: "heads", 2: "tokens", 3: "features"}
    return user_target(
        Padded(),
        (q, k, v, torch.tensor([5, 2, 3])),
        {"q": axes, "k": axes, "v": axes, "lengths": {0: "batch"}},
        dtype=torch.float32,
    )


def test_padded_batches_in_the_form_that_has_them(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    with write(padded_target(), "decomposed", tmp_path) as session:
        for tokens in (1, 7, 130):
            q, k, v = (random.standard_normal((3, 2, tokens, 8), np.float32) for _ in range(3))
            lengths = np.array([tokens, 0, (tokens + 1) // 2])
            k[1], v[1] = np.nan, np.inf
            wide = [array.astype(np.float64) for array in (q, k, v)]
            oracle, _ = attention(*wide, window=6, kv_lengths=lengths)
            plain, _ = attention(q, k, v, window=6, kv_lengths=lengths)
            (output,) = session(q, k, v, lengths)
            comparison = compare(output, oracle, plain)
            assert comparison.passed, (tokens, comparison.reason)
            assert not output[1].any()


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"decomposed"}))
def test_other_forms_refuse_padded_batches(form: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="kv_lengths"):
        write(padded_target(), form, tmp_path)
