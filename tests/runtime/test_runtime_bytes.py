"""The bytes that were checked are the bytes that run, whatever happens to the files meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_bytes import Node, Tensor, model
from runtime_cases import contract_of, passed_certificate, with_entries

from causal_attn.errors import CausalAttnError, PackageError, UsageError
from causal_attn.package import hold
from causal_attn.package.digest import CERTIFICATE_KEY, CONTRACT_KEY, model_digest
from causal_attn.runtime import load, loading
from causal_attn.runtime.ort import SessionOptions

DATA = "model.onnx.data"
ROWS = 64


@pytest.fixture(autouse=True)
def _no_file_of_that_name_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime looks in the working folder for the data of a model that it got as bytes."""
    here = tmp_path / "here"
    here.mkdir()
    (here / DATA).write_bytes(np.full(ROWS, 666, np.float32).tobytes())
    monkeypatch.chdir(here)


def write_model(folder: Path, inside: float, outside: float) -> Path:
    """``y = x + inside + outside``, certified, with `outside` as external data."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    constants = {
        "inside": np.full(ROWS, inside, np.float32),
        "outside": np.full(ROWS, outside, np.float32),
    }
    serialized = model(
        [Tensor("x", [ROWS])],
        [Tensor("y", [ROWS])],
        [Node("Add", ["x", "inside"], ["h"]), Node("Add", ["h", "outside"], ["y"])],
        constants,
        external={"outside": DATA},
    )
    (folder / DATA).write_bytes(constants["outside"].tobytes())
    path.write_bytes(serialized)
    x = ("float32", (ROWS,))
    entries = {
        CONTRACT_KEY: contract_of({"x": x}, {"y": x}).to_json(),
        CERTIFICATE_KEY: passed_certificate(model_digest(path)).to_json(),
    }
    path.write_bytes(with_entries(serialized, entries))
    return path


def answer(session: Any) -> float:
    result = session(np.zeros(ROWS, np.float32)).y
    assert (result == result[0]).all()
    return float(result[0])


class Opens:
    """Calls `then` at the `count`-th file that Python opens while it is on."""

    def __init__(self) -> None:
        self.left = -1
        self.then: Callable[[], object] = lambda: None
        sys.addaudithook(self._saw)

    def on(self, count: int, then: Callable[[], object]) -> None:
        self.left, self.then = count, then

    def _saw(self, event: str, _: object) -> None:
        if event == "open" and self.left >= 0:
            self.left -= 1
            if self.left < 0:
                self.then()


OPENS = Opens()


def exchange(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def replace_files(one: Path, other: Path) -> None:
    for name in ("model.onnx", DATA):
        os.replace(other / name, one / name)


def replace_data(one: Path, other: Path) -> None:
    os.replace(other / DATA, one / DATA)


def write_data(one: Path, other: Path) -> None:
    (one / DATA).write_bytes((other / DATA).read_bytes())


CHANGES = [exchange, replace_files, replace_data, write_data]


@pytest.fixture
def two(tmp_path: Path) -> Callable[[], tuple[Path, Path, dict[str, float]]]:
    """Two models that differ inside and outside, and what each digest must answer."""
    count = 0

    def make() -> tuple[Path, Path, dict[str, float]]:
        nonlocal count
        count += 1
        one, other = tmp_path / f"{count}/one", tmp_path / f"{count}/other"
        answers = {
            model_digest(write_model(one, 1, 10)): 11.0,
            model_digest(write_model(other, 2, 20)): 22.0,
        }
        return one, other, answers

    return make


@pytest.fixture(params=["copy", "map"])
def weights(request: pytest.FixtureRequest) -> Any:
    return request.param


def load_and_compare(path: Path, answers: dict[str, float], weights: Any) -> None:
    """A session answers as its certificate's graph does, or there is none."""
    try:
        session = load(path, weights=weights, intra_op_threads=1)
    except CausalAttnError:
        return
    assert session.certificate is not None
    assert answer(session) == answers[session.certificate.digest]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_any_open_gives_the_checked_bytes_or_an_error(
    two: Callable[[], tuple[Path, Path, dict[str, float]]],
    change: Callable[[Path, Path], None],
    weights: Any,
) -> None:
    count = 0
    for count in range(50):
        one, other, answers = two()
        OPENS.on(count, lambda one=one, other=other: change(one, other))  # type: ignore[misc]
        load_and_compare(one / "model.onnx", answers, weights)
        if OPENS.left >= 0:
            break
    OPENS.left = -1
    assert 3 <= count < 50


@pytest.fixture
def at_the_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Callable[[], object]]]:
    """Functions called right before and right after ONNX Runtime makes the session."""
    hooks: dict[str, Callable[[], object]] = {}
    original: Any = vars(loading)["open_engine"]

    def hooked(*arguments: Any, **named: Any) -> Any:
        hooks.get("before", lambda: None)()
        engine = original(*arguments, **named)
        hooks.get("after", lambda: None)()
        return engine

    monkeypatch.setattr(loading, "open_engine", hooked)
    yield hooks
    assert hooks


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_the_check_and_the_session_does_not_get_in(
    two: Callable[[], tuple[Path, Path, dict[str, float]]],
    change: Callable[[Path, Path], None],
    weights: Any,
    at_the_engine: dict[str, Callable[[], object]],
) -> None:
    one, other, answers = two()
    at_the_engine["before"] = lambda: change(one, other)
    load_and_compare(one / "model.onnx", answers, weights)


