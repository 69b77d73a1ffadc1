"""`on_call` is told of every call: how long, how large, beside how many, and what went wrong."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from causal_attn.errors import ClosedError, InputError, UsageError
from causal_attn.runtime import Call, Session, load
from causal_attn.runtime.ort import value_of

Arrays = tuple[NDArray[np.float32], ...]
SIZES = {"batch": 2, "heads": 3, "tokens": 5, "features": 4}


def test_every_way_to_call_is_told(attention: Path, qkv: Arrays) -> None:
    seen: list[Call] = []
    feeds = dict(zip("qkv", qkv, strict=True))
    with load(attention, on_call=seen.append) as session:
        result = session(*qkv)
        session(qkv[0], k=qkv[1], v=qkv[2])
        named = session.run(feeds)
        binding = session.bind(feeds)
        assert len(seen) == 3
        binding.run()
        session.run_shared({name: value_of(array) for name, array in feeds.items()})
    assert [call.sizes for call in seen] == [SIZES] * 5
    assert all(0 < call.seconds < 60 and call.error is None and call.queued == 0 for call in seen)
    with load(attention) as plain:
        assert type(plain) is Session
        np.testing.assert_array_equal(plain(*qkv).output, result.output)
        np.testing.assert_array_equal(named["output"], result.output)


def test_an_error_is_told_by_its_name_and_raised(attention: Path, qkv: Arrays) -> None:
    seen: list[Call] = []
    q, k, v = qkv
    with load(attention, on_call=seen.append) as session:
        with pytest.raises(InputError):
            session(q, k, v[:, :, :-1])
        with pytest.raises(InputError):
            session.run(None)  # type: ignore[arg-type]
    with pytest.raises(ClosedError):
        session(q, k, v)
    assert [call.error for call in seen] == ["InputError", "InputError", "ClosedError"]
    assert [call.sizes for call in seen] == [SIZES, {}, SIZES]


def test_calls_under_way_are_counted(
    attention: Path, qkv: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Call] = []
    inside, go_on = threading.Event(), threading.Event()

    with load(attention, on_call=seen.append) as session:
        run = session._feeds.bind

        def slow(*arguments: Any) -> Any:
            inside.set()
            go_on.wait(60)
            return run(*arguments)

        monkeypatch.setattr(session._feeds, "bind", slow)
        other = threading.Thread(target=session, args=qkv)
        other.start()
        inside.wait(60)
        session.run(dict(zip("qkv", qkv, strict=True)))
        go_on.set()
        other.join()
        session.run(dict(zip("qkv", qkv, strict=True)))
    assert [call.queued for call in seen] == [1, 0, 0]


def test_what_the_hook_raises_reaches_the_caller(attention: Path, qkv: Arrays) -> None:
    def broken(call: Call) -> None:
        raise LookupError(call.error)

    with load(attention, on_call=broken) as session:
        with pytest.raises(LookupError, match="None"):
            session(*qkv)
        with pytest.raises(LookupError, match="InputError") as raised:
            session(qkv[0])
        assert isinstance(raised.value.__context__, InputError)


@pytest.mark.parametrize("wrong", [0, "print", [print]])
def test_a_hook_is_callable(attention: Path, wrong: Any) -> None:
    with pytest.raises(UsageError, match="`on_call` must be callable or None, got"):
        load(attention, on_call=wrong)
