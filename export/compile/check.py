"""Whether a compiled graph says what the captured one says: every result against float64.

A captured graph is a part of a program: a slice of it between two breaks need not be causal on its
own, so causality is not a property to ask of it. What is asked is that it computes the same, on
the values it was called with, on fresh ones, and at sizes it was not called with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from causal_attn.errors import InputError
from causal_attn.export.compile.plan import Plan
from causal_attn.export.torch_runs import yardstick
from causal_attn.package.certificate import Check
from causal_attn.package.contract import Contract
from causal_attn.verify.compare.honest_errors import HonestErrors
from causal_attn.verify.feeds.feeder import Feeder
from causal_attn.verify.oracle.yardstick import widened

__all__ = ["check_parity"]

_SIZES = (2, 3, 17, 33, 64)
"""torch.compile makes graphs of their own for 0 and 1."""


def check_parity(
    plan: Plan,
    contract: Contract,
    guards: Sequence[sympy.Expr],
    run: Callable[[Mapping[str, Tensor]], Sequence[Tensor]],
    provider: str,
) -> Check:
    """Compare `run`, the compiled graph, with the captured one.

    Args:
        plan: Of the graph; its weights keep their values.
        contract: Of the exported graph, whose dims say which lengths belong together.
        guards: What holds of the lengths where the graph runs.
        run: Inputs by name to results, as a call will run it.
        provider: Where it runs.
    """
    held_against = yardstick(plan.target)
    errors = HonestErrors()
    ran, refused = 0, 0
    for where, tensors in _cases(plan, contract, guards):
        feeds = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        try:
            wanted = held_against.oracle(widened(feeds))
            honest = {"plain": held_against.baseline(feeds)}
            if held_against.rounded is not None:
                honest["rounded"] = held_against.rounded(widened(feeds), ran)
        except InputError:
            # Relations between sizes that the graph does not show: torch itself refuses them.
            refused += 1
            continue
        ran += 1
        results = zip(plan.target.outputs, run(tensors), strict=True)
        got = {name: tensor.cpu().numpy() for name, tensor in results}
        if fault := errors.add(where, got, wanted, honest):
            return _check(False, fault, provider)
    if not ran:
        return _check(None, "torch itself runs it on no inputs that were tried", provider)
    found = errors.judged()
    if found.fault or found.worst is None:
        return _check(False, found.fault, provider)
    skipped = f", {refused} sizes that torch refuses left out" if refused else ""
    return _check(
        True,
        f"{ran} runs against float64{skipped}; largest error {found.worst.max_abs:.2g}, "
        f"budget {found.worst.budget:.2g}",
        provider,
    )


def _check(passed: bool | None, detail: str, provider: str) -> Check:
    return Check(name="parity", passed=passed, detail=detail, provider=provider)


def _cases(
    plan: Plan, contract: Contract, guards: Sequence[sympy.Expr]
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The inputs of the call, fresh values at its sizes, fresh values at others."""
    generator = torch.Generator().manual_seed(0)
    examples = plan.target.examples
    shapes = {name: tuple(example.shape) for name, example in examples.items()}
    yield "as called", dict(examples)
    yield "with fresh values", _draw(plan, shapes, generator)
    for sizes in _sizes(contract, guards):
        feeder = Feeder(contract=contract)
        others = {tensor.name: feeder.shape(tensor, sizes) for tensor in contract.inputs}
        text = ", ".join(f"{name}={size}" for name, size in sizes.items())
        yield f"with fresh values at {text}", _draw(plan, shapes | others, generator)


def _draw(
    plan: Plan, shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator
) -> dict[str, Tensor]:
    return {
        name: example if name in plan.weights else _fresh(example, shapes[name], generator)
        for name, example in plan.target.examples.items()
    }


def _sizes(contract: Contract, guards: Sequence[sympy.Expr]) -> Iterator[dict[str, int]]:
    """Sizes that keep the guards, different ones for different dims."""
    dims = {dim for tensor in contract.inputs for dim in tensor.dims if isinstance(dim, str)}
    names = sorted({term for dim in dims for term in re.findall(r"[A-Za-z_]\w*", dim)})
    for case in range(len(_SIZES) if names else 0):
        sizes = {
            name: _SIZES[(case + 2 * index) % len(_SIZES)] for index, name in enumerate(names)
        }
        if all(_holds(guard, sizes) for guard in guards):
            yield sizes


def _holds(guard: sympy.Expr, sizes: Mapping[str, int]) -> bool:
    """Whether `guard` is kept, as far as `sizes` decide it."""
    decided = [symbol for symbol in guard.free_symbols if str(symbol) in sizes]
    known = {symbol: sympy.Integer(sizes[str(symbol)]) for symbol in decided}
    return guard.xreplace(known) is not sympy.false


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
