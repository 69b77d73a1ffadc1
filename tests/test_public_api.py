"""Names that users import, and that each says what it is."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import causal_attn
from causal_attn import export, models, runtime, verify


@pytest.mark.parametrize("module", [causal_attn, export, models, runtime, verify])
def test_every_public_name_is_there_and_documented(module: ModuleType) -> None:
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        found = getattr(module, name)
        assert name in dir(module)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert inspect.getdoc(found), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'flash_attention'"):
        _ = causal_attn.flash_attention
