"""Model packages: a folder that ONNX Runtime opens, with a contract and a certificate in it.

::

    causal_attention/                 the package
    ├── manifest.json                 ONNX Runtime's model package format, schema 1.0
    └── causal_attention/             a component
        └── cpu/                      a variant: one per execution provider
            ├── model.onnx            contract and certificate are in its metadata too
            ├── model.onnx.data       external data, where a model has it
            ├── contract.json         what goes in and comes out
            └── certificate.json      what was checked, bound to the model by its digest

A variant is ours if its ``executor_info`` has a ``causal_attn`` entry, an object with
``contract`` and, if the model was checked, ``certificate``: paths that start from the variant's
directory. ``executor_info.ort`` names the model file. Everything read here is untrusted: a
package that is damaged, or that names anything outside its folder, is refused, never repaired.

The digest and the certificate protect against damage and mix-ups. They are no signature: who can
write the folder can also write a certificate.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from causal_attn.package.read import (
        SLOT,
        Package,
        Variant,
        check_certificate,
        open_model,
        read_package,
    )
    from causal_attn.package.write import VariantSource, write_package

__all__ = [
    "SLOT",
    "Package",
    "Variant",
    "VariantSource",
    "check_certificate",
    "open_model",
    "read_package",
    "write_package",
]

# Reading packages takes hashing, JSON and pathlib: half of what importing the runtime would cost,
# for a service that may load its model later. So these are imported when they are first used.
_WRITE = ("VariantSource", "write_package")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "write" if name in _WRITE else "read"
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
