"""Whatever is given to the public surface, what comes back is a result or an error of ours.

The surface is found by its own signatures, so that a method or an argument that is added is
covered without a thought. Values are those that break things most; `test_any_value` draws others.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from causal_attn import runtime
from causal_attn.errors import CausalAttnError, InputError, UsageError
from causal_attn.runtime import Batcher, Binding, Cancellation, Session, load
from causal_attn.runtime.ort import value_of

Q = np.ones((1, 1, 3, 2), np.float32)
FEEDS = {"q": Q, "k": Q, "v": Q}
MASKED = np.ma.masked_array(Q, mask=Q > 0)


class Hostile:
    """Says that it is anything and does nothing."""

    def __fspath__(self) -> str:
        return "nowhere"

    def __len__(self) -> int:
        return 3

    def __dlpack__(self, **_: Any) -> None:
        return None


def frozen() -> Any:
    array = Q.copy()
    array.flags.writeable = False
    return array


VALUES: list[Any] = [
    None, True, 0, 1, -1, 5, 2**31, 2**70, 1.5, float("nan"), "", "abc", "q", "output", "cpu",
    "a\0b", "\ud800", b"", b"abc", [], [1], ["output"], [[]], [None], (), (Q, Q, Q), [Q, Q, Q],
    {}, {1: 2}, {1: Q}, {"q": Q}, {"q": None}, {"q": MASKED}, {"output": "q"}, {"output": []},
    {None: "q"}, FEEDS, {(1,): Q}, {"a": None}, {"a": "1"}, set(), object(), Hostile(), int,
    len, Path(), Q,
    MASKED, frozen(), Q[..., ::-1], Q.astype(">f4"), Q.astype(object), np.array("x"),
    np.zeros(0, "f4"),
    Q.view(np.recarray), np.float32(1), np.int64(2), range(3), iter(()), "a" * 5_000,
]  # fmt: skip


def public(owner: type) -> Iterator[str]:
    for name, value in inspect.getmembers(owner):
        if callable(value) and (not name.startswith("_") or name == "__call__"):
            yield name


def surface() -> dict[str, Callable[[Path], Callable[..., Any]]]:
    """Every function and method that services may call: its name, and how to get a fresh one."""

    def of(owner: Callable[[Path], Any], name: str) -> Callable[[Path], Callable[..., Any]]:
        return lambda path: getattr(owner(path), name)

    made: dict[type, Callable[[Path], Any]] = {
        Session: load,
        Binding: lambda path: load(path).bind(FEEDS),
        Cancellation: lambda _: Cancellation(),
        Batcher: lambda path: Batcher(load(path), delay_seconds=0),
    }
    calls: dict[str, Callable[[Path], Callable[..., Any]]] = {}
    for name in runtime.__all__:
        value = getattr(runtime, name)
        if inspect.isfunction(value) or value in (Batcher, Cancellation):
            calls[name] = lambda _, value=value: value  # type: ignore[misc]
        if value in made:
            calls |= {f"{name}.{method}": of(made[value], method) for method in public(value)}
    return calls


SURFACE = surface()


def test_the_surface_is_found() -> None:
    assert SURFACE.keys() >= {
        "load", "available_providers", "Cancellation", "Session.__call__", "Session.run",
        "Session.bind", "Session.run_shared", "Session.share", "Session.close", "Binding.run",
        "Binding.update", "Binding.read", "Cancellation.cancel", "Batcher", "Batcher.__call__",
        "Session.check",
    }  # fmt: skip


def arguments(call: Callable[..., Any], path: Path) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """What to call it with: each argument wrong by itself, then several at once."""
    right: dict[str, Any] = {
        "path": path,
        "feeds": FEEDS,
        "values": {name: value_of(array) for name, array in FEEDS.items()},
        "name": "output",
        "provider": "cpu",
        "seconds": 1,
    }
    signature = inspect.signature(call)
    if "session" in signature.parameters:
        right["session"] = load(path)
    named = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    needed = {
        name: right[name]
        for name in named
        if name in right and signature.parameters[name].default is inspect.Parameter.empty
    }
    for name, value in itertools.product(named, VALUES):
        yield [], {**needed, name: value}
    if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        for value in VALUES:
            yield [value], {}
            yield [Q, value, Q], {}
            yield [Q, Q], {"v": value}
            yield [Q, Q, Q, value], {"w": value}
    chance = random.Random(0)
    for _ in range(60):
        yield [], {**needed, **{name: chance.choice(VALUES) for name in named}}


@pytest.mark.parametrize("name", SURFACE)
def test_a_call_with_anything_gives_a_result_or_an_error_of_ours(
    attention: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    call = SURFACE[name](attention)
    for positional, named in arguments(call, attention):
        try:
            result = call(*positional, **named)
        except CausalAttnError:
            continue
        except Exception as error:  # noqa: BLE001 - the test is that there is none
            pytest.fail(f"{name}(*{positional!r}, **{named!r}) gave {error!r}")
        if inspect.iscoroutine(result):
            try:
                asyncio.run(result)
            except CausalAttnError:
                continue
        if isinstance(result, Session | Batcher):
            result.close()


@pytest.mark.parametrize("path", [None, 0, True, 1.5, [], object(), b"model.onnx", Hostile])
def test_a_path_is_text_or_a_path(path: Any) -> None:
    with pytest.raises(UsageError, match=r"`path` must be a str or a pathlib\.Path, got"):
        load(path)


@pytest.mark.parametrize("threads", [4097, 2**31, 2**70])
def test_threads_have_an_end(attention: Path, threads: int) -> None:
    with pytest.raises(UsageError, match="at most 4096"):
        load(attention, intra_op_threads=threads)


def test_the_mask_of_a_masked_array_is_never_dropped(attention: Path) -> None:
    with load(attention) as session:
        binding = session.bind(FEEDS)
        with pytest.raises(InputError, match=r"as it was bound.*got MaskedArray"):
            binding.update({"q": MASKED})
        with pytest.raises(InputError, match="MaskedArray, whose mask would be lost"):
            session.share(MASKED)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_belongs_to_a_process_says_so(attention: Path, copied: Callable[[Any], Any]) -> None:
    with load(attention) as session:
        for thing, remedy in (
            (session, "Send the path, and load it"),
            (session.bind(FEEDS), "Send what `read` returns"),
            (Cancellation(), "must stay in its process"),
        ):
            with pytest.raises(UsageError, match=remedy):
                copied(thing)
