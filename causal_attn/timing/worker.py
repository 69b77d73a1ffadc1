"""The process of a `causal_attn.timing.process.Worker`: answers requests until its input ends.

``python -m causal_attn.timing.worker package.module:role NAME PROVIDER`` calls ``role(NAME,
PROVIDER)``, whose result has a method ``do_…`` for each request that it answers. Requests and
answers are JSON objects, one a line::

    {"do": "turn", "seconds": 0.02}  ->  do_turn(seconds=0.02)  ->  {"seconds": 0.0001}

An answer ``{"error": "…", "kind": "UsageError"}`` is a request that failed; the process goes on.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from causal_attn.machine.provider import Provider

__all__ = ["main"]


def main(role: str, name: str, provider: str) -> None:
    """Serve the requests on stdin.

    Args:
        role: Module and callable, with a colon between. Its caller gives it by name, since no
            role's module may be imported from here.
        name: Of what is timed; the role knows what it means.
        provider: What it runs on.
    """
    # Libraries print to stdout; answers go to a copy of it that they do not know.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, attribute = role.partition(":")
    served = getattr(importlib.import_module(module), attribute)(name, Provider.parse(provider))
    for line in sys.stdin:
        answers.write(json.dumps(_answer(served, json.loads(line))) + "\n")


def _answer(served: Any, request: dict[str, Any]) -> Any:
    try:
        return getattr(served, f"do_{request.pop('do')}")(**request)
    # What cannot run a request is an answer: the driver names it and goes on.
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        return {"error": str(error).strip() or repr(error), "kind": type(error).__name__}


if __name__ == "__main__":
    main(*sys.argv[1:])
