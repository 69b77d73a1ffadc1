"""A model repository for Triton's onnxruntime backend.

::

    OUT/
      NAME/
        config.pbtxt
        1/model.onnx                 # and its external data beside it
        warmup/worked-example/INPUT  # bytes of the first call
"""

from __future__ import annotations

import re
from pathlib import Path

from causal_attn.deploy.place import free_place
from causal_attn.deploy.source import Source
from causal_attn.deploy.triton_config import WARM_UP, Batching, config_text, joins_along_batch
from causal_attn.deploy.warm_up import warm_up_feeds
from causal_attn.errors import PackageError

__all__ = ["write_triton"]

# Inputs' names become names of files.
_FILE_NAME = re.compile(r"[\w.:-]{1,200}")


def write_triton(source: Source, out: Path, *, batching: Batching | None = None) -> Path:
    """Write the repository to `out`, whole or not at all.

    A cache is inputs and outputs as any other: the client sends what it got. Triton joins requests
    of equal sizes only, and so never sequences that hold different numbers of tokens.

    Args:
        source: The package.
        out: A free place.
        batching: How requests are joined; ``None``: by the defaults.

    Returns:
        The file ``config.pbtxt``.

    Raises:
        UsageError: Something is at `out`, or it cannot be written.
        PackageError: The model has something that Triton cannot be told of, or cannot be read.
        CertificateError: The files changed after they were checked.
    """
    contract = source.variant.contract
    feeds = warm_up_feeds(contract)
    if joins_along_batch(contract, source.variant.certificate):
        feeds = {name: array[:1] for name, array in feeds.items()}
    for name in feeds:
        if not _FILE_NAME.fullmatch(name) or set(name) == {"."}:
            raise PackageError(
                f"Inputs must have names that files can have, for Triton's warm-up, got {name!r}. "
                "Export the model with another name for it."
            )
    text = config_text(source, batching or Batching(), feeds)
    with free_place(out) as staged:
        model = staged / source.name
        (model / "1").mkdir(parents=True)
        (model / "warmup" / WARM_UP).mkdir(parents=True)
        (model / "config.pbtxt").write_text(text, "utf-8")
        for name, array in feeds.items():
            (model / "warmup" / WARM_UP / name).write_bytes(array.tobytes())
        source.copy_model(model / "1")
    return out / source.name / "config.pbtxt"
