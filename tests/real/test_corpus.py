"""Modules that people have are exported unchanged, and say what they say in eager torch.

Each is compared at numbers of tokens and batches at which it was neither traced nor checked.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus.table import TARGETS, WRONG
from corpus.target import RealTarget
from numpy.typing import NDArray
from sampled import sampled
from torch import Tensor
from torch.utils._pytree import tree_leaves

from causal_attn.errors import CausalAttnError, InputError
from causal_attn.export import export
from causal_attn.export.arithmetic import InFloat64
from causal_attn.export.eager import as_written
from causal_attn.package import Package
from causal_attn.runtime import Session, load

CHECKED = (1, 2, 7, 33)
FRESH = (
    {"batch": 1, "tokens": 1, "past_tokens": 0, "memory": 3},
    {"batch": 3, "tokens": 4, "past_tokens": 9, "memory": 1},
    {"batch": 2, "tokens": 20, "past_tokens": 2, "memory": 9},
    {"batch": 1, "tokens": 47, "past_tokens": 16, "memory": 47},
)
IN = {torch.float32: torch.nn.Module.float, torch.float16: torch.nn.Module.half}
MARGIN = 4
"""Largest error of a graph over that of plain torch, both against float64."""

ALL_EXPORTED = [name for name, target in TARGETS.items() if target.refusal is None]
EXPORTED = [
    pytest.param(TARGETS[name], dtype, id=f"{name}-{dtype}")
    for name in sampled(ALL_EXPORTED, len(ALL_EXPORTED) // 4)
    for dtype in TARGETS[name].dtypes
]
REFUSED = [
    pytest.param(target, id=name)
    for name, target in (TARGETS | WRONG).items()
    if target.refusal is not None
]


def exported(target: RealTarget, module: Any, folder: Path, dtype: str = "float32") -> Package:
    return export(
        module,
        folder / "package",
        example_inputs=target.examples(0, batch=2, tokens=9),
        dims=target.dims,
        dtype=dtype,
        lengths=CHECKED,
        measure=False,
    )


def built(target: RealTarget) -> Any:
    torch.manual_seed(0)
    module = target.build()
    return module.eval() if isinstance(module, torch.nn.Module) else module


def results(module: Any, inputs: dict[str, Tensor]) -> list[NDArray[Any]]:
    with torch.no_grad(), as_written():
        leaves = tree_leaves(module(**inputs))
    return [leaf.double().numpy() for leaf in leaves if isinstance(leaf, Tensor)]


def cast(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}


def errors(
    session: Session, module: Any, target: RealTarget, dtype: torch.dtype
) -> Iterator[tuple[str, float, float, float]]:
    """At every fresh size and of every output: words, the graph's largest error, plain torch's,
    the largest value."""
    wide = copy.deepcopy(module).double() if isinstance(module, torch.nn.Module) else module
    # Not Module.to, which takes the imaginary part off complex tables.
    plain = wide if wide is module else IN[dtype](copy.deepcopy(module))
    for seed, sizes in enumerate(FRESH, start=1):
        inputs = cast(target.examples(seed, **sizes), dtype)
        outputs = session.run({name: tensor.numpy() for name, tensor in inputs.items()})
        honest = results(plain, inputs)
        with InFloat64():
            exact = results(wide, cast(inputs, torch.float64))
        for (name, output), eager, right in zip(outputs.items(), honest, exact, strict=True):
            assert output.shape == right.shape
            yield (
                f"{name} at {sizes}",
                float(np.abs(output - right).max(initial=0)),
                float(np.abs(eager - right).max(initial=0)),
                float(np.abs(right).max(initial=0)),
            )


@pytest.mark.parametrize(("target", "dtype"), EXPORTED)
def test_a_module_comes_out_equal(target: RealTarget, dtype: str, tmp_path: Path) -> None:
    module = built(target)
    package = exported(target, module, tmp_path, dtype)
    contract, certificate = package.variants[0].contract, package.variants[0].certificate
    assert certificate is not None
    assert certificate.passed
    assert certificate.verdict is target.verdict
    assert contract.bounds.get("tokens", (1, None)) == (1, target.longest)
    with load(package.root, provider="cpu") as session:
        found = list(errors(session, module, target, getattr(torch, dtype)))
        honest = max(torch_error for _, _, torch_error, _ in found)
        largest = max(value for *_, value in found)
        budget = MARGIN * (honest + torch.finfo(getattr(torch, dtype)).eps * largest)
        for what, error, _, _ in found:
            assert error <= budget, what
        if target.longest is not None:
            late = cast(
                target.examples(0, batch=1, tokens=target.longest + 1), getattr(torch, dtype)
            )
            with pytest.raises(InputError, match=f"at most {target.longest}"):
                session.run({name: tensor.numpy() for name, tensor in late.items()})


@pytest.mark.parametrize("target", REFUSED)
def test_a_module_is_refused_with_its_reason(target: RealTarget, tmp_path: Path) -> None:
    module = built(target)
    with pytest.raises(CausalAttnError) as error:
        exported(target, module, tmp_path)
    assert str(target.refusal) in str(error.value)
    assert not (tmp_path / "package").exists()


def test_most_are_exported() -> None:
    """Nine in ten of what people have, and of what is wrong nothing."""
    refused = [name for name, target in TARGETS.items() if target.refusal is not None]
    assert len(TARGETS) - len(refused) >= 42
    assert 10 * len(refused) <= len(TARGETS), refused
    assert all(target.refusal for target in WRONG.values())
