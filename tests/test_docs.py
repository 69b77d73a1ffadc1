"""What the documents show is what happens: their Python runs, their links lead somewhere.

A block fenced as ``python`` is run, all those of a document in order and in one namespace, in an
empty folder. What it prints must be the ``text`` block that follows it; a block without one prints
nothing. ``python no-run`` is only shown.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for path in (
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
        REPOSITORY / "SECURITY.md",
        *(REPOSITORY / "docs").glob("*.md"),
    )
    if path.exists()
)

FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?(?P<target>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(?P<title>.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A Python block of a document.

    Attributes:
        line: Line of the document its code begins at, from 1.
        code: The code.
        expected: What it must print, blanks at the end of the text aside.
        run: False for ``python no-run``.
    """

    line: int
    code: str
    expected: str
    run: bool


def python_blocks(text: str) -> Iterator[Block]:
    """The Python blocks of a Markdown document, each with the text block that follows it."""
    fences = list(FENCE.finditer(text))
    for index, fence in enumerate(fences):
        language, *words = fence["info"].split() or [""]
        if language != "python":
            continue
        assert words in ([], ["no-run"]), f"unknown words after ```python: {words}"
        following = fences[index + 1] if index + 1 < len(fences) else None
        expected = ""
        if following is not None and following["info"].strip() == "text":
            between = text[fence.end() : following.start()]
            expected = following["body"] if not between.strip() else ""
        line = text.count("\n", 0, fence.start("body")) + 1
        yield Block(line, fence["body"], expected.rstrip(), run=not words)


def run_blocks(document: str, text: str) -> None:
    """Run the Python blocks of `text` and compare what they print."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in python_blocks(text):
        if not block.run:
            continue
        printed = io.StringIO()
        # Empty lines in front, so that a traceback has the line of the document.
        code = compile("\n" * (block.line - 1) + block.code, document, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        assert printed.getvalue().rstrip() == block.expected, f"{document}:{block.line}"


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a document in a link."""
    titles = (match["title"] for match in HEADING.finditer(FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(document: Path, text: str) -> list[str]:
    """Relative links of `text` that lead to no file of the repository or to no heading."""
    broken = []
    for match in LINK.finditer(FENCE.sub("", text)):
        target = match["target"]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if path == document:
            there, linked = True, text
        else:
            there = path.is_relative_to(REPOSITORY) and path.exists()
            linked = path.read_text(encoding="utf-8") if there and anchor else ""
        if not there or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("name", DOCUMENTS)
def test_python_blocks_print_what_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # A document starts as a reader does: torch.compile keeps a record for the whole process.
    if "causal_attn.export" in sys.modules:
        sys.modules["causal_attn.export"].compile_report(clear=True)
        sys.modules["torch"].compiler.reset()
    run_blocks(name, text)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_images_lead_somewhere(name: str) -> None:
    path = REPOSITORY / name
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_every_picture_is_shown() -> None:
    shown = "".join((REPOSITORY / name).read_text(encoding="utf-8") for name in DOCUMENTS)
    for picture in (REPOSITORY / "docs" / "images").iterdir():
        assert f"images/{picture.name})" in shown, picture.name


def test_the_page_has_blocks_to_run() -> None:
    """A fence that the pattern misses would be a test that runs nothing."""
    text = (REPOSITORY / "docs" / "causal-attention.md").read_text(encoding="utf-8")
    assert len(list(python_blocks(text))) == text.count("```python") == 6


# The helpers themselves

SHOWN = """
```python
x = 2
print(x)
```

```text
2
```
```python no-run
raise SystemExit
```
```python
assert x == 2
```
words between
```text
not compared
```
"""


def test_blocks_share_a_namespace_and_no_run_does_not() -> None:
    run_blocks("shown.md", SHOWN)
    assert [(block.line, block.run) for block in python_blocks(SHOWN)] == [
        (3, True),
        (11, False),
        (14, True),
    ]


@pytest.mark.parametrize(
    ("before", "after"), [("print(x)", "print(x + 1)"), ("assert x == 2", "print(x)")]
)
def test_another_output_is_a_failure(before: str, after: str) -> None:
    with pytest.raises(AssertionError, match=r"shown.md:\d+"):
        run_blocks("shown.md", SHOWN.replace(before, after))


def test_an_unknown_word_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="unknown words"):
        run_blocks("shown.md", SHOWN.replace("no-run", "norun"))


@pytest.mark.parametrize(
    "link",
    ["[a](missing.md)", "![a](images/no.png)", "[a](#no-heading)", "[a](../../outside)"],
)
def test_a_broken_link_is_found(link: str) -> None:
    document = REPOSITORY / "docs" / "made-up.md"
    good = "# A heading, here\n[a](#a-heading-here) [b](https://example.com/x)\n"
    assert broken_links(document, good) == []
    assert len(broken_links(document, good + link)) == 1