def test_what_was_copied_loads_whatever_changed(
    two: Callable[[], tuple[Path, Path, dict[str, float]]],
    at_the_engine: dict[str, Callable[[], object]],
) -> None:
    one, other, _ = two()
    at_the_engine["before"] = lambda: replace_files(one, other)
    with load(one / "model.onnx", weights="copy") as session:
        assert answer(session) == 11
        (one / DATA).write_bytes(b"")
        assert answer(session) == 11


@pytest.mark.parametrize("change", [exchange, replace_data])
def test_an_exchange_that_is_undone_in_time_is_found(
    two: Callable[[], tuple[Path, Path, dict[str, float]]],
    change: Callable[[Path, Path], None],
    at_the_engine: dict[str, Callable[[], object]],
) -> None:
    one, other, answers = two()
    away = one.with_name("away")

    def forth() -> None:
        if change is exchange:
            exchange(one, other)
        else:
            os.rename(one / DATA, away)
            os.rename(other / DATA, one / DATA)

    def back() -> None:
        if change is exchange:
            exchange(one, other)
        else:
            os.rename(one / DATA, other / DATA)
            os.rename(away, one / DATA)

    at_the_engine |= {"before": forth, "after": back}
    load_and_compare(one / "model.onnx", answers, "map")
    if change is replace_data:
        with pytest.raises(PackageError, match="must stay as it is while it is loaded"):
            load(one / "model.onnx", weights="map")


def test_what_is_hashed_and_what_is_mapped_go_by_one_name(
    two: Callable[[], tuple[Path, Path, dict[str, float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each folder has the data of the other, and they change places between two looks."""
    one, other, _ = two()
    for source, target in ((one / DATA, one / "x"), (other / DATA, one / DATA)):
        source.rename(target)
    (one / "x").rename(other / DATA)
    original: Any = vars(hold)["confined_file"]

    def confined(*arguments: Any) -> Any:
        found = original(*arguments)
        exchange(one, other)
        return found

    monkeypatch.setattr(hold, "confined_file", confined)
    with pytest.raises(CausalAttnError):
        load(one / "model.onnx", weights="map")


def test_cutting_the_files_never_ends_the_process(tmp_path: Path) -> None:
    """In a process of its own: SIGBUS would end this one."""
    code = f"""
        import sys
        sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
        from pathlib import Path
        from test_runtime_bytes import OPENS, DATA, write_model
        from causal_attn.errors import CausalAttnError
        from causal_attn.runtime import load

        outcomes = set()
        for count in range(12):
            for name in ("model.onnx", DATA):
                for size in (0, 40):
                    path = write_model(Path({str(tmp_path)!r}) / "cut", 1, 10)
                    OPENS.on(count, lambda: open(path.parent / name, "r+b").truncate(size))
                    try:
                        load(path, weights="copy").close()
                        outcomes.add("loaded")
                    except CausalAttnError as error:
                        outcomes.add(type(error).__name__)
                    OPENS.left = -1
        print(sorted(outcomes))
    """
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, (run.returncode, run.stderr)
    assert run.stdout.strip() == "['PackageError', 'loaded']"


def test_the_data_beside_the_process_is_never_read(tmp_path: Path, weights: Any) -> None:
    with load(write_model(tmp_path / "m", 1, 10), weights=weights) as session:
        assert answer(session) == 11


def test_mapped_weights_are_the_file_and_copied_ones_are_not(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", 1, 10)
    with load(path, weights="map") as mapped, load(path, weights="copy") as copied:
        with open(tmp_path / "m" / DATA, "r+b") as file:
            file.write(np.full(ROWS, 5, np.float32).tobytes())
        assert (answer(mapped), answer(copied)) == (6, 11)


def test_what_is_small_is_copied_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m", 1, 10)
    for limit, after in ((ROWS * 4, 11), (ROWS * 4 - 1, 6)):
        monkeypatch.setattr(hold, "COPIED_BYTES", limit)
        with load(path, accept="unverified") as session:
            (tmp_path / "m" / DATA).write_bytes(np.full(ROWS, 5, np.float32).tobytes())
            assert answer(session) == after
        (tmp_path / "m" / DATA).write_bytes(np.full(ROWS, 10, np.float32).tobytes())


def test_what_becomes_of_weights_is_one_of_two_words(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", 1, 10)
    for wrong in ("mmap", 0, True, "", ["copy"]):
        with pytest.raises(UsageError, match=r"`weights` must be one of \['copy', 'map'\]"):
            load(path, weights=wrong)  # type: ignore[arg-type]


def test_options_of_the_caller_do_not_keep_the_data_of_a_model(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / f"{n}", n, 10 * n) for n in (1, 2)]
    options = SessionOptions()
    sessions = [load(path, session_options=options, weights="copy") for path in paths]
    assert [answer(session) for session in sessions] == [11, 22]
    options = SessionOptions()
    with load(paths[0], session_options=options, weights="map") as session:
        assert answer(session) == 11
    with pytest.raises(UsageError, match="Make one SessionOptions for each"):
        load(paths[1], session_options=options, weights="map")


def test_bytes_that_onnx_runtime_would_read_as_its_own_format_are_not(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", 1, 10)
    renamed = path.rename(path.with_name("model.ort"))
    with load(renamed) as session:
        assert answer(session) == 11
        assert session._engine is not None
        options = session._engine.get_session_options()
        assert options.get_session_config_entry("session.load_model_format") == "ONNX"
