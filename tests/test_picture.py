"""Pictures are PNG files of the promised size and the same bytes for the same numbers."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from causal_attn.errors import InputError, MissingDependencyError
from causal_attn.picture import BLUE, HIDDEN, LEAK, draw_visibility, draw_weights

REPOSITORY = Path(__file__).parents[1]


def size(path: Path) -> tuple[int, int]:
    """Width and height in pixels, from the first chunk of the PNG file."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def colours(path: Path) -> dict[str, int]:
    """How many pixels have each of the three colours of a visibility matrix."""
    from matplotlib.image import imread

    pixels = (imread(path)[..., :3] * 255).round().astype(int)
    return {
        name: int((pixels == [int(code[i : i + 2], 16) for i in (1, 3, 5)]).all(axis=-1).sum())
        for name, code in (("seen", BLUE), ("hidden", HIDDEN), ("leak", LEAK))
    }


def causal_weights(q_tokens: int, kv_tokens: int) -> NDArray[np.float32]:
    past = kv_tokens - q_tokens
    weights = np.tri(q_tokens, kv_tokens, past) / np.arange(past + 1, kv_tokens + 1)[:, None]
    return weights.astype(np.float32)


@pytest.mark.parametrize(
    ("q_tokens", "kv_tokens", "expected"),
    [(1, 1, (1500, 750)), (3, 3, (1500, 750)), (300, 300, (1500, 750)), (3, 6, (1500, 480)),
     (1, 300, (1500, 372))],
)  # fmt: skip
def test_weights_of_any_shape(
    q_tokens: int, kv_tokens: int, expected: tuple[int, int], tmp_path: Path
) -> None:
    draw_weights(causal_weights(q_tokens, kv_tokens), tmp_path / "weights.png")
    assert size(tmp_path / "weights.png") == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 1), (900, 900)), ((3, 3), (900, 900)), ((300, 300), (900, 900)), ((2, 4), (900, 540)),
     ((6, 2), (900, 900))],
)  # fmt: skip
def test_visibility_of_any_shape(
    shape: tuple[int, int], expected: tuple[int, int], tmp_path: Path
) -> None:
    draw_visibility(np.tri(*shape, dtype=np.bool_), tmp_path / "visibility.png")
    assert size(tmp_path / "visibility.png") == expected


def test_same_numbers_give_the_same_bytes_and_nothing_about_the_writer(tmp_path: Path) -> None:
    for name in ("first.png", "second.png"):
        draw_weights(causal_weights(4, 6), tmp_path / name, tokens=list("abcdef"))
    first = (tmp_path / "first.png").read_bytes()
    assert first == (tmp_path / "second.png").read_bytes()
    assert b"tEXt" not in first
    assert b"atplotlib" not in first


def test_tokens_change_the_picture(tmp_path: Path) -> None:
    draw_weights(causal_weights(3, 3), tmp_path / "positions.png")
    draw_weights(causal_weights(3, 3), tmp_path / "tokens.png", tokens=["the", "cat", "sat"])
    assert (tmp_path / "positions.png").read_bytes() != (tmp_path / "tokens.png").read_bytes()


def test_a_token_is_never_a_formula_nor_a_line_break(tmp_path: Path) -> None:
    """Unpaired braces between dollar signs stop matplotlib's formula reader with an error."""
    tokens = ["${\\frac$", "\n", "a^b", "\x00"]
    draw_weights(causal_weights(3, 4), tmp_path / "tokens.png", tokens=tokens)
    assert size(tmp_path / "tokens.png") == (1500, 615)


@pytest.mark.parametrize("tokens", [8, 100])
def test_above_the_diagonal_is_red(tokens: int, tmp_path: Path) -> None:
    draw_visibility(np.tri(tokens, dtype=np.bool_), tmp_path / "causal.png")
    draw_visibility(np.tri(tokens, k=1, dtype=np.bool_), tmp_path / "leak.png")
    causal, leak = colours(tmp_path / "causal.png"), colours(tmp_path / "leak.png")
    assert causal["leak"] == 0
    assert leak["leak"] > 1000
    assert leak["hidden"] < causal["hidden"]


