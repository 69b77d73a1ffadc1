"""What is verified: one model, read and parsed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import onnx

from causal_attn.errors import UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package import Variant, open_model, read_package
from causal_attn.package.contract import Contract
from causal_attn.package.digest import CONTRACT_KEY, model_digest, read_metadata
from causal_attn.package.dims import sizes_within
from causal_attn.runtime import Session
from causal_attn.runtime.loading import open_variant
from causal_attn.verify.feeds.feeder import switch_lengths
from causal_attn.verify.influence import (
    BATCHES,
    LENGTHS,
    Claim,
    Independence,
    Proof,
    prove,
    prove_independent,
    prove_selected,
)
from causal_attn.verify.interface.discover import BATCH, Interface, discover, from_contract
from causal_attn.verify.read_model import read_model

__all__ = ["Subject", "read_subject", "read_subjects"]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One model and how to ask it.

    Attributes:
        variant: Where it lies, and its contract.
        model: The graph; its external data stays on disk.
        interface: Which inputs and outputs are what.
        digest: sha256 of the model, hex: see `causal_attn.package.digest`.
        positions: Of a past and new tokens together, as many as it is known to run at; 0: nothing
            is known.
    """

    variant: Variant
    model: onnx.ModelProto
    interface: Interface
    digest: str
    positions: int = 0

    @property
    def label(self) -> str:
        """``component/variant`` in a package, the file's stem otherwise."""
        variant = self.variant
        return f"{variant.component}/{variant.name}" if variant.component else variant.name

    @cached_property
    def claim(self) -> Claim:
        """What is to be proved: outputs with a token axis are causal, with a past and without."""
        interface = self.interface
        fixed, past = interface.fixed_tokens, interface.feeder.pinned.get("past_tokens")
        contract = interface.feeder.contract
        lengths = contract.lengths_within((*LENGTHS, *switch_lengths(contract)))
        (longest,) = contract.lengths_within((self.positions,))
        has_past = bool(interface.past or interface.cache)
        return Claim(
            tokens=interface.tokens,
            past=interface.past,
            total=interface.total,
            outputs=interface.outputs,
            others=interface.others,
            lengths=lengths if fixed is None else (fixed,),
            pasts=(0,) if not has_past else (0, 3) if past is None else (past,),
            longest=longest if fixed is None else 0,
            dims={**dict.fromkeys(("features", "head_dim"), 2), **interface.sizes},
            known=interface.known,
            conditions=interface.conditions,
        )

    @cached_property
    def proof(self) -> Proof:
        """The influence proof of `claim`, made when it is first asked for."""
        about = prove_selected if self.interface.rowless else prove
        return about(self.model, self.claim, base_dir=self.variant.directory)

    @cached_property
    def independence(self) -> Independence | None:
        """The proof that sequences of a batch are independent; ``None`` where there are none."""
        feeder = self.interface.feeder
        contract = feeder.contract
        batch = {t.name: t.dims.index(BATCH) for t in contract.inputs if BATCH in t.dims}
        if not batch or BATCH in feeder.pinned:
            return None
        pasts = (0,) if feeder.single_past else self.claim.pasts
        return prove_independent(
            self.model,
            replace(self.claim, batch=batch, pasts=pasts),
            batches=sizes_within(BATCHES, *contract.bounds.get(BATCH, (1, None))),
            base_dir=self.variant.directory,
        )

    def open(
        self,
        provider: Provider,
        *,
        tf32: bool = False,
        weights: Literal["copy", "map"] | None = None,
    ) -> Session:
        """A session on `provider`; what it raises is what `open_variant` raises.

        Args:
            provider: Every node runs there.
            tf32: On CUDA, whether float32 products are rounded to 10 bits, which is ONNX
                Runtime's default and which no budget for float32 allows.
            weights: Of `open_variant`.
        """
        options = {"use_tf32": str(int(tf32))} if provider is Provider.CUDA else None
        return open_variant(self.variant, provider, provider_options=options, weights=weights)


def read_subject(variant: Variant) -> Subject:
    """A variant with a contract.

    Raises:
        PackageError: Its model cannot be read.
    """
    model = read_model(variant.model)
    return Subject(
        variant=variant,
        model=model,
        interface=from_contract(variant.contract, model),
        digest=model_digest(variant.model),
    )


def read_subjects(
    path: Path,
    *,
    tokens_axis: Mapping[str, int] | None = None,
    outputs: Sequence[str] | None = None,
) -> Iterator[Subject]:
    """Every model of a package, or the one at `path`; each is read when it is asked for.

    Args:
        path: A package, or a model of ours or of others.
        tokens_axis: Of a model of others: see `discover`.
        outputs: Likewise.

    Raises:
        PackageError: `path` cannot be read.
        UsageError: The inputs of a model of others cannot be told from their names.
    """
    ours = path.is_dir() or CONTRACT_KEY in read_metadata(path)
    if ours and (tokens_axis or outputs):
        raise UsageError(
            "`tokens_axis` and `outputs` must be left out for a model with a contract, which says "
            "so itself."
        )
    if ours:
        variants = read_package(path).variants if path.is_dir() else (open_model(path),)
        yield from map(read_subject, variants)
    else:
        yield _foreign(path, tokens_axis, outputs)


def _foreign(
    path: Path, tokens_axis: Mapping[str, int] | None, outputs: Iterable[str] | None
) -> Subject:
    model = read_model(path)
    interface = discover(model, path, tokens_axis=tokens_axis, outputs=outputs)
    return Subject(
        variant=_variant_of(path, interface.feeder.contract),
        model=model,
        interface=interface,
        digest=model_digest(path),
    )


def _variant_of(path: Path, contract: Contract) -> Variant:
    return Variant(
        name=path.stem,
        component="",
        ep="",
        provider=None,
        device="",
        directory=path.parent,
        model=path,
        contract=contract,
        certificate=None,
    )
