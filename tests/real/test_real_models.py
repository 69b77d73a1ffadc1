"""`verify` on graphs by transformers, torch.onnx and onnxruntime-genai: right, and by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from real_models import BUILDERS, LAYERS, VOCABULARY, WINDOW

from causal_attn.errors import UsageError
from causal_attn.package.certificate import Check, Verdict
from causal_attn.verify import Report, verify
from causal_attn.verify.interface.discover import discover

Reports = Callable[[str], Report]
Graphs = Callable[[str], Path]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is right to say of a graph."""

    verdict: Verdict
    cached: bool
    mask: bool = True
    window: int | None = None

    @property
    def exit_code(self) -> int:
        return 1 if self.verdict is Verdict.NOT_CAUSAL else 0


# transformers hides the future with the lowest float, which is added; norms and weights keep every
# score below it. GroupQueryAttention does not read what is hidden.
EXPECTED = {
    "torch-llama-cached": Expected(verdict=Verdict.CAUSAL, cached=True),
    "torch-gpt2-cached": Expected(verdict=Verdict.CAUSAL, cached=True),
    "torch-mistral-cached": Expected(verdict=Verdict.CAUSAL, cached=True, window=WINDOW),
    "torch-bert": Expected(verdict=Verdict.NOT_CAUSAL, cached=False),
    "torch-bert-decoder": Expected(verdict=Verdict.CAUSAL, cached=False),
    "exporters-llama-decode": Expected(verdict=Verdict.CAUSAL, cached=True, mask=False),
    "exporters-gpt2": Expected(verdict=Verdict.CAUSAL, cached=False),
    "exporters-mistral": Expected(verdict=Verdict.CAUSAL, cached=False, window=WINDOW),
    "exporters-bert": Expected(verdict=Verdict.NOT_CAUSAL, cached=False),
    "genai-llama": Expected(verdict=Verdict.CAUSAL, cached=True),
    # onnxruntime-genai 0.18.0 writes local_window_size -1: the window of the checkpoint is lost.
    "genai-mistral": Expected(verdict=Verdict.CAUSAL, cached=True, window=None),
}

NAMES = sorted(EXPECTED)


def checks_of(report: Report) -> dict[str, Check]:
    return {check.name: check for check in report.variants[0].certificate.checks}


def test_every_graph_is_expected_to_be_something() -> None:
    assert set(EXPECTED) == set(BUILDERS)


@pytest.mark.parametrize("name", NAMES)
def test_verdict_and_exit_code(report: Reports, name: str) -> None:
    found, want = report(name), EXPECTED[name]
    certificate = found.variants[0].certificate
    assert certificate.verdict is want.verdict
    assert found.exit_code == want.exit_code


@pytest.mark.parametrize("name", NAMES)
def test_parity_with_the_graph_in_float64_ran(report: Reports, name: str) -> None:
    """None of these has an operator that the oracle lacks; so no reason is named either."""
    parity = checks_of(report(name))["parity"]
    assert parity.passed is True
    assert "6 lengths from 1 to 65 tokens" in parity.detail
    assert not [line for line in report(name).variants[0].not_checked if "parity" in line]


@pytest.mark.parametrize("name", NAMES)
def test_decode_is_equivalent_where_there_is_a_cache(report: Reports, name: str) -> None:
    decode = checks_of(report(name)).get("decode is equivalent")
    assert (decode is not None) is EXPECTED[name].cached
    if decode is not None:
        assert decode.passed is True


@pytest.mark.parametrize("name", NAMES)
def test_padding_is_invisible_where_there_is_a_mask(report: Reports, name: str) -> None:
    padding = checks_of(report(name)).get("padding is invisible")
    assert (padding is not None) is EXPECTED[name].mask
    if padding is not None:
        assert padding.passed is True
        assert padding.detail.startswith("on the right nothing of it is seen")


