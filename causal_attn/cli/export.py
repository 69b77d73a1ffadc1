"""`causal-attn export`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from causal_attn.attention.spec import AttentionSpec
from causal_attn.cli.console import JsonFlag, steps
from causal_attn.cli.flags import parse_dims, parse_lengths
from causal_attn.errors import UsageError

__all__ = ["ExportOptions", "ReferenceOptions", "export"]


@dataclass(frozen=True)
class ReferenceOptions:
    """The fields of an `AttentionSpec`: for the reference op alone."""

    num_heads: Annotated[
        int | None, typer.Option("--heads", help="Reference op: fixed query heads.")
    ] = None
    num_kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", help="Reference op: key/value heads.")
    ] = None
    head_dim: Annotated[int | None, typer.Option(help="Reference op: fixed features.")] = None
    scale: Annotated[float | None, typer.Option(help="Default 1/sqrt(features).")] = None
    window: Annotated[int | None, typer.Option(help="Tokens seen, itself included.")] = None
    softcap: Annotated[float | None, typer.Option(help="Before the mask.")] = None
    cache: Annotated[
        str | None,
        typer.Option(help="none, dynamic or static; of a model's folder too, default dynamic."),
    ] = None

    def spec(self, target: str) -> AttentionSpec | None:
        """The spec these options ask for; ``None``: none was given.

        Raises:
            UsageError: Some were given for a target of the user's own.
            SpecError: They cannot be.
        """
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if self.cache == "none" or Path(target).is_dir():
            given.pop("cache", None)
        if given and target != "causal_attention":
            raise UsageError(
                f"`{next(iter(given))}` must be left out for a target of your own, which has its "
                "own attention."
            )
        return AttentionSpec.from_dict(given) if given else None


@dataclass(frozen=True)
class ExportOptions:
    """How the graph is written and where it is checked."""

    form: Annotated[str, typer.Option(help="auto, decomposed, attention, gqa or blocked.")] = (
        "auto"
    )
    providers: Annotated[
        list[str] | None, typer.Option("--provider", "-p", help="One variant each; repeat it.")
    ] = None
    check_on: Annotated[
        list[str] | None, typer.Option(help="Check here instead of on absent providers.")
    ] = None
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or float64.")] = None
    opset: Annotated[int | None, typer.Option(help="Default: the form's oldest.")] = None
    lengths: Annotated[
        str | None, typer.Option(help="Tokens to check at: 1,2,33 ; default 1 to 257.")
    ] = None
    return_weights: Annotated[
        bool,
        typer.Option("--weights/--no-weights", help="Whether the reference op returns them."),
    ] = True
    last_logits: Annotated[
        bool,
        typer.Option("--last-logits", help="Language model: logits of the last token alone."),
    ] = False
    output_attentions: Annotated[
        bool,
        typer.Option("--output-attentions", help="Language model: the weights of every layer."),
    ] = False
    measure: Annotated[
        bool, typer.Option(help="Whether auto times the forms here or takes a fixed table.")
    ] = True


def export(
    target: Annotated[
        str,
        typer.Argument(
            help="causal_attention, file.py:attribute, module:attribute, program.pt2, or a "
            "model's folder."
        ),
    ],
    path: Annotated[Path, typer.Option("--out", "-o", help="Folder of the package.")],
    *,
    example_inputs: Annotated[
        list[str] | None,
        typer.Option("--example", help="Example inputs: file.npz or name=file.npy; repeat it."),
    ] = None,
    dims: Annotated[
        list[str] | None,
        typer.Option(help="Dynamic axes: x=batch,tokens,_ ; repeat it."),
    ] = None,
    options: ExportOptions,
    reference: ReferenceOptions,
    as_json: JsonFlag = False,
) -> None:
    """Export to a checked package; a package that fails a check is not written."""
    from causal_attn.cli.find_target import find_target, require_target
    from causal_attn.cli.package_view import show_package
    from causal_attn.package.write import require_free

    # Whatever is mistyped is told now: importing torch takes seconds.
    require_target(target)
    require_free(path)
    spec = reference.spec(target)
    named_dims = parse_dims(dims)
    lengths = parse_lengths(options.lengths, "--lengths")
    arrays = {}
    if example_inputs:
        from causal_attn.cli.array_files import read_arrays

        arrays = read_arrays(example_inputs, "example_inputs")
    with steps() as on_step:
        on_step("import torch")
        chosen = spec or find_target(target)

        import torch

        from causal_attn.export import export as run_export

        given: dict[str, Any] = asdict(options) | {"providers": options.providers or ["cpu"]}
        del given["lengths"]
        if lengths is not None:
            given["lengths"] = lengths
        if spec is None:
            given["cache"] = reference.cache
        examples = {name: torch.from_numpy(array) for name, array in arrays.items()}
        package = run_export(
            chosen,
            path,
            example_inputs=examples or None,
            dims=named_dims,
            on_step=on_step,
            **given,
        )
    show_package(package, as_json)
