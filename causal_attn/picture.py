"""Pictures of weights and visibility, as PNG files that are the same bytes for the same numbers.

matplotlib is imported when a picture is drawn, through ``matplotlib.figure.Figure``: no window, no
pyplot, no backend or style of the caller's process is touched. Colours are those of Okabe and Ito
(https://jfly.uni-koeln.de/color/) and one blue scale that also orders by lightness; a leak has a
cross beside its colour, so nothing is said by colour alone where cells are large enough to mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from causal_attn.atomic_file import replacing_file
from causal_attn.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "HIDDEN",
    "INK",
    "LEAK",
    "draw_visibility",
    "draw_weights",
    "make_figure",
    "save",
]

BLUE = "#0072b2"
"""A key that is seen."""
HIDDEN = "#ececec"
"""A key that is not seen."""
LEAK = "#d55e00"
"""A key that is seen and must not be."""
INK = "#222222"
"""Text."""

_DPI = 150
_MOST_ANNOTATED = 12
_MOST_SEPARATED = 40
_MOST_LABELS = 16


def draw_weights(
    weights: NDArray[np.floating[Any]],
    path: str | PathLike[str],
    *,
    tokens: Sequence[str] | None = None,
) -> None:
    """Draw the weights of one head as a heat map, and beside it which keys they see.

    Up to 12 keys, each cell carries its weight. A cell is hidden where the weight is exactly 0,
    and grey in both halves. Colours follow the square root of the weight, so that a row of many
    small ones is not blank. The file is 1500 pixels wide, and 750 high if the matrix is square.

    Args:
        weights: ``[q_tokens, kv_tokens]``, floating, every entry in 0 … 1: rows of a softmax.
        path: The PNG file to write; an existing one is replaced.
        tokens: A name for each key; the queries are the last of them. Default: positions.

    Raises:
        InputError: `weights` is not such a matrix, or there is not one token for each key.
        UsageError: The place cannot be written.
        MissingDependencyError: matplotlib is not installed.
    """
    if not isinstance(weights, np.ndarray) or weights.dtype.kind != "f":
        raise InputError(f"`weights` must be a floating-point ndarray, got {_describe(weights)}.")
    _require_matrix("weights", weights)
    # 16-bit weights are rounded to a little above 1; anything more is no softmax.
    if not ((weights >= 0) & (weights <= 1.01)).all():
        raise InputError(
            f"`weights` must be in 0 … 1, got {weights.min()} … {weights.max()}. Scores are drawn "
            "after softmax."
        )
    q_tokens, kv_tokens = weights.shape
    if tokens is not None and len(tokens) != kv_tokens:
        raise InputError(
            f"`tokens` must name each of the {kv_tokens} keys, got {len(tokens)} names."
        )
    if tokens is not None and q_tokens > kv_tokens:
        raise InputError(
            f"`tokens` must name queries too, got {kv_tokens} names for {q_tokens} queries. "
            "Leave them out."
        )

    figure = make_figure(10, 1.4 + 3.6 * _height(weights))
    left, right = figure.subplots(1, 2)
    visible = weights > 0
    image = left.imshow(
        np.ma.masked_where(~visible, weights),
        cmap=_blues(),
        norm=_square_root(),
        aspect=_aspect(weights),
        interpolation="nearest",
    )
    left.set_facecolor(HIDDEN)
    bar = figure.colorbar(
        image, cax=left.inset_axes((1.03, 0, 0.035, 1)), ticks=[0, 0.01, 0.1, 0.25, 0.5, 1]
    )
    bar.ax.set_yticklabels(["0", ".01", ".1", ".25", ".5", "1"])
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9, colors=INK, length=0)
    if max(weights.shape) <= _MOST_ANNOTATED:
        _annotate(left, weights)
    _draw_matrix(right, visible, np.zeros_like(visible))
    for axes, title in ((left, "Weights: rows sum to 1"), (right, "Visibility: weight above 0")):
        _finish(axes, title, q_tokens, kv_tokens, tokens)
    _add_legend(figure, 0)
    save(figure, path)


def draw_visibility(
    matrix: NDArray[np.bool_],
    path: str | PathLike[str] | BinaryIO,
    *,
    leaks: NDArray[np.bool_] | None = None,
) -> None:
    """Draw which key each query sees, with leaks in red.

    The file is 900 pixels wide, and 900 high if the matrix is square.

    Args:
        matrix: ``[q_tokens, kv_tokens]`` bool, True where the query sees the key.
        path: The PNG file to write, an existing one is replaced; or one that is open for writing.
        leaks: As `matrix`, True where seeing is wrong; only keys that are seen. Default: what lies
            above the diagonal that ends in the lower right corner, i.e. the queries are the last
            of the keys.

    Raises:
        InputError: `matrix` or `leaks` is not such a matrix.
        UsageError: The place cannot be written.
        MissingDependencyError: matplotlib is not installed.
    """
    for name, value in (("matrix", matrix), ("leaks", matrix if leaks is None else leaks)):
        if not isinstance(value, np.ndarray) or value.dtype != np.bool_:
            raise InputError(f"`{name}` must be a bool ndarray, got {_describe(value)}.")
        _require_matrix(name, value)
    q_tokens, kv_tokens = matrix.shape
    if leaks is None:
        leaks = np.triu(matrix, k=1 + max(kv_tokens - q_tokens, 0))
    if leaks.shape != matrix.shape:
        raise InputError(
            f"`leaks` must have the shape of `matrix`, {list(matrix.shape)}, "
            f"got {list(leaks.shape)}."
        )
    if (leaks & ~matrix).any():
        query, key = np.argwhere(leaks & ~matrix)[0]
        raise InputError(
            "`leaks` must be keys that are seen, got one that `matrix` hides: "
            f"query {query}, key {key}."
        )

    figure = make_figure(6, 1.2 + 4.8 * _height(matrix))
    axes = figure.subplots()
    _draw_matrix(axes, matrix, leaks)
    count = int(leaks.sum())
    title = f"Visibility: {count} leak{'s' if count > 1 else ''}" if count else "Visibility"
    _finish(axes, title, q_tokens, kv_tokens, None)
    _add_legend(figure, count)
    save(figure, path)


def make_figure(width_inches: float, height_inches: float) -> Figure:
    """Return a white figure at 150 pixels an inch that lays itself out.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise MissingDependencyError(
            "Pictures need matplotlib, which is not installed. "
            "Install it with: pip install 'causal-attn[verify]'",
            name="matplotlib",
        ) from error
    figure = Figure(
        figsize=(width_inches, height_inches), dpi=_DPI, facecolor="white", layout="constrained"
    )
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(w_pad=0.12, h_pad=0.12)  # type: ignore[call-arg]
    return figure


