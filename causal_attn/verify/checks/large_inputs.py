"""Whether a graph stays finite where its inputs are large.

Kernels that saturate (ONNX Runtime's Sigmoid below -18) are right near 0 and infinite here. Errors
are not judged: among scores that lie far apart they are those of the inputs.
"""

from __future__ import annotations

import numpy as np

from causal_attn.errors import CausalAttnError
from causal_attn.package.certificate import Check
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.oracle.yardstick import widened

__all__ = ["check_large_inputs"]

_NAME = "large inputs"

SPREAD = 30
"""exp(30) is far from the end of float32 and beyond where kernels saturate."""


def check_large_inputs(trial: Trial) -> Check | None:
    """Inputs of a spread of `SPREAD`: results must be finite wherever those of plain torch are.

    ``None`` without a yardstick.
    """
    feeder, yardstick, rng = trial.feeder, trial.yardstick, trial.rng(_NAME)
    if yardstick is None:
        return None
    (sizes,) = feeder.cases((trial.length(5),))
    # What lies in unused slots of a cache may overflow: it is garbage on purpose.
    with np.errstate(over="ignore"):
        feeds = {
            key: np.asarray(array * array.dtype.type(SPREAD))
            if array.dtype.kind in "fV"
            else array
            for key, array in feeder.make(sizes, rng).items()
        }
    try:
        results = trial.session.run(feeds)
        want, plain = yardstick.oracle(widened(feeds)), yardstick.baseline(feeds)
    except CausalAttnError as error:
        return trial.result(_NAME, None, f"does not run: {error}")
    wrong = [
        key
        for key, got in results.items()
        if got.dtype.kind in "fV"
        and (~np.isfinite(got) & np.isfinite(want[key]) & np.isfinite(plain[key])).any()
    ]
    where = f"where the oracle is, for inputs of a spread of {SPREAD}"
    detail = f"{wrong} are not finite {where}" if wrong else f"finite {where}"
    return trial.result(_NAME, not wrong, detail)
