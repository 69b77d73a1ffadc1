"""Whatever hypothesis draws for an argument, a call gives a result or an error of ours.

The surface is found by its own signatures, as in `test_runtime_misuse`, and that of generation is
added here, with what it gives back: streams and iterators are read for a few tokens.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_runtime_misuse import SURFACE, VALUES, public
from toy_decoder import write_decoder

from causal_attn import models
from causal_attn.errors import CausalAttnError
from causal_attn.runtime import Batcher, Session
from causal_attn.runtime.engine import Engine, Stream
from causal_attn.runtime.generate import Decoder, Decoding, Generator, Sampling

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.sampled_from(VALUES)
)
ANY = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)

Calls = dict[str, Callable[[Path], Callable[..., Any]]]


def generating() -> Calls:
    """Functions and methods of generation: name, and how to get a fresh one of a package."""
    made: dict[type, Callable[[Path], Any]] = {
        Generator: Generator.open,
        Engine: lambda path: Engine(Generator.open(path)),
        Decoding: lambda path: Generator.open(path).start(),
    }
    calls: Calls = {"Sampling": lambda _: Sampling, "Decoder": lambda _: Decoder}
    for owner, make in made.items():
        for name in public(owner):
            # `decoder.call` and what an engine is built from take what this package made itself.
            calls[f"{owner.__name__}.{name}"] = lambda path, make=make, name=name: getattr(  # type: ignore[misc]
                make(path), name
            )
    return calls


GENERATING = generating()

RIGHT: dict[str, Any] = {"prompt": [1, 2], "ids": [1, 2], "count": 0}
"""What an argument is drawn as every other time, so that calls get past it."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("toy") / "package")


def named_arguments(data: st.DataObject, call: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(call).parameters.values()
    named = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in RIGHT and data.draw(st.booleans()):
            named[parameter.name] = RIGHT[parameter.name]
        elif parameter.default is parameter.empty or data.draw(st.booleans()):
            named[parameter.name] = data.draw(ANY)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        words = ["max_tokens", "digest", "weights"]
        if "prompt" in named:
            words = ["max_new_tokens", "stop", "ends", "logprobs", "seed", "x"]
        named |= data.draw(st.dictionaries(st.sampled_from(words), ANY, max_size=2))
    return named


def used(result: Any) -> None:
    """Read what a call gave, as its caller would."""
    if inspect.iscoroutine(result):
        asyncio.run(result)
    elif isinstance(result, Stream | Iterator):
        list(itertools.islice(result, 3))
    if isinstance(result, Session | Batcher | Generator):
        result.close()


@pytest.mark.parametrize("name", [*SURFACE, *GENERATING])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_call_gives_a_result_or_an_error_of_ours(
    toy: Path, name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    package = toy if name in GENERATING else Path(models.path("causal_attention"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        call = (GENERATING | SURFACE)[name](package)
        owner = getattr(call, "__self__", None)
        try:
            used(call(**named_arguments(data, call)))
        except CausalAttnError:
            pass
        finally:
            if isinstance(owner, Engine):
                owner.close(drain=False)


def test_the_surface_of_generation_is_found() -> None:
    assert GENERATING.keys() >= {
        "Generator.generate", "Generator.request", "Generator.open", "Engine.submit",
        "Engine.close", "Decoding.feed", "Decoding.rewind", "Sampling", "Decoder",
    }  # fmt: skip
