"""The torch op: what PyTorch's own checks of a custom op say, its gradients, its fake shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from causal_attn.attention.call import ARGUMENTS, RESULTS, AttendCall, by_name
from causal_attn.attention.operator import ATTEND, attend, by_reference
from causal_attn.errors import InputError

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no weights": {"return_weights": False},
    "window, softcap, scale": {"window": 2, "softcap": 2.0, "scale": 0.7},
    "past": {"past": 2},
    "past, padded": {"past": 2, "kv_lengths": [5, 2]},
    "grouped": {"kv_heads": 1, "v_features": 3},
    "sinks": {"sinks": True, "past": 2},
}


def arguments(
    case: dict[str, Any], *, dtype: torch.dtype = torch.float64, grad: bool = True
) -> tuple[Any, ...]:
    options = dict(case)
    past, kv_heads = options.pop("past", None), options.pop("kv_heads", 2)
    v_features, lengths = options.pop("v_features", 4), options.pop("kv_lengths", None)
    random = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        tensor = torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)
        return tensor.requires_grad_(grad)

    tensors = [make(2, 2, 3, 4), make(2, kv_heads, 3, 4), make(2, kv_heads, 3, v_features)]
    tensors += (
        [None, None]  # type: ignore[list-item]
        if past is None
        else [make(2, kv_heads, past, 4), make(2, kv_heads, past, v_features)]
    )
    return (
        *tensors,
        None if lengths is None else torch.tensor(lengths),
        options.get("scale"),
        options.get("window"),
        options.get("softcap"),
        options.get("return_weights", True),
        None,
        make(2) if options.get("sinks") else None,
    )


def test_the_schema_is_the_call_and_its_results() -> None:
    parameters = ATTEND._schema.arguments
    assert tuple(parameter.name for parameter in parameters) == ARGUMENTS
    assert len(ATTEND._schema.returns) == len(RESULTS)
    defaults = {p.name: p.default_value for p in parameters if p.has_default_value()}
    assert by_name([None] * 3, {}) | defaults == by_name([None] * 3, {})


@pytest.mark.parametrize("half", ["past_key", "past_value"])
def test_half_a_past_is_refused(half: str) -> None:
    tensor = torch.randn(1, 1, 2, 4)
    with pytest.raises(InputError, match="`past_key` must come with `past_value`"):
        attend(tensor, tensor.clone(), tensor.clone(), **{half: tensor.clone()})


# Each takes seconds: torch traces the op forward and backward, at fixed and at dynamic sizes.
@pytest.mark.parametrize("name", ["no weights", "past, padded", "sinks"])
def test_torch_accepts_the_op(name: str) -> None:
    torch.library.opcheck(ATTEND, arguments(CASES[name], dtype=torch.float32))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_are_those_of_finite_differences(case: dict[str, Any]) -> None:
    given = arguments(case)
    assert torch.autograd.gradcheck(lambda *args: attend(*args)[0], given, fast_mode=True)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_are_those_of_the_reference(case: dict[str, Any]) -> None:
    gradients = []
    for function in (attend, lambda *given: by_reference(AttendCall.of(*given)).tensors()):
        given = arguments(case)
        torch.cat([result.flatten() for result in function(*given)]).square().sum().backward()
        gradients.append([t.grad for t in (*given[:5], given[-1]) if t is not None])
    for mine, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, reference)


def test_results_share_no_memory_with_the_inputs() -> None:
    given = arguments({"past": 0}, grad=False)
    results = attend(*given)
    places = {t.untyped_storage().data_ptr() for t in given[:5] if t.numel()}
    assert not places & {result.untyped_storage().data_ptr() for result in results}
