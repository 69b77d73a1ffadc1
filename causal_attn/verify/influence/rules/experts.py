"""Mixtures of experts as one operator: each token chooses, so a row is reached by itself alone."""

from __future__ import annotations

import math

from causal_attn.verify.influence.registry import MICROSOFT, Call, DataDependent, rule
from causal_attn.verify.influence.rules.combine import opaque
from causal_attn.verify.influence.rules.movement import reshape
from causal_attn.verify.influence.rules.reductions import join_axes
from causal_attn.verify.influence.tensor import Tensor, unknown

__all__: list[str] = []

_ROUTER_WEIGHTS = 14
"""The input of `QMoE` that has weights beside the probabilities that choose."""


@rule("MoE", "QMoE", domain=MICROSOFT)
def _experts(call: Call) -> list[Tensor]:
    """ONNX Runtime 1.32.0 picks the best ``k`` experts of each row; there is no capacity."""
    data = call.tensor(0)
    routers = [1]
    if call.node.op == "QMoE" and call.has(_ROUTER_WEIGHTS):
        routers.append(_ROUTER_WEIGHTS)
    rows = [join_axes(data, [data.rank - 1]), *(_rows(call.tensor(at), data) for at in routers)]
    result = opaque(rows, data.dtype)
    result = unknown(data.shape, data.dtype, result.bits)
    stored = [at for at in range(2, len(call.inputs)) if at not in routers]
    return [call.reached_by(result, *stored)]


def _rows(router: Tensor, data: Tensor) -> Tensor:
    """What reaches the numbers of each token, in the shape of the tokens' rows, ``[..., 1]``."""
    shape = (*data.shape[:-1], 1)
    joined = join_axes(router, [router.rank - 1])
    flat = unknown((*router.shape[:-1], 1), router.dtype, joined.bits)
    if flat.size != math.prod(shape):
        raise DataDependent("its router has another number of rows than its input")
    return reshape(flat, shape)