def test_the_diagonal_ends_in_the_lower_right_corner(tmp_path: Path) -> None:
    """Three queries after a past of two: nothing they see is a leak."""
    draw_visibility(np.tri(3, 5, k=2, dtype=np.bool_), tmp_path / "past.png")
    assert colours(tmp_path / "past.png")["leak"] == 0


def test_leaks_can_be_said(tmp_path: Path) -> None:
    """A key before the window is seen: wrong, though it is no future."""
    matrix = np.tri(4, dtype=np.bool_)
    leaks = np.zeros_like(matrix)
    leaks[3, 0] = True
    draw_visibility(matrix, tmp_path / "window.png", leaks=leaks)
    assert colours(tmp_path / "window.png")["leak"] > 1000


GOOD = np.eye(2, dtype=np.bool_)


@pytest.mark.parametrize(
    ("weights", "tokens", "message"),
    [
        ([[1.0]], None, r"`weights` must be a floating-point ndarray, got list."),
        (GOOD, None, r"`weights` must be a floating-point ndarray, got an array of bool."),
        (np.ones(3), None, r"`weights` must be \[q_tokens, kv_tokens\].*got shape \[3\]. Choose"),
        (np.ones((1, 1, 2, 2)), None, r"got shape \[1, 1, 2, 2\]. Choose one sequence and one"),
        (np.ones((0, 3)), None, r"with at least one of each, got shape \[0, 3\]"),
        (np.array([[2.0]]), None, r"`weights` must be in 0 … 1, got 2.0 … 2.0. Scores are drawn"),
        (np.array([[-0.1]]), None, r"`weights` must be in 0 … 1, got -0.1"),
        (np.array([[np.nan]]), None, r"`weights` must be in 0 … 1, got nan"),
        (np.eye(3), ["a"], r"`tokens` must name each of the 3 keys, got 1 names."),
        (np.ones((2, 1)), ["a"], r"`tokens` must name queries too, got 1 names for 2 queries."),
    ],
)
def test_refuses_what_is_no_weights(
    weights: Any, tokens: list[str] | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        draw_weights(weights, tmp_path / "no.png", tokens=tokens)
    assert not (tmp_path / "no.png").exists()


@pytest.mark.parametrize(
    ("matrix", "leaks", "message"),
    [
        (np.eye(2), None, r"`matrix` must be a bool ndarray, got an array of float64."),
        (GOOD[0], None, r"`matrix` must be \[q_tokens, kv_tokens\].*, got shape \[2\]"),
        (GOOD, np.eye(2), r"`leaks` must be a bool ndarray, got an array of float64."),
        (GOOD, GOOD[:1], r"`leaks` must have the shape of `matrix`, \[2, 2\], got \[1, 2\]"),
        (GOOD, ~GOOD, r"`leaks` must be keys that are seen.* hides: query 0, key 1."),
    ],
)
def test_refuses_what_is_no_visibility(
    matrix: Any, leaks: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        draw_visibility(matrix, tmp_path / "no.png", leaks=leaks)
    assert not (tmp_path / "no.png").exists()


def test_matplotlib_missing_is_said_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "matplotlib":
                raise ModuleNotFoundError("No module named 'matplotlib'", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(MissingDependencyError, match=r"pip install 'causal-attn\[verify\]'"):
        draw_visibility(GOOD, tmp_path / "no.png")


def test_pictures_leave_the_process_as_it_was() -> None:
    """Neither import nor drawing loads pyplot, and importing loads no matplotlib at all."""
    program = """
import sys, io, numpy
import causal_attn.picture
assert "matplotlib" not in sys.modules
causal_attn.picture.draw_visibility(numpy.eye(2, dtype=bool), io.BytesIO())
assert "matplotlib.pyplot" not in sys.modules
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY)


def test_the_pictures_of_the_docs_are_what_the_script_draws(tmp_path: Path) -> None:
    script = REPOSITORY / "scripts" / "make_pictures"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, script, tmp_path], check=True, env=environment)
    committed = sorted((REPOSITORY / "docs" / "images").glob("*.png"))
    assert [path.name for path in sorted(tmp_path.iterdir())] == [path.name for path in committed]
    assert sum(path.stat().st_size for path in committed) < 300_000
    for path in committed:
        # Another matplotlib rasterises text differently: size here, bytes within one run above.
        assert size(tmp_path / path.name) == size(path)
