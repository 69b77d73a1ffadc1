"""A session computes the right numbers, owns its results, and can be closed at any time."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_bytes import Node, Tensor, model
from runtime_cases import attention_bytes, attention_contract, contract_of, expected

from causal_attn.errors import ClosedError, EngineError, InputError
from causal_attn.machine.provider import Provider
from causal_attn.runtime import Outputs, load
from causal_attn.runtime.outputs import identifiers

Arrays = tuple[NDArray[np.float32], ...]


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 16, 33])
def test_agrees_with_the_definition(attention: Path, provider: Provider, tokens: int) -> None:
    random = np.random.default_rng(tokens)
    arrays = [random.standard_normal((2, 2, tokens, 3), np.float32) for _ in range(3)]
    with load(attention, provider) as session:
        result = session(*arrays)
    for ours, theirs in zip(result, expected(*arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert np.array_equal(np.triu(result.weights, 1), np.zeros_like(result.weights))


def test_result_is_a_named_tuple_in_the_order_of_the_contract(
    attention: Path, qkv: Arrays
) -> None:
    with load(attention) as session:
        result = session(*qkv)
        output, weights = result
        assert isinstance(result, Outputs)
        assert result._fields == ("output", "weights")
        assert result.output is output
        assert result.weights is weights
        assert list(result._asdict()) == ["output", "weights"]
        by_name = session(qkv[0], v=qkv[2], k=qkv[1])
        assert np.array_equal(by_name.output, output)
        fed = session.run(dict(zip("qkv", qkv, strict=True)))
        assert list(fed) == ["output", "weights"]
        assert np.array_equal(fed["weights"], weights)
        only = session.run(dict(zip("qkv", qkv, strict=True)), ["weights"])
        assert list(only) == ["weights"]
        assert np.array_equal(only["weights"], weights)


def test_result_pickles(attention: Path, qkv: Arrays) -> None:
    with load(attention) as session:
        result = session(*qkv)
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is type(result)
    assert np.array_equal(again.weights, result.weights)


def lines_run(names: list[str]) -> int:
    """Lines of Python that `identifiers` runs for `names`."""
    lines = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code is identifiers.__code__ else None

    sys.settrace(count)
    try:
        assert len(set(identifiers(names))) == len(names)
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize(
    "names",
    [
        lambda n: ["." * k for k in range(1, n)],
        lambda n: [f"a_{k}" for k in range(n)] + ["a."] * n,
    ],
    ids=["all alike", "the numbers are taken"],
)
def test_names_that_collide_take_no_longer_each(names: Callable[[int], list[str]]) -> None:
    assert lines_run(names(1_500)) < 3 * lines_run(names(750))


def test_names_become_distinct_identifiers() -> None:
    names = ["present.0.key", "present_0_key", "0", "class", "_x", "logits", "größe", ""]
    fields = identifiers(names)
    assert fields[0] == "present_0_key"
    assert fields[3] == "class_"
    assert fields[5] == "logits"
    assert len(set(fields)) == len(names)
    assert all(field.isidentifier() and not field.startswith("_") for field in fields)


def test_inputs_may_have_any_name(lone_model: Callable[..., Path]) -> None:
    serialized = model(
        [Tensor("self", ["n"]), Tensor("past.0.key", ["n"])],
        [Tensor("present.0.key", ["n"])],
        [Node("Add", ["self", "past.0.key"], ["present.0.key"], "add")],
    )
    dims = ("float32", ("n",))
    contract = contract_of({"self": dims, "past.0.key": dims}, {"present.0.key": dims})
    one = np.ones(2, np.float32)
    with load(lone_model(serialized, contract)) as session:
        assert session(**{"self": one, "past.0.key": one}).present_0_key.tolist() == [2, 2]
        assert list(session.run({"self": one, "past.0.key": one})) == ["present.0.key"]


@pytest.mark.parametrize("outputs", [["none"], [], "output"])
def test_unknown_outputs_are_refused(attention: Path, qkv: Arrays, outputs: Any) -> None:
    with load(attention) as session, pytest.raises(InputError, match=r"`outputs` must be"):
        session.run(dict(zip("qkv", qkv, strict=True)), outputs)


def test_results_are_not_overwritten_and_outlive_the_session(
    attention: Path, provider: Provider, qkv: Arrays
) -> None:
    with load(attention, provider) as session:
        first = session(*qkv)
        kept = [array.copy() for array in first]
        for shift in range(8):
            session(*(array + shift for array in qkv))
    del session
    for array, copy in zip(first, kept, strict=True):
        assert np.array_equal(array, copy)
        assert array.flags.writeable


def test_results_do_not_share_memory_with_feeds(
    lone_model: Callable[..., Path], provider: Provider
) -> None:
    serialized = model(
        [Tensor("x", ["tokens"])],
        [Tensor("y", ["tokens"]), Tensor("z", ["tokens"])],
        [Node("Identity", ["x"], ["y"], "copy"), Node("Relu", ["x"], ["z"], "relu")],
    )
    dims = ("float32", ("tokens",))
    path = lone_model(serialized, contract_of({"x": dims}, {"y": dims, "z": dims}))
    x = np.arange(4, dtype=np.float32)
    with load(path, provider) as session:
        result = session(x)
        result.y[:] = 9
        assert np.array_equal(x, [0, 1, 2, 3])
        assert np.array_equal(result.z, [0, 1, 2, 3])
        assert np.array_equal(session(x).y, [0, 1, 2, 3])


def test_close_is_idempotent_and_final(attention: Path, qkv: Arrays) -> None:
    session = load(attention)
    assert not session.closed
    assert repr(session) == "<Session (q, k, v) -> (output, weights) on cpu>"
    session.close()
    session.close()
    assert session.closed
    assert "closed" in repr(session)
    with pytest.raises(ClosedError, match=r"must be open"):
        session(*qkv)
    with pytest.raises(ClosedError):
        session.run(dict(zip("qkv", qkv, strict=True)))
    with pytest.raises(ClosedError), session:
        pass
    assert session.contract == attention_contract()


def test_the_with_statement_closes_on_an_error(attention: Path) -> None:
    with pytest.raises(KeyError), load(attention) as session:
        raise KeyError
    assert session.closed


def test_many_threads_share_a_session(attention: Path, provider: Provider) -> None:
    random = np.random.default_rng(1)
    cases = [
        [random.standard_normal((1, 2, 1 + case % 9, 4), np.float32) for _ in range(3)]
        for case in range(64)
    ]
    with load(attention, provider) as session, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda arrays: session(*arrays), cases))
    for arrays, result in zip(cases, results, strict=True):
        np.testing.assert_allclose(result.output, expected(*arrays)[0], rtol=1e-5, atol=1e-6)


def test_close_during_calls_lets_them_finish(attention: Path, provider: Provider) -> None:
    random = np.random.default_rng(2)
    arrays = [random.standard_normal((1, 4, 128, 16), np.float32) for _ in range(3)]
    right = expected(*arrays)[0]
    session = load(attention, provider)
    started = threading.Barrier(5)
    finished: list[NDArray[Any]] = []
    others: list[BaseException] = []

    def call_until_closed() -> None:
        started.wait()
        try:
            while True:
                finished.append(session(*arrays).output)
        except ClosedError:
            pass
        except BaseException as error:
            others.append(error)
            raise

    threads = [threading.Thread(target=call_until_closed) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    while not finished:
        pass
    session.close()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    assert not others
    for output in finished:
        np.testing.assert_allclose(output, right, rtol=1e-4, atol=1e-5)


def test_closing_frees_the_engine(attention: Path) -> None:
    import gc
    import weakref

    session = load(attention)
    engine = weakref.ref(session._engine)
    session.close()
    gc.collect()
    assert engine() is None


def test_a_failure_inside_the_graph_is_an_engine_error(
    lone_model: Callable[..., Path], provider: Provider, capfd: pytest.CaptureFixture[str]
) -> None:
    serialized = model(
        [Tensor("x", ["n"]), Tensor("y", ["m"])],
        [Tensor("z", ["n"])],
        [Node("Add", ["x", "y"], ["z"], "add")],
    )
    contract = contract_of(
        {"x": ("float32", ("n",)), "y": ("float32", ("m",))}, {"z": ("float32", ("n",))}
    )
    with load(lone_model(serialized, contract), provider) as session:
        with pytest.raises(EngineError, match=r"while running the model") as caught:
            session(np.ones(3, np.float32), np.ones(4, np.float32))
        assert caught.value.__cause__ is not None
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dtype_of_the_results_is_that_of_the_contract(
    lone_model: Callable[..., Path], provider: Provider, qkv: Arrays, dtype: str
) -> None:
    path = lone_model(attention_bytes(dtype), attention_contract(dtype))
    with load(path, provider) as session:
        result = session(*(array.astype(dtype) for array in qkv))
    assert [array.dtype for array in result] == [np.dtype(dtype)] * 2
    np.testing.assert_allclose(result.output, expected(*qkv)[0], atol=1e-2)