def save(figure: Figure, target: str | PathLike[str] | BinaryIO) -> None:
    """Write `figure` as PNG with nothing in it but the picture.

    Args:
        figure: Of `make_figure`.
        target: The file to write, an existing one is replaced; or one that is open for writing.

    Raises:
        UsageError: The place cannot be written.
    """
    if isinstance(target, str | PathLike):
        with replacing_file(Path(target)) as file:
            save(figure, file)
        return
    # matplotlib writes its version into the file unless told not to.
    figure.savefig(target, format="png", dpi=_DPI, metadata={"Software": None})


def _require_matrix(name: str, value: NDArray[Any]) -> None:
    if value.ndim != 2 or 0 in value.shape:
        raise InputError(
            f"`{name}` must be [q_tokens, kv_tokens] with at least one of each, got shape "
            f"{list(value.shape)}. Choose one sequence and one head."
        )


def _describe(value: object) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


def _blues() -> Any:
    """White-blue to navy: lightness falls all the way, so it reads in grey too."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(
        "weights", ["#e3f0f8", "#8cc3e2", "#2b83ba", "#06304f"]
    )


def _square_root() -> Any:
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0, vmax=1)


def _height(matrix: NDArray[Any]) -> float:
    """Height of the drawn matrix, its width being 1; a tall one is fitted into a square."""
    q_tokens, kv_tokens = matrix.shape
    return float(min(max(q_tokens / kv_tokens, 0.3), 1))


def _aspect(matrix: NDArray[Any]) -> Any:
    """Square cells, unless that would make the picture a thin line."""
    return "equal" if max(matrix.shape) <= 4 * min(matrix.shape) else "auto"


def _draw_matrix(axes: Axes, visible: NDArray[np.bool_], leaks: NDArray[np.bool_]) -> None:
    from matplotlib.colors import ListedColormap

    axes.imshow(
        visible.astype(int) + leaks,
        cmap=ListedColormap([HIDDEN, BLUE, LEAK]),
        vmin=0,
        vmax=2,
        aspect=_aspect(visible),
        interpolation="nearest",
    )
    if max(visible.shape) <= _MOST_SEPARATED:
        query, key = np.nonzero(leaks)
        size = 320 / max(visible.shape)
        axes.scatter(key, query, marker="x", color="white", s=size**1.3, linewidths=size / 22)


def _annotate(axes: Axes, weights: NDArray[np.floating[Any]]) -> None:
    few = max(weights.shape) <= 5
    for (query, key), weight in np.ndenumerate(weights):
        # A weight that is rounded to 0.00 is seen; only a hidden one is written 0.
        text = "0" if weight == 0 else f"{weight:.2f}" if few else f"{weight:.2f}".lstrip("0")
        colour = "#757575" if weight == 0 else "white" if weight > 0.4 else INK
        size = 15 if few else 8.5
        axes.text(key, query, text, ha="center", va="center", fontsize=size, color=colour)


def _finish(
    axes: Axes, title: str, q_tokens: int, kv_tokens: int, tokens: Sequence[str] | None
) -> None:
    axes.set_title(title, fontsize=14, color=INK, pad=12, loc="left")
    axes.set_xlabel("key", fontsize=12, color=INK)
    axes.set_ylabel("query", fontsize=12, color=INK)
    keys, queries = _ticks(kv_tokens), _ticks(q_tokens)
    past = kv_tokens - q_tokens
    if tokens is None:
        axes.set_xticks(keys, [str(key) for key in keys])
        axes.set_yticks(queries, [str(query) for query in queries])
    else:
        # A newline is a token like another, and must not break the label.
        names = [token if token.isprintable() else repr(token)[1:-1] for token in tokens]
        # Without parse_math=False a token with two dollar signs is set as a formula.
        axes.set_xticks(keys, [names[key] for key in keys], parse_math=False)
        axes.set_yticks(queries, [names[past + query] for query in queries], parse_math=False)
        if max(map(len, names)) * len(keys) > 30:
            for label in axes.get_xticklabels():
                label.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.tick_params(labelsize=10, colors=INK, length=0)
    if max(q_tokens, kv_tokens) <= _MOST_SEPARATED:
        axes.set_xticks(np.arange(1, kv_tokens) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, q_tokens) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=30 / max(q_tokens, kv_tokens, 15))
        axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _ticks(count: int) -> list[int]:
    """Positions to label: all of a few, else every 5th, 10th, 25th, …."""
    if count <= _MOST_LABELS:
        return list(range(count))
    steps = [2, 5, 10, 25, 50] + [10**power for power in range(2, 12)]
    return list(range(0, count, next(step for step in steps if count <= 8 * step)))


def _add_legend(figure: Figure, leaks: int) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=BLUE, label="seen"), Patch(color=HIDDEN, label="hidden")]
    if leaks:
        patches.append(Patch(color=LEAK, label="leak: the future is seen"))
    figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=len(patches),
        frameon=False,
        fontsize=11,
        labelcolor=INK,
        handlelength=1,
        handleheight=1,
    )
