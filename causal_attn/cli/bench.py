"""`causal-attn bench`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from causal_attn.cli.console import JsonFlag, ProviderFlag, out, print_json, progress
from causal_attn.cli.flags import parse_lengths
from causal_attn.errors import UsageError

__all__ = ["CaseOptions", "bench"]


@dataclass(frozen=True)
class CaseOptions:
    """The fields of `Selection`: which cases are run."""

    prefill: Annotated[bool, typer.Option("--prefill", help="Time whole sequences.")] = False
    decode: Annotated[bool, typer.Option("--decode", help="Time one token over a cache.")] = False
    memory: Annotated[bool, typer.Option("--memory", help="Peak memory that a prefill adds.")] = (
        False
    )
    tokens: Annotated[
        str | None, typer.Option(help="Lengths: 16,32,64 ; with --decode, tokens in the cache.")
    ] = None
    batch: Annotated[int | None, typer.Option(help="Sequences; default 1.")] = None
    heads: Annotated[int | None, typer.Option(help="Query heads; default 16, decode 32.")] = None
    kv_heads: Annotated[
        int | None, typer.Option(help="Default as many as heads; decode a quarter.")
    ] = None
    head_dim: Annotated[int | None, typer.Option(help="Default 64, decode 128.")] = None
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32"


@dataclass(frozen=True)
class PackageOptions:
    """What stands for this project in the benchmark."""

    package: Annotated[
        Path | None, typer.Option(help="A package; default: exported on the spot.")
    ] = None
    form: Annotated[str, typer.Option(help="Of the export on the spot.")] = "auto"
    cache: Annotated[str, typer.Option(help="Of the export, to decode: static or dynamic.")] = (
        "static"
    )


@dataclass(frozen=True)
class GenerateOptions:
    """Tokens a second of a language model, in place of attention."""

    generate: Annotated[
        Path | None, typer.Option(help="A package of a language model: time its tokens.")
    ] = None
    genai: Annotated[
        Path | None,
        typer.Option(help="With --generate: a package or folder for onnxruntime-genai."),
    ] = None
    against: Annotated[
        Path | None, typer.Option(help="With --generate: the folder of the model in transformers.")
    ] = None
    prompt: Annotated[int, typer.Option("--prompt-tokens", help="Tokens of the prompt.")] = 128
    new: Annotated[int, typer.Option("--new-tokens", help="Tokens of the answer.")] = 128
    requests: Annotated[int, typer.Option(help="Requests for the engine; 0: none.")] = 0


# Each parameter is a flag of the command line, or a group of them.
def bench(
    which: CaseOptions,
    ours: PackageOptions,
    generation: GenerateOptions,
    systems: Annotated[
        list[str] | None,
        typer.Option("--system", help="Default: all; repeat it. Ratios need torch."),
    ] = None,
    forms: Annotated[
        bool, typer.Option("--forms", help="Beside torch, each form alone; nothing else.")
    ] = False,
    provider: ProviderFlag = "cpu",
    rounds: Annotated[int, typer.Option(help="Turns of each system in each case.")] = 7,
    plot: Annotated[Path | None, typer.Option(help="Draw time and ratios to this PNG.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure packages against torch, torch.compile, torch.onnx and the machine's own limits.

    Without a part or a shape, all parts run on their standing grid, which takes minutes; a shape
    alone means --prefill. Exit code 3: nothing could be measured.
    """
    if generation.generate is not None:
        _bench_generation(generation, provider, rounds, as_json)
        return

    from causal_attn.bench import FORM_SYSTEMS, SYSTEMS, Selection, Settings, make_plan, run_bench
    from causal_attn.bench.plot import draw_bench
    from causal_attn.bench.table import bench_tables

    cases: dict[str, Any] = asdict(which)
    cases["tokens"] = parse_lengths(which.tokens, "--tokens")
    plan = make_plan(Selection(**cases))
    if forms and systems:
        raise UsageError("`--forms` must be given without `--system`, got both.")
    chosen = [*list(SYSTEMS)[:2], *FORM_SYSTEMS] if forms else systems or list(SYSTEMS)
    settings = Settings(
        systems=tuple(chosen),
        provider=provider,
        package=ours.package,
        form=ours.form,
        cache=ours.cache,
        rounds=rounds,
    )
    with progress() as on_progress:
        report = run_bench(plan, settings, on_progress=on_progress)
    if plot is not None and report.cases:
        draw_bench(report, plot)
    if as_json:
        print_json(report.to_dict())
    else:
        for part in bench_tables(report):
            out.print(part)
    if len(report.cases) < len(plan.cases):
        raise typer.Exit(3)


def _bench_generation(options: GenerateOptions, provider: str, rounds: int, as_json: bool) -> None:
    from causal_attn.bench.generation import GENERATORS, run_generation
    from causal_attn.bench.generation.table import generation_tables

    given = zip(GENERATORS, (options.generate, options.genai, options.against), strict=True)
    sources = {name: path for name, path in given if path is not None}
    for path in sources.values():
        # Raises OSError for a mistyped path, before any process is started.
        path.stat()
    with progress() as on_progress:
        report = run_generation(
            sources,
            provider=provider,
            prompt=options.prompt,
            new=options.new,
            requests=options.requests,
            rounds=rounds,
            on_progress=on_progress,
        )
    if as_json:
        print_json(report.to_dict())
        return
    for part in generation_tables(report):
        out.print(part)
