"""Whether a compiled graph says what the captured one says: every result against float64.

A captured graph is a part of a program: a slice of it between two breaks need not be causal on its
own, so causality is not a property to ask of it. What is asked is that it computes the same, on
the values it was called with, on fresh ones, and at sizes it was not called with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import numpy as np
import sympy
import torch
from torch import Tensor

from causal_attn.certificate import Check
from causal_attn.export.compile_graph import Plan
from causal_attn.export.oracle import baseline, oracle
from causal_attn.verify.feeds import Feeds
from causal_attn.verify.parity import Comparison, compare

__all__ = ["check_graph"]

_SIZES = (2, 3, 17, 33, 64)
"""torch.compile makes graphs of their own for 0 and 1."""


def check_graph(
    plan: Plan, run: Callable[[Mapping[str, Tensor]], list[Tensor]], provider: str
) -> Check:
    """Compare `run`, the compiled graph, with the captured one.

    Args:
        plan: Of the graph; its weights keep their values.
        run: Inputs by name to results, as a call will run it.
        provider: Where it runs.
    """
    right, plain = oracle(plan.target), baseline(plan.target)
    worst: Comparison | None = None
    ran, refused = 0, 0
    for where, tensors in _cases(plan):
        feeds = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        try:
            wanted, ordinary = right(_widened(feeds)), plain(feeds)
        except (RuntimeError, IndexError, ValueError):
            # Relations between sizes that the graph does not show: torch itself refuses them.
            refused += 1
            continue
        ran += 1
        for name, got in zip(plan.target.outputs, run(tensors), strict=True):
            found = compare(got.cpu().numpy(), wanted[name], ordinary[name])
            if not found.passed:
                return _check(False, f"`{name}` {where}: {found.reason}", provider)
            if worst is None or found.max_abs > worst.max_abs:
                worst = found
    if worst is None:
        return _check(None, "torch itself runs it on no inputs that were tried", provider)
    skipped = f", {refused} sizes that torch refuses left out" if refused else ""
    return _check(
        True,
        f"{ran} runs against float64{skipped}; largest error {worst.max_abs:.2g}, "
        f"budget {worst.budget:.2g}",
        provider,
    )


def _check(passed: bool | None, detail: str, provider: str) -> Check:
    return Check(name="parity", passed=passed, detail=detail, provider=provider)


def _cases(plan: Plan) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The inputs of the call, fresh values at its sizes, fresh values at others."""
    generator = torch.Generator().manual_seed(0)
    examples = dict(plan.target.examples)
    yield "as called", examples
    symbols = sorted({s for size in plan.sizes.values() for s in size.free_symbols}, key=str)
    for sizes in [None, *_sizes(plan, symbols)] if symbols else [None]:
        fresh = {
            name: example
            if name in plan.weights
            else _fresh(
                example, example.shape if sizes is None else plan.shape(name, sizes), generator
            )
            for name, example in examples.items()
        }
        text = "" if sizes is None else ", ".join(f"{s}={size}" for s, size in sizes.items())
        yield f"with fresh values{text and ' at '}{text}", fresh


def _sizes(plan: Plan, symbols: list[sympy.Symbol]) -> Iterator[dict[sympy.Symbol, int]]:
    """Sizes within the ranges, different ones for different symbols."""
    for case in range(len(_SIZES)):
        sizes = {}
        for index, symbol in enumerate(symbols):
            low, high = plan.target.ranges.get(str(symbol), (2, _SIZES[-1]))
            wanted = next(islice(_SIZES, (case + 2 * index) % len(_SIZES), None))
            sizes[symbol] = sympy.Integer(min(max(wanted, low), high))
        yield sizes


def _fresh(example: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """New values like those of `example`: its own integers, truth values and infinities.

    An index stays within the table it was made for, and an additive mask stays one.
    """
    finite = example.isfinite() if example.is_floating_point() else None
    if finite is not None and bool(finite.all()):
        spread = float(example.double().std()) if example.numel() > 1 else 0.0
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        drawn = values * (spread or 1.0) + float(example.double().mean() if example.numel() else 0)
        return drawn.to(example.dtype).to(example.device)
    if not example.numel():
        return example.new_zeros(shape)
    picked = torch.randint(example.numel(), shape, generator=generator)
    return example.flatten()[picked.to(example.device)]


def _widened(feeds: Feeds) -> Feeds:
    return {
        name: array.astype(np.float64) if array.dtype.kind == "f" else array
        for name, array in feeds.items()
    }
