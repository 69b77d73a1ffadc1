"""The benchmark of generation: real processes on a small model, and figures made of them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from causal_attn import models
from causal_attn.bench.generation import GenerationReport, run_generation
from causal_attn.bench.generation.run import EngineFigures, SystemFigures
from causal_attn.bench.generation.table import generation_tables
from causal_attn.errors import UsageError


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runtime = str(Path(__file__).parents[1] / "runtime")
    sys.path.insert(0, runtime)
    try:
        from toy_decoder import write_decoder
    finally:
        sys.path.remove(runtime)
    write: Callable[[Path], Path] = write_decoder
    return write(tmp_path_factory.mktemp("toy") / "package")


def test_systems_take_turns_and_the_engine_is_measured(toy: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    report = run_generation(
        {"causal_attn": toy},
        prompt=5,
        new=4,
        requests=3,
        rounds=2,
        on_progress=lambda *step: steps.append(step),
    )
    ours = report.systems["causal_attn"]
    assert (len(ours.prefill), len(ours.decode), ours.same) == (2, 2, 4)
    assert ours.read_bytes == (toy / "toy" / "cpu" / "model.onnx").stat().st_size
    # One layer, one head of 8 float32 features, five tokens of the prompt and half the answer.
    assert report.cache_bytes == 7 * 8 * 4
    assert report.engine is not None
    assert (len(report.engine.alone), len(report.engine.together)) == (2, 2)
    assert len(report.engine.first) == 2 * 3
    assert [done for done, _, _ in steps] == list(range(9))
    assert {total for _, total, _ in steps} == {9}
    assert report.to_dict()["share_of_limit"]["causal_attn"] > 0


@pytest.mark.parametrize(
    ("sources", "options", "match"),
    [
        ({}, {}, "`sources` must be out of"),
        ({"causal_attn": "x", "llama.cpp": "x"}, {}, "llama.cpp"),
        ({"causal_attn": "x"}, {"new": 1}, "`new` must be an integer >= 2"),
        ({"causal_attn": "x"}, {"rounds": 0}, "`rounds` must be an integer >= 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    sources: dict[str, str], options: dict[str, int], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        run_generation(sources, **options)  # type: ignore[arg-type]


def test_a_package_without_a_cache_is_refused() -> None:
    with pytest.raises(UsageError, match="which has no cache or no logits"):
        run_generation({"causal_attn": models.path("causal_attention")})


def test_the_table_says_what_was_measured() -> None:
    def figures(decode: float, same: int) -> SystemFigures:
        return SystemFigures(
            prefill=[0.1, 0.2, 0.3], decode=[decode] * 3, read_bytes=10**9, same=same
        )

    report = GenerationReport(
        machine={},
        prompt=128,
        new=64,
        systems={"causal_attn": figures(0.1, 64), "transformers": figures(0.25, 60)},
        engine=EngineFigures(
            requests=16, alone=[10.0], together=[45.0], first=[0.5, 1.5], gaps=[0.02]
        ),
        read_rate=2e10,
        cache_bytes=10**9,
        load=2.0,
    )
    assert report.share_of_limit("causal_attn") == pytest.approx(1.0)
    console = Console(width=100, record=True, file=io.StringIO())
    for part in generation_tables(report):
        console.print(part)
    text = console.export_text()
    for words in ("2.50", "60/64", "100%", "40%", "engine, 4.5 x", "The load was 2.0"):
        assert words in text
