"""A user's module with a cache: its layout is found, fed, checked and written in the contract."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from causal_attn.errors import CheckError, InputError
from causal_attn.export import export
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.contract import TensorContract
from causal_attn.runtime import load
from causal_attn.verify.interface.cache_by_name import find_cache

SLOTS = ("batch", None, "capacity", None)
STATIC_DIMS = {
    "x": ("batch", "tokens", None),
    "key_cache_0": SLOTS,
    "value_cache_0": SLOTS,
    "write_indices": ("batch",),
}


class StaticDecoder(nn.Module):
    """One head over a cache of fixed capacity, nothing in it called as in the reference op."""

    def __init__(self, *, reads_garbage: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.reads_garbage = reads_garbage

    def forward(
        self, x: Tensor, key_cache_0: Tensor, value_cache_0: Tensor, write_indices: Tensor
    ) -> dict[str, Tensor]:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, dim=-1))
        slot = torch.arange(key_cache_0.shape[2])
        at = write_indices[:, None] + torch.arange(x.shape[1])
        mine = (slot[None, :, None] == at[:, None, :]).to(x.dtype)
        fresh = mine.any(2)[:, None, :, None]
        key = torch.where(fresh, (mine[:, None] @ k), key_cache_0)
        value = torch.where(fresh, (mine[:, None] @ v), value_cache_0)
        real = (slot[None] < write_indices[:, None] + x.shape[1])[:, None, :, None]
        seen_key = torch.where(real, key, 0.0)
        seen_value = value if self.reads_garbage else torch.where(real, value, 0.0)
        scores = q @ seen_key.transpose(2, 3) / 2
        visible = (slot[None, None, :] <= at[:, :, None])[:, None]
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return {
            "y": (weights @ seen_value).squeeze(1),
            "key_cache_out_0": key,
            "value_cache_out_0": value,
        }


def examples() -> dict[str, Tensor]:
    return {
        "x": torch.randn(2, 5, 4),
        "key_cache_0": torch.randn(2, 1, 11, 4),
        "value_cache_0": torch.randn(2, 1, 11, 4),
        "write_indices": torch.tensor([3, 1]),
    }


def test_a_static_cache_is_found_fed_and_checked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    package = export(
        StaticDecoder(), tmp_path / "p", example_inputs=examples(), dims=STATIC_DIMS,
        lengths=(1, 2, 7),
    )  # fmt: skip
    (variant,) = package.variants
    assert variant.contract.cache == CacheLayout(
        entries=tuple(
            CacheEntry(
                input=f"{part}_cache_0", output=f"{part}_cache_out_0", kind=EntryKind.FIXED, axis=2
            )
            for part in ("key", "value")
        ),
        lengths="write_indices",
        capacity="capacity",
    )
    assert variant.certificate is not None
    names = {check.name for check in variant.certificate.checks if check.passed}
    assert {"decode is equivalent", "unused slots are not read", "influence proof"} <= names
    feeds = {name: tensor.numpy() for name, tensor in examples().items()}
    with load(package.root) as session:
        session.run(feeds)
        full = {**feeds, "write_indices": np.array([7, 0])}
        with pytest.raises(InputError, match="`write_indices` must be 0 to 6"):
            session.run(full)
        with pytest.raises(InputError, match=r"`share` must be out of \{\}"):
            session.bind(feeds, share={"key_cache_out_0": "key_cache_0"})


def test_garbage_in_slots_that_reaches_a_row_is_found(tmp_path: Path) -> None:
    """Torch's own run has the NaN too, so that parity alone would let it pass."""
    torch.manual_seed(0)
    with pytest.raises(CheckError, match=r"unused slots are not read: \['y'\] change with"):
        export(
            StaticDecoder(reads_garbage=True), tmp_path / "p", example_inputs=examples(),
            dims=STATIC_DIMS, lengths=(1, 2, 7),
        )  # fmt: skip
    assert not (tmp_path / "p").exists()


class GrowingDecoder(nn.Module):
    """One head over a cache that grows along an axis of a name of its own."""

    def forward(self, x: Tensor, past_key_0: Tensor) -> dict[str, Tensor]:
        key = torch.cat([past_key_0, x], dim=1)
        scores = x @ key.transpose(1, 2)
        at = past_key_0.shape[1] + torch.arange(x.shape[1])
        hidden = torch.arange(key.shape[1])[None, :] > at[:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return {"y": weights @ key, "present_key_0": key}


def test_a_cache_that_grows_along_any_name_is_decoded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    package = export(
        GrowingDecoder(),
        tmp_path / "p",
        example_inputs=(torch.randn(2, 5, 4), torch.randn(2, 3, 4)),
        dims={"x": ("batch", "tokens", None), "past_key_0": ("batch", "memory", None)},
        lengths=(1, 2, 7),
    )
    (variant,) = package.variants
    entry = CacheEntry(input="past_key_0", output="present_key_0", kind=EntryKind.GROWING, axis=1)
    assert variant.contract.cache == CacheLayout(entries=(entry,))
    assert variant.certificate is not None
    assert "decode is equivalent" in {check.name for check in variant.certificate.checks}
    with load(package.root) as session:
        empty = np.zeros((1, 0, 4), np.float32)
        assert session(np.ones((1, 2, 4), np.float32), empty).present_key_0.shape == (1, 2, 4)


def tensors(*named: tuple[str, tuple[str | int, ...]]) -> tuple[TensorContract, ...]:
    return tuple(
        TensorContract(name=name, dtype="int64" if name in INTEGERS else "float32", dims=dims)
        for name, dims in named
    )


INTEGERS = ("ids", "past_lengths")
IDS: tuple[str, tuple[str | int, ...]] = ("ids", ("batch", "tokens"))
HELD: tuple[str, tuple[str | int, ...]] = ("past_lengths", ("batch",))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        # No lengths: a state that is replaced would look the same.
        ([IDS, ("past_key", ("batch", 2, "n", 8))], [("present_key", ("batch", 2, "n", 8))]),
        # Two dims could be the slots.
        (
            [IDS, HELD, ("past_key", ("batch", "heads", "n", 8))],
            [("present_key", ("batch", "heads", "n", 8))],
        ),
        # The output is longer by something else.
        ([IDS, ("past_key", ("batch", "p", 8))], [("present_key", ("batch", "p + 1", 8))]),
        # Half of it has no output.
        (
            [IDS, ("past_key", ("batch", "p", 8)), ("past_value", ("batch", "p", 8))],
            [("present_key", ("batch", "p + tokens", 8))],
        ),
        # Buffers of different capacity.
        (
            [IDS, HELD, ("past_key", ("batch", "n", 8)), ("past_value", ("batch", "m", 8))],
            [("present_key", ("batch", "n", 8)), ("present_value", ("batch", "m", 8))],
        ),
    ],
)
def test_what_is_not_certain_is_no_layout(
    inputs: list[tuple[str, tuple[str | int, ...]]],
    outputs: list[tuple[str, tuple[str | int, ...]]],
) -> None:
    assert find_cache(tensors(*inputs), tensors(*outputs)) is None
