"""The benchmark measures what it says: own processes, paired rounds, the same result.

Nothing here bounds a time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from causal_attn.attention.spec import AttentionSpec
from causal_attn.bench import Case, Mode, Plan, Report, Selection, Settings, make_plan, run_bench
from causal_attn.bench.cases import DTYPES
from causal_attn.bench.driver import _Clock, _held_to_one_limit, _require_same
from causal_attn.bench.limits import LimitProbe, limit_seconds
from causal_attn.bench.plot import draw_bench
from causal_attn.bench.report import SCHEMA, CaseResult, MemoryResult, Spread
from causal_attn.bench.systems import BASELINE, OURS, PLAIN, SYSTEMS, PackageSystem, TorchSystem
from causal_attn.bench.table import bench_tables, in_time_units
from causal_attn.bench.worker import EXPORTER, LIMIT, SERVE, _SystemServer
from causal_attn.cli.app import app
from causal_attn.errors import (
    CheckError,
    EngineError,
    PackageError,
    ProviderError,
    UsageError,
)
from causal_attn.export import export
from causal_attn.machine.provider import Provider
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.package.digest import CERTIFICATE_KEY, CONTRACT_KEY, model_digest, write_metadata
from causal_attn.timing.busy import busy_seconds
from causal_attn.timing.process import Worker, WorkerFailed

ROOT = Path(__file__).parents[2]
PREFILL = [
    Case(mode=Mode.PREFILL, batch=1, heads=2, kv_heads=2, head_dim=8, tokens=tokens)
    for tokens in (3, 5)
]
DECODE = Case(mode=Mode.DECODE, batch=2, heads=4, kv_heads=2, head_dim=8, tokens=6)
FAST = [OURS, BASELINE, PLAIN]


@pytest.fixture(scope="module", autouse=True)
def one_try() -> Iterator[None]:
    """Tests run side by side: nobody waits for a quiet machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("causal_attn.bench.driver._TRIES", 1)
        yield


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for `PREFILL`, checked at a few lengths only."""
    spec = AttentionSpec(num_heads=2, head_dim=8)
    path = tmp_path_factory.mktemp("bench") / "package"
    return export(spec, path, return_weights=False, lengths=(1, 2, 5)).root


@pytest.fixture(scope="module")
def report() -> Report:
    """A run of every system but torch.compile, which takes seconds to compile."""
    return run_bench(
        Plan(cases=(*PREFILL, DECODE), memory=(PREFILL[0],)),
        Settings(
            systems=tuple(FAST), form="attention", cache="dynamic", rounds=2, turn_seconds=0.002
        ),
    )


def test_json_has_its_schema(report: Report) -> None:
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert found["schema"] == SCHEMA
    assert set(found) == {
        "schema", "machine", "settings", "packages", "cases", "geometric_means", "memory", "pids",
        "skipped",
    }  # fmt: skip
    assert set(found["machine"]) == {
        "processor", "cores", "system", "provider", "python", "torch", "onnxruntime",
    }  # fmt: skip
    assert found["settings"]["systems"] == FAST
    assert found["skipped"] == {}
    for case, wanted in zip(found["cases"], [*PREFILL, DECODE], strict=True):
        assert Case.from_dict({name: case[name] for name in PREFILL[0].to_dict()}) == wanted
        assert case["limit"]["unit"] == ("byte/s" if wanted is DECODE else "flop/s")
        assert len(case["limit"]["rounds"]) == 2
        assert case["limit"]["of"].split(",")[0] in ("torch", "numpy", "onnxruntime")
        assert list(case["systems"]) == FAST
        for system in case["systems"].values():
            assert len(system["rounds"]) == 2
            assert all(seconds > 0 for seconds in system["rounds"])
            low, middle, high = (system["seconds"][key] for key in ("q1", "median", "q3"))
            assert low <= middle <= high
            assert system["limit_share"] == pytest.approx(case["limit"]["seconds"] / middle)
    assert list(found["memory"][0]["added_bytes"]) == FAST
    assert list(found["packages"]) == [PREFILL[0].model, DECODE.model]
    assert {package["form"] for package in found["packages"].values()} == {"attention"}


def test_every_system_ran_in_a_process_of_its_own(report: Report) -> None:
    assert set(report.pids) == {*FAST, LIMIT}
    assert len({*report.pids.values(), os.getpid()}) == len(FAST) + 2


def test_processes_end_with_the_run(report: Report) -> None:
    for pid in report.pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_ratios_are_medians_of_paired_rounds(report: Report) -> None:
    slow_machine = CaseResult(
        case=PREFILL[0],
        rounds={BASELINE: [2.0, 20.0, 6.0], OURS: [1.0, 10.0, 4.0]},
        limit_rates=[1.0, 2.0, 3.0],
    )
    ratio = slow_machine.ratio(OURS)
    # The ratio of the medians would be 6 / 4.
    assert ratio == Spread.of([2.0, 2.0, 1.5])
    assert ratio is not None
    assert ratio.median == 2
    assert slow_machine.limit_rate == 3
    for case in report.to_dict()["cases"]:
        theirs = case["systems"][BASELINE]["rounds"]
        for system in case["systems"].values():
            pairs = [a / b for a, b in zip(theirs, system["rounds"], strict=True)]
            assert system["ratio"]["median"] == pytest.approx(statistics.median(pairs))
        assert case["systems"][BASELINE]["ratio"]["median"] == 1


def test_without_torch_there_is_no_ratio() -> None:
    alone = CaseResult(case=PREFILL[0], rounds={OURS: [1.0]}, limit_rates=[1.0])
    assert alone.ratio(OURS) is None


def test_all_prefills_are_held_to_the_best_rate_of_the_run() -> None:
    rounds = {OURS: [1.0]}
    slow, quick, step = _held_to_one_limit(
        [
            CaseResult(case=case, rounds=rounds, limit_rates=[rate, rate / 2], limit_of=str(rate))
            for case, rate in ((PREFILL[0], 2.0), (PREFILL[1], 8.0), (DECODE, 100.0))
        ]
    )
    assert (slow.limit_rate, quick.limit_rate, step.limit_rate) == (8, 8, 100)
    assert [float(one.limit_of) for one in (slow, quick, step)] == [8, 8, 100]
    assert slow.limit == PREFILL[0].flops / 8
    assert slow.limit_share(OURS) == slow.limit


def test_geometric_mean_is_over_lengths() -> None:
    results = [
        CaseResult(case=case, rounds={BASELINE: [4.0], OURS: [ours]}, limit_rates=[1.0])
        for case, ours in zip(PREFILL, (1.0, 4.0), strict=True)
    ]
    made = Report(machine={}, settings={}, packages={}, cases=results, pids={})
    assert made.geometric_means()[PREFILL[0].family][OURS] == pytest.approx(2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"systems": ("tensorflow",)}, r"`systems` must be out of \['causal_attn'.*'tensorflow'"),
        ({"systems": ()}, "`systems` must be distinct"),
        ({"systems": (OURS, OURS)}, "`systems` must be distinct"),
        ({"rounds": 0}, "`rounds` must be"),
        ({"turn_seconds": 0}, "`turn_seconds` must be"),
        ({"cases": ()}, "`plan` must have cases"),
        ({"cases": (*PREFILL, DECODE), "package": "p"}, "`package` must fit all cases"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    cases = arguments.pop("cases", tuple(PREFILL))
    with pytest.raises(UsageError, match=words):
        run_bench(Plan(cases=cases), Settings(**arguments))


def test_absent_provider_is_refused_in_words() -> None:
    with pytest.raises(ProviderError, match="`provider` must be one that the installed"):
        run_bench(Plan(cases=tuple(PREFILL)), Settings(provider=Provider.OPENVINO))


def test_package_that_fits_no_case_is_refused(package: Path, tmp_path: Path) -> None:
    with Worker(SERVE, OURS, Provider.CPU) as worker:
        worker.ask("prepare", case=DECODE.to_dict(), model=str(package))
        with pytest.raises(UsageError, match=r"`package` must have the inputs .* for decode"):
            worker.ask("sample", seed=0)
    with pytest.raises(PackageError):
        run_bench(
            Plan(cases=tuple(PREFILL)), Settings(systems=(OURS,), package=tmp_path, rounds=1)
        )


@pytest.mark.parametrize("wrong", [2.0, float("nan")])
def test_systems_that_compute_something_else_are_refused(wrong: float) -> None:
    right = {"shape": [1, 2, 3, 8], "sample": [1.0, 2.0]}
    _require_same({BASELINE: right, OURS: right}, PREFILL[0])
    with pytest.raises(CheckError, match="causal_attn must compute what torch does"):
        _require_same({BASELINE: right, OURS: right | {"sample": [1.0, wrong + 1]}}, PREFILL[0])
    with pytest.raises(CheckError, match="an output"):
        _require_same({BASELINE: right, OURS: right | {"shape": [1, 3, 2, 8]}}, PREFILL[0])


class _FakeWorker:
    """Answers at once; torch.compile cannot run."""

    pid = 1

    def __init__(self, role: str, name: str, provider: Provider) -> None:
        self.name = name

    def __enter__(self) -> _FakeWorker:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        if self.name == "torch.compile" and do == "prepare":
            raise WorkerFailed("InvalidCxxCompiler: No working C++ compiler found")
        answers: dict[str, dict[str, Any]] = {
            "sample": {"shape": [1], "sample": [0.5]},
            "turn": {"seconds": 0.5, "rate": 2.0, "of": "x", "cpu_seconds": 0.1},
            "memory": {"added_bytes": 3},
        }
        return answers.get(do, {})


def test_system_that_cannot_run_is_skipped_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("causal_attn.bench.driver.Worker", _FakeWorker)
    seen: list[tuple[int, int, str]] = []
    found = run_bench(
        Plan(cases=tuple(PREFILL), memory=(PREFILL[0],)),
        Settings(rounds=3),
        on_progress=lambda done, total, words: seen.append((done, total, words)),
    )
    assert len(found.cases) == 2
    assert list(found.cases[0].rounds) == [OURS, BASELINE, PLAIN]
    assert [what for what in found.skipped if "memory" not in what] == [
        f"torch.compile, {case.title}" for case in PREFILL
    ]
    words = " ".join(str(part) for part in bench_tables(found))
    assert "No working C++ compiler found" in words
    done = [step for step, _, _ in seen]
    assert done == sorted(set(done))
    assert seen[-1][0] == seen[-1][1] - 1


class _DyingWorker(_FakeWorker):
    """torch.onnx ends in its second turn, as when the kernel wants its memory back."""

    ended = False

    def runs(self) -> bool:
        return not self.ended

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        if self.name == PLAIN and request.get("seed") == 2:
            self.ended = True
            raise EngineError("it ended with -9")
        return super().ask(do, **request)


def test_a_system_that_dies_is_left_out_of_its_case_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("causal_attn.bench.driver.Worker", _DyingWorker)
    found = run_bench(Plan(cases=(*PREFILL, DECODE)), Settings(systems=tuple(FAST), rounds=3))
    assert [list(result.rounds) for result in found.cases] == [[OURS, BASELINE]] * 3
    assert all(len(rounds) == 3 for rounds in found.cases[0].rounds.values())
    assert found.skipped == {
        f"{PLAIN}, {case.title}": "it ended with -9" for case in [*PREFILL, DECODE]
    }
    assert json.dumps(found.to_dict())


def test_forms_run_alone_and_those_that_cannot_are_named(package: Path) -> None:
    found = run_bench(
        Plan(cases=(PREFILL[0],)),
        Settings(
            systems=(OURS, BASELINE, "attention", "gqa"),
            package=package,
            rounds=2,
            turn_seconds=0.002,
        ),
    )
    assert list(found.cases[0].rounds) == [OURS, BASELINE, "attention", "gqa"]
    best = found.cases[0].behind_best_form()
    assert best is not None
    assert best[0] in {"attention", "gqa"}
    assert any("of the best form alone" in str(part) for part in bench_tables(found))
    refused = run_bench(
        Plan(cases=(DECODE,)),
        Settings(systems=(BASELINE, "attention"), rounds=1, turn_seconds=0.002),
    )
    assert "cache of fixed capacity" in refused.skipped[f"attention, {DECODE.model}"]
    assert refused.cases[0].behind_best_form() is None


def test_the_best_form_is_the_fastest_alone() -> None:
    rounds = {OURS: [2.0, 2.2, 2.4], "attention": [2.0, 2.0, 2.0], "blocked": [9.0, 9.0, 9.0]}
    result = CaseResult(case=PREFILL[0], rounds=rounds, limit_rates=[1.0])
    best = result.behind_best_form()
    assert best is not None
    assert best[0] == "attention"
    assert best[1] == pytest.approx(1.1)


def test_command_line_takes_forms_or_systems() -> None:
    result = CliRunner().invoke(app, ["bench", "--forms", "--system", OURS])
    assert result.exit_code == 2
    assert "`--forms` must be given without `--system`" in result.output


def test_a_cache_of_fixed_capacity_is_written_in_place(tmp_path: Path) -> None:
    path = _in_place_decoder(tmp_path / "model.onnx", DECODE)
    system = PackageSystem(Provider.CPU)
    system.prepare(DECODE, path)
    arrays = DECODE.arrays(1)
    system.load(arrays)
    torch_system = TorchSystem(Provider.CPU)
    torch_system.prepare(DECODE, None)
    torch_system.load(arrays)
    for _ in range(2):
        np.testing.assert_allclose(system.output(), torch_system.output(), rtol=1e-4, atol=1e-5)
    assert system._binding is not None
    cache = system._binding.read("past_key")
    np.testing.assert_array_equal(cache[:, :, -1:], arrays["k"])
    system.release()


def test_importing_the_benchmark_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'matplotlib'): sys.modules[name] = None\n"
        "import causal_attn.bench.plot, causal_attn.bench.table, causal_attn.bench.worker\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_command_line_prints_json_alone(package: Path, tmp_path: Path) -> None:
    picture = tmp_path / "bench.png"
    result = CliRunner().invoke(
        app,
        [
            "bench", "--tokens", "3", "--heads", "2", "--head-dim", "8", "--rounds", "1",
            "--system", OURS, "--package", str(package),
            "--plot", str(picture), "--json",
        ],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["cases"][0]["tokens"] == 3
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("tokens", ["16,x", "", "0"])
def test_command_line_refuses_wrong_lengths(tokens: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--tokens", tokens])
    assert result.exit_code == 2
    assert "`--tokens` must be lengths" in result.output


def test_standing_grid() -> None:
    plan = make_plan()
    assert [case.tokens for case in plan.cases if case.mode is Mode.DECODE] == [2048, 8192]
    assert [case.tokens for case in plan.cases if case.batch == 8] == [128, 512]
    prefill = [c for c in plan.cases if c.mode is Mode.PREFILL and c.batch == 1]
    assert [case.tokens for case in prefill] == [16 * 2**power for power in range(10)]
    assert {(case.heads, case.head_dim) for case in prefill} == {(16, 64)}
    assert [case.tokens for case in plan.memory] == [8192]


def test_a_shape_alone_means_prefill() -> None:
    plan = make_plan(Selection(tokens=[7], heads=6, batch=3))
    assert [(c.mode, c.tokens, c.heads, c.kv_heads, c.batch) for c in plan.cases] == [
        (Mode.PREFILL, 7, 6, 6, 3)
    ]
    assert plan.memory == ()
    (step,) = make_plan(Selection(decode=True, tokens=[9], heads=6, kv_heads=3)).cases
    assert (step.past_tokens, step.q_tokens, step.kv_heads) == (9, 1, 3)
    with pytest.raises(UsageError, match="got them for both"):
        Selection(prefill=True, decode=True, heads=4)
    with pytest.raises(UsageError, match="at least one length"):
        Selection(tokens=[])


@pytest.mark.parametrize(
    "change",
    [{"heads": 0}, {"tokens": True}, {"kv_heads": 3, "heads": 4}, {"dtype": "int8"}],
)
def test_cases_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(change))):
        Case(**{**DECODE.to_dict(), **change})


def test_the_limit_is_the_best_of_several_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("causal_attn.bench.limits._SIZES", {"cpu": (8, 16)})
    probe = LimitProbe(Provider.CPU, PREFILL[0])
    assert len(probe._ways) == 6
    seconds = {id(way.call): way.work * place for place, way in enumerate(probe._ways, 1)}
    monkeypatch.setattr(
        "causal_attn.bench.limits.measure_turn", lambda call, *_, **__: [seconds[id(call)]]
    )
    assert probe.measure(0.1) == (1.0, "torch, 8 rows")
    assert [way.name for way in probe._ways] == ["torch, 8 rows", "numpy, 8 rows"]
    for way in probe._ways:
        assert way.call().shape == (8, 8)


@pytest.mark.parametrize("case", [*PREFILL, DECODE])
def test_work_is_that_of_the_visible_pairs(case: Case) -> None:
    kv_tokens = case.past_tokens + case.q_tokens
    visible = np.tri(case.q_tokens, kv_tokens, case.past_tokens).sum()
    assert case.pairs == visible
    assert case.flops == 2 * 2 * visible * case.head_dim * case.heads * case.batch
    arrays = case.arrays(0)
    read = sum(a.nbytes for name, a in arrays.items() if name != "q")
    assert case.read_bytes == read
    assert case.output_bytes == arrays["q"].nbytes
    assert limit_seconds(case, 10.0) == (case.flops if case in PREFILL else read) / 10


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_the_same_in_every_process_and_fresh_in_every_turn(dtype: str) -> None:
    case = Case(**{**DECODE.to_dict(), "dtype": dtype})
    first, again, other = case.arrays(1), case.arrays(1), case.arrays(2)
    assert {str(array.dtype) for array in first.values()} == {dtype}
    for name, array in first.items():
        assert np.array_equal(array, again[name])
        assert not np.array_equal(array, other[name])
    flat = [array.ravel()[:8].tolist() for array in first.values()]
    assert len({tuple(values) for values in flat}) == len(flat)


@pytest.mark.parametrize("system", FAST)
def test_a_worker_that_holds_much_lets_go_between_turns(
    system: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = package
    if system == PLAIN:
        path = tmp_path / "plain.onnx"
        with Worker(SERVE, EXPORTER, Provider.CPU) as exporter:
            exporter.ask("plain", case=PREFILL[0].to_dict(), path=str(path))
    held = iter([0, 2**40, 0])
    monkeypatch.setattr("causal_attn.bench.worker.resident_bytes", lambda: next(held))
    server = _SystemServer(system, Provider.CPU)
    server.do_prepare(PREFILL[0].to_dict(), str(path))
    samples = [server.do_sample(1) for _ in range(3)]
    assert samples[0] == samples[1] == samples[2]


def test_tables_say_what_was_seen(report: Report) -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for part in bench_tables(report):
        console.print(part)
    text = console.export_text()
    for words in (*FAST[:2], "GFLOP/s", "mean", "peak", PREFILL[0].family):
        assert words in text
    console.file.close()


def test_a_busy_machine_is_said_to_be_one() -> None:
    rounds = {BASELINE: [1.0], OURS: [1.0]}
    busy = CaseResult(case=PREFILL[0], rounds=rounds, limit_rates=[1.0], elsewhere=0.4)
    made = Report(machine={}, settings={}, packages={}, cases=[busy], pids={})
    assert "up to 40% of the cores" in str(list(bench_tables(made))[-1])


def test_time_of_other_processes_is_a_share_of_all_cores(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    if busy_seconds() is not None:
        assert all(0 <= (result.elsewhere or 0) <= 1 for result in report.cases)
    busy = iter([100.0, 107.0])
    monkeypatch.setattr("causal_attn.bench.driver.busy_seconds", lambda: next(busy))
    passed = iter([0.0, 10.0])
    monkeypatch.setattr("causal_attn.bench.driver.time.perf_counter", lambda: next(passed))
    monkeypatch.setattr("causal_attn.bench.driver.os.cpu_count", lambda: 2)
    assert _Clock().share_elsewhere(3.0) == pytest.approx(4 / 20)


def test_a_disturbed_turn_is_taken_again_and_the_quietest_counts(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("causal_attn.bench.driver.Worker", _FakeWorker)
    figures = iter([9.0, 1.0, 5.0, 2.0, 3.0])
    monkeypatch.setattr(
        _FakeWorker,
        "ask",
        lambda self, do, **_: (
            (
                {"seconds": next(figures) if self.name == OURS else 0.0, "rate": 1.0, "of": "x"}
                if do == "turn"
                else {"shape": [1], "sample": [1.0]}
            )
            | {"cpu_seconds": 0.0}
        ),
    )
    monkeypatch.setattr("causal_attn.bench.driver._TRIES", 3)
    # Round 1: disturbed three times, least in the second try. Round 2: quiet after one more.
    order = iter([0.5, 0.3, 0.9, 0.0, 0.0, 0.2, 0.05])
    monkeypatch.setattr(_Clock, "share_elsewhere", lambda self, ours: next(order))
    found = run_bench(
        Plan(cases=(PREFILL[0],)), Settings(systems=(OURS,), package=package, rounds=2)
    )
    assert found.cases[0].rounds[OURS] == [1.0, 3.0]
    assert found.cases[0].elsewhere == pytest.approx((0.3 + 0.0 + 0.0 + 0.05) / 4)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.345, "12.3 s"), (0.5, "500 ms"), (1.5e-5, "15 µs"), (2e-7, "0.2 µs"), (400.0, "400 s")],
)
def test_times_have_units(seconds: float, text: str) -> None:
    assert in_time_units(seconds) == text


def test_plot_draws_every_family(tmp_path: Path) -> None:
    results = [
        CaseResult(
            case=case,
            rounds={name: [1e-3 * case.tokens, 2e-3 * case.tokens] for name in SYSTEMS},
            limit_rates=[1e9, 2e9],
        )
        for case in (*PREFILL, DECODE)
    ]
    names: list[str] = ["processor", "cores", "provider", "onnxruntime", "torch"]
    machine = dict.fromkeys(names, "x")
    made = Report(
        machine=machine,
        settings={},
        packages={},
        cases=results,
        pids={},
        memory=[MemoryResult(case=DECODE, added_bytes={})],
    )
    draw_bench(made, tmp_path / "plot.png")
    first = (tmp_path / "plot.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    draw_bench(made, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes() == first
    empty = Report(machine=machine, settings={}, packages={}, cases=[], pids={})
    with pytest.raises(UsageError, match="must have cases"):
        draw_bench(empty, tmp_path / "none.png")


def _in_place_decoder(path: Path, case: Case) -> Path:
    """One token a call over a cache of fixed capacity, with GroupQueryAttention."""
    new = ("batch", case.kv_heads, "tokens", case.head_dim)
    cache = ("batch", case.kv_heads, "capacity", case.head_dim)
    query = ("batch", case.heads, "tokens", case.head_dim)
    inputs: dict[str, tuple[str, tuple[str | int, ...]]] = {
        "q": ("float32", query),
        **dict.fromkeys("kv", ("float32", new)),
        **dict.fromkeys(("past_key", "past_value"), ("float32", cache)),
        "past_lengths": ("int32", ("batch",)),
    }
    outputs: dict[str, tuple[str, tuple[str | int, ...]]] = {
        "output": ("float32", query),
        **dict.fromkeys(("present_key", "present_value"), ("float32", cache)),
    }
    kinds = {"float32": onnx.TensorProto.FLOAT, "int32": onnx.TensorProto.INT32}

    def values(tensors: dict[str, tuple[str, tuple[str | int, ...]]]) -> list[Any]:
        return [
            onnx.helper.make_tensor_value_info(name, kinds[dtype], dims)
            for name, (dtype, dims) in tensors.items()
        ]

    # With one token, [batch, heads, 1, features] lies in memory as [batch, 1, heads * features].
    flat = {"flat_q": case.heads, "flat_kv": case.kv_heads}
    constants = [
        onnx.numpy_helper.from_array(np.array([0, 1, heads * case.head_dim]), name)
        for name, heads in flat.items()
    ]
    constants += [
        onnx.numpy_helper.from_array(np.array([0, case.heads, 1, case.head_dim]), "heads"),
        onnx.numpy_helper.from_array(np.array(1, np.int32), "one"),
    ]
    make = onnx.helper.make_node
    nodes = [
        make("Reshape", ["q", "flat_q"], ["q3"]),
        make("Reshape", ["k", "flat_kv"], ["k3"]),
        make("Reshape", ["v", "flat_kv"], ["v3"]),
        make("ReduceMax", ["past_lengths"], ["longest"], keepdims=0),
        make("Add", ["longest", "one"], ["total"]),
        make(
            "GroupQueryAttention",
            ["q3", "k3", "v3", "past_key", "past_value", "past_lengths", "total"],
            ["out3", "present_key", "present_value"],
            domain="com.microsoft",
            num_heads=case.heads,
            kv_num_heads=case.kv_heads,
        ),
        make("Reshape", ["out3", "heads"], ["output"]),
    ]
    graph = onnx.helper.make_graph(nodes, "step", values(inputs), values(outputs), constants)
    opsets = [onnx.helper.make_opsetid(*pair) for pair in (("", 20), ("com.microsoft", 1))]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)

    def contracts(
        tensors: dict[str, tuple[str, tuple[str | int, ...]]],
    ) -> tuple[TensorContract, ...]:
        return tuple(
            TensorContract(name=name, dtype=dtype, dims=dims)
            for name, (dtype, dims) in tensors.items()
        )

    layout = CacheLayout(
        entries=tuple(
            CacheEntry(
                input=f"past_{name}", output=f"present_{name}", kind=EntryKind.FIXED, axis=2
            )
            for name in ("key", "value")
        ),
        lengths="past_lengths",
        capacity="capacity",
        in_place=True,
    )
    contract = Contract(
        inputs=contracts(inputs), outputs=contracts(outputs), cache=layout, form="gqa", opset=20
    )
    check = Check(name="parity", passed=True, detail="made up for a test")
    certificate = Certificate(digest=model_digest(path), verdict=Verdict.CAUSAL, checks=(check,))
    write_metadata(
        path, {CONTRACT_KEY: contract.to_json(), CERTIFICATE_KEY: certificate.to_json()}
    )
    return path
