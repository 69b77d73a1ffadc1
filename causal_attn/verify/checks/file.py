"""What is checked on the file alone: it can be read, its inputs are used, its influence proved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from causal_attn.errors import PackageError
from causal_attn.package.certificate import Check, Verdict
from causal_attn.package.digest import external_files
from causal_attn.verify.checks.sequence import PROOF
from causal_attn.verify.feeds.feeder import switch_lengths
from causal_attn.verify.influence import LENGTHS, Proof, prove
from causal_attn.verify.interface.discover import Interface

__all__ = [
    "LOW_BOUND",
    "Proved",
    "check_inputs_are_read",
    "check_proof",
    "made_up_operators",
    "read_model",
]

LOW_BOUND = 1e30
"""A conditional proof whose bound on the scores is below this decides nothing by itself.

The lowest float32 or bfloat16 as a mask gives 1.7e38, which no score of a sane model reaches; -1e4
gives 5e3, and only whoever knows the scores can say.
"""


@dataclass(frozen=True, kw_only=True)
class Proved:
    """A proof and the check that it amounts to."""

    proof: Proof
    check: Check


def read_model(path: Path) -> onnx.ModelProto:
    """The graph at `path`, its external data left where it is.

    Raises:
        PackageError: It is no ONNX model, is cut short, lacks its external data, is newer than
            the installed onnx, or is larger than the memory there is.
    """
    size = path.stat().st_size if path.is_file() else 0
    files = external_files(path)
    needed = size + sum(file.stat().st_size for file in files.values())
    if needed > (there := _memory_bytes()):
        raise PackageError(
            f"The model must fit into memory, got {needed / 2**30:.1f} GiB for "
            f"{there / 2**30:.1f} GiB: {path}. Verify it on a larger machine."
        )
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise PackageError(f"`path` must be an ONNX model, got {path}: {error}.") from None
    if not model.graph.output:
        raise PackageError(f"`path` must be an ONNX model with outputs, got none in {path}.")
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise PackageError(
                f"`path` must use an opset up to {newest}, got {opset.version} in {path}. A newer "
                "onnx may know it: pip install --upgrade onnx"
            )
    return model


def made_up_operators(model: onnx.ModelProto) -> list[str]:
    """Operators of the ONNX domain that neither onnx nor the model itself defines."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    own = {function.name for function in model.functions}
    return sorted(
        {
            node.op_type
            for node in model.graph.node
            if node.domain in ("", "ai.onnx")
            and node.op_type not in own
            and not onnx.defs.has(node.op_type, opset, "")
        }
    )


def check_inputs_are_read(graph: onnx.GraphProto) -> Check:
    """Every graph input must reach an output: torch.onnx drops one of two aliased inputs."""
    alive = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if alive.intersection(node.output):
            alive.update(_read_by(node))
    stored = {tensor.name for tensor in graph.initializer}
    dead = sorted({value.name for value in graph.input} - alive - stored)
    return Check(
        name="inputs are read",
        passed=not dead,
        detail=f"{dead} reach no output" if dead else "every input reaches an output",
    )


def check_proof(model: onnx.ModelProto, interface: Interface, folder: Path) -> Proved:
    """The influence proof, at several lengths and, with a cache, at several pasts."""
    fixed = interface.fixed_tokens
    past = interface.feeder.pinned.get("past_tokens")
    pasts = (0, 3) if past is None else (past,)
    proof = prove(
        model,
        tokens=interface.tokens,
        outputs=interface.outputs,
        past_tokens=interface.past,
        total_tokens=interface.total,
        lengths=(*LENGTHS, *switch_lengths(interface.feeder.contract))
        if fixed is None
        else (fixed,),
        past=pasts if interface.past or interface.cache else 0,
        dims={**dict.fromkeys(("features", "head_dim"), 2), **interface.sizes},
        known=interface.known,
        base_dir=folder,
    )
    passed: bool | None = {
        Verdict.CAUSAL: True,
        Verdict.CONDITIONAL: (proof.score_bound or 0) >= LOW_BOUND or None,
        Verdict.UNDECIDED: None,
        Verdict.NOT_CAUSAL: False,
    }[proof.verdict]
    figures = {"lengths": list(proof.lengths), "notes": list(proof.notes)}
    return Proved(
        proof=proof, check=Check(name=PROOF, passed=passed, detail=str(proof), figures=figures)
    )


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 1 << 62


def _read_by(node: onnx.NodeProto) -> set[str]:
    """Names `node` reads, in its subgraphs too."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _read_by(inner)
            names |= {value.name for value in graph.output}
    return names