def test_what_left_padding_does_is_said(report: Reports) -> None:
    """Position ids or rotations between pairs carry it; a table of positions counts it."""
    left = {
        name: checks_of(report(name))["padding is invisible"].detail.partition("; ")[2]
        for name in ("torch-gpt2-cached", "exporters-gpt2", "exporters-mistral", "genai-llama")
    }
    assert left["torch-gpt2-cached"] == "on the left nothing of it is seen"
    assert left["exporters-mistral"] == "on the left nothing of it is seen"
    assert "positions count it" in left["exporters-gpt2"]
    assert "['logits'] change with what lies in the padding" in left["genai-llama"]


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_seen_by_what_it_should_be(report: Reports, name: str) -> None:
    """Each layer of a window of w lets a row see w - 1 positions further back."""
    matrix = report(name).variants[0].visibility["logits"]
    query = np.arange(matrix.shape[1] - matrix.shape[0], matrix.shape[1])[:, None]
    position = np.arange(matrix.shape[1])[None, :]
    visible = position <= query
    if EXPECTED[name].verdict is Verdict.NOT_CAUSAL:
        visible = np.ones_like(visible)
    if (window := EXPECTED[name].window) is not None:
        visible &= position >= query - LAYERS * (window - 1)
    np.testing.assert_array_equal(matrix, visible)


@pytest.mark.parametrize("name", ["torch-bert", "exporters-bert"])
def test_a_leak_is_shown_with_its_way(report: Reports, name: str) -> None:
    found = report(name)
    leak = found.variants[0].leak
    assert leak is not None
    assert (leak.output, leak.query, leak.position) == ("logits", 0, 1)
    assert leak.path[0] == "input_ids[0, 1]"
    assert leak.path[-1].endswith("-> logits[0, 0, 0]")
    assert any("Softmax" in step for step in leak.path)
    checks = checks_of(found)
    assert checks["influence proof"].passed is False
    assert checks["future is invisible"].passed is False


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_found_and_ids_stay_in_the_vocabulary(graph: Graphs, name: str) -> None:
    path = graph(name)
    model = onnx.load(path, load_external_data=False)
    interface = discover(model, path)
    assert "input_ids" in interface.tokens
    assert interface.tokens["input_ids"] == 1
    assert interface.feeder.bounds["input_ids"] == (0, VOCABULARY)
    assert len(interface.cache) == (2 * LAYERS if EXPECTED[name].cached else 0)
    assert (interface.mask == "attention_mask") is EXPECTED[name].mask
    (sizes,) = interface.feeder.cases((65,))
    feeds = interface.feeder.make(sizes, np.random.default_rng(0))
    assert feeds["input_ids"].min() >= 0
    assert VOCABULARY // 2 < feeds["input_ids"].max() < VOCABULARY


def test_a_cache_is_paired_part_by_part(graph: Graphs) -> None:
    path = graph("exporters-llama-decode")
    pairs = discover(onnx.load(path, load_external_data=False), path).cache
    assert ("input.cache.layers.1.values", "output.cache.layers.1.values") in pairs


def test_sizes_that_do_not_run_are_named(report: Reports) -> None:
    left_out = report("genai-llama").variants[0].not_checked
    (line,) = [one for one in left_out if one.startswith("several sequences with a past")]
    assert "batch_size must be 1" in line


def test_an_output_can_be_picked(graph: Graphs) -> None:
    found = verify(graph("exporters-gpt2"), outputs=["logits"], lengths=(1, 5))
    assert list(found.variants[0].visibility) == ["logits"]
    assert any("cache.layers.0.keys" in line for line in found.variants[0].not_checked)


def test_names_that_are_not_there_are_refused(graph: Graphs) -> None:
    path = graph("exporters-gpt2")
    with pytest.raises(UsageError, match="`outputs` must name one of"):
        verify(path, outputs=["logit"])
    with pytest.raises(UsageError, match="`tokens_axis` must name one of"):
        verify(path, tokens_axis={"ids": 1})
    with pytest.raises(UsageError, match="must be an axis of"):
        verify(path, tokens_axis={"input_ids": 2})
