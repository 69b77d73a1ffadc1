"""What generates, each in a process of its own, and what the machine could read meanwhile.

::

    {"do": "prepare", "source": "…"}                 -> {"bytes": 1234}
    {"do": "turn", "prompt": […], "new": 128}        -> {"prefill": s, "decode": s, "ids": […]}
    {"do": "many", "prompts": [[…], …], "new": […]}  -> {"seconds": s, "tokens": n}
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from causal_attn.machine.provider import Provider

__all__ = ["GENAI", "GENERATORS", "OURS", "READS", "SERVE", "TRANSFORMERS", "serve"]

OURS, GENAI, TRANSFORMERS = "causal_attn", "onnxruntime-genai", "transformers"
GENERATORS = (OURS, GENAI, TRANSFORMERS)
"""Systems that generate, the first of them this package."""

READS = "reads"
"""Name of the process that measures how fast the machine reads memory."""

SERVE = f"{__name__}:serve"
"""The role of every worker."""

_READ_BYTES = 1 << 29
"""More than any cache holds: a step reads all weights once."""


def serve(name: str, provider: Provider) -> Any:
    """What answers for `READS` or the system `name`, on `provider`."""
    return _SERVED[name](provider)


class _Ours:
    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def do_prepare(self, source: str) -> dict[str, Any]:
        from causal_attn.package import read_package
        from causal_attn.runtime.generate import Generator

        variant = read_package(Path(source)).select(self._provider, None, None)
        files = [variant.model, *variant.directory.glob(f"{Path(variant.model).name}.*")]
        self._generator = Generator.open(source, str(self._provider))
        return {"bytes": sum(path.stat().st_size for path in set(files))}

    def do_turn(self, prompt: list[int], new: int) -> dict[str, Any]:
        sequence = self._generator.start()
        return _timed(sequence.feed, prompt, new)

    def do_many(self, prompts: list[list[int]], new: list[int], at_once: int) -> dict[str, Any]:
        """All of `prompts`, `at_once` of them in the engine's batch, or one after another."""
        from causal_attn.runtime.engine import Engine
        from causal_attn.runtime.generate import Generator

        start = time.perf_counter()
        if at_once == 1:
            count = 0
            for prompt, most in zip(prompts, new, strict=True):
                stream = self._generator.generate(prompt, max_new_tokens=most, ends=())
                count += len(list(stream))
            return {"seconds": time.perf_counter() - start, "tokens": count}
        # The engine closes its generator, and the session is used again.
        twin = Generator(self._generator.decoder.session)
        twin.close = lambda: None  # type: ignore[method-assign]
        with Engine(twin, max_running=at_once, max_waiting=len(prompts)) as engine:
            streams = [
                engine.submit(prompt, max_new_tokens=most, ends=())
                for prompt, most in zip(prompts, new, strict=True)
            ]
            first, gaps = _watched(streams, start)
            counts = engine.counts
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": counts.tokens, "first": first, "gaps": gaps}


class _Genai:
    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def do_prepare(self, source: str) -> dict[str, Any]:
        # It has no types for mypy to see.
        self._library = import_module("onnxruntime_genai")
        folder = Path(source)
        if (folder / "manifest.json").is_file():
            from causal_attn.package import read_package

            folder = read_package(folder).select(self._provider, None, None).directory
        self._model = self._library.Model(str(folder))
        return {"bytes": sum(path.stat().st_size for path in folder.glob("model.onnx*"))}

    def do_turn(self, prompt: list[int], new: int) -> dict[str, Any]:
        parameters = self._library.GeneratorParams(self._model)
        length = len(prompt) + new
        parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
        start = time.perf_counter()
        generator = self._library.Generator(self._model, parameters)
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        prefill = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(new - 1):
            generator.generate_next_token()
        decode = (time.perf_counter() - start) / (new - 1)
        ids = [int(token) for token in generator.get_sequence(0)[len(prompt) :]]
        return {"prefill": prefill, "decode": decode, "ids": ids}


class _Transformers:
    def __init__(self, provider: Provider) -> None:
        if provider is not Provider.CPU:
            raise ValueError("transformers is measured on the CPU alone")

    def do_prepare(self, source: str) -> dict[str, Any]:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(
            source, local_files_only=True, trust_remote_code=False, dtype=torch.float32
        ).eval()
        return {"bytes": sum(p.numel() * p.element_size() for p in self._model.parameters())}

    def do_turn(self, prompt: list[int], new: int) -> dict[str, Any]:
        cache: Any = None

        def feed(ids: Sequence[int]) -> Any:
            nonlocal cache
            with self._torch.no_grad():
                result = self._model(
                    input_ids=self._torch.tensor([list(ids)]),
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
            cache = result.past_key_values
            return result.logits[0, -1].numpy()

        return _timed(feed, prompt, new)


class _Reads:
    def __init__(self, provider: Provider) -> None:
        self._array = np.ones(_READ_BYTES // 8)

    def do_turn(self, threads: int) -> dict[str, Any]:
        """Bytes a second that `threads` together read, the best of a few tries."""
        from concurrent.futures import ThreadPoolExecutor

        parts = np.array_split(self._array, threads)
        best = 0.0
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(5):
                start = time.perf_counter()
                # numpy lets go of the interpreter's lock while it sums.
                list(pool.map(np.sum, parts))
                best = max(best, _READ_BYTES / (time.perf_counter() - start))
        return {"rate": best}


def _timed(feed: Callable[[Sequence[int]], Any], prompt: list[int], new: int) -> dict[str, Any]:
    """Greedy decoding by `feed`, which gives the logits after what it is fed."""
    start = time.perf_counter()
    ids = [int(feed(prompt).argmax())]
    prefill = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(new - 1):
        ids.append(int(feed(ids[-1:]).argmax()))
    return {"prefill": prefill, "decode": (time.perf_counter() - start) / (new - 1), "ids": ids}


def _watched(streams: Sequence[Any], start: float) -> tuple[list[float], list[float]]:
    """Seconds to the first token of each stream, and between the tokens of all."""
    import threading

    first: list[float] = []
    gaps: list[float] = []

    def watch(stream: Any) -> None:
        last = start
        for index, _ in enumerate(stream):
            now = time.perf_counter()
            (gaps if index else first).append(now - last)
            last = now

    threads = [threading.Thread(target=watch, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return first, gaps


_SERVED: Mapping[str, Callable[[Provider], Any]] = {
    OURS: _Ours,
    GENAI: _Genai,
    TRANSFORMERS: _Transformers,
    READS: _Reads,
}
