"""The HTML page: what it says, what it cannot be made to do, and how a browser shows it."""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import jinja2
import numpy as np
import pytest
from numpy.typing import NDArray

from causal_attn.errors import UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Certificate, Check, Verdict
from causal_attn.picture import BLUE, LEAK
from causal_attn.verify import page as page_module
from causal_attn.verify.influence.crossed import Crossed
from causal_attn.verify.page.headline import headline
from causal_attn.verify.page.template import environment
from causal_attn.verify.page.text import MOST_KEPT, middle, visible

STYLE = Path(page_module.__file__).with_name("page.css").read_text()
TEXT: Any = environment().get_template("text.html.j2").module
"""The macros of the template that shows names and sentences of a model."""

CAUSAL = np.tri(6, dtype=bool)
LEAKY = CAUSAL | np.eye(6, k=1, dtype=bool)
DIGEST = "0123456789abcdef" * 4
HOSTILE = "<script>document.title='taken'</script><img src='http://127.0.0.1:9/x'>\"'&lt;"
LONG = "/layer" * 1700


@dataclass(frozen=True, kw_only=True)
class Leak:
    output: str = "logits"
    query: int = 2
    position: int = 4
    tokens: int = 6
    past: int = 0
    path: tuple[str, ...] = ("ids[0, 4]", "MatMul 'mix' -> mixed[0, 2]")
    crossing: int | None = None
    layer: str = ""
    crossed: Crossed | None = None

    @property
    def crossed_at(self) -> str:
        return "" if self.crossing is None else self.path[self.crossing]


@dataclass(frozen=True, kw_only=True)
class Variant:
    certificate: Certificate
    variant: str = "decomposed"
    provider: Provider = Provider.CPU
    visibility: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    leak: Leak | None = None
    placement: dict[str, int] = field(default_factory=dict)
    not_checked: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    variants: tuple[Variant, ...]
    path: Path = Path("models/causal_attention")
    skipped: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0


def render(report: Report) -> str:
    """`render_page` of a report whose parts are plain data."""
    return page_module.render_page(cast(Any, report))


def write(report: Report, folder: str | Path) -> Path:
    return page_module.write_page(cast(Any, report), folder)


PARITY = {"logits": {"max_abs": 4.2e-7, "max_rel": 1e-7, "max_ulp": 1.5, "budget": 2.1e-6}}
PASSED = (
    Check(name="future is invisible", passed=True, detail="the past bitwise equal"),
    Check(name="parity", passed=True, detail="9 lengths", figures=PARITY, provider="cpu"),
)


def certified(
    verdict: Verdict = Verdict.CAUSAL,
    checks: tuple[Check, ...] = PASSED,
    bound: float | None = None,
) -> Certificate:
    return Certificate(
        digest=DIGEST, verdict=verdict, checks=checks, score_bound=bound, versions={"onnx": "1.2"}
    )


def page(**fields: Any) -> str:
    """The page about one variant with these fields, certified unless they say otherwise."""
    return render(Report(variants=(Variant(**{"certificate": certified(), **fields}),)))


def leaking() -> Report:
    seen = (Check(name="future is invisible", passed=False, detail="row 2 changes"),)
    variant = Variant(
        certificate=certified(Verdict.NOT_CAUSAL, seen),
        visibility={"logits": LEAKY, "present.0.key": CAUSAL},
        leak=Leak(),
    )
    return Report(variants=(variant,), exit_code=1)


def hostile() -> Report:
    """Every text that a model, a file name or an error can bring, both as markup and very long."""
    variants = []
    for name in (HOSTILE, LONG):
        check = Check(
            name=f"parity {name}", passed=False, detail=name, provider=name,
            figures={name: {"max_abs": name, "budget": float("nan")}},
        )  # fmt: skip
        certificate = Certificate(
            digest=DIGEST, verdict=Verdict.NOT_CAUSAL, checks=(check,), versions={name: name}
        )
        path = (name, f"MatMul '{name}' -> {name}[0]", *(f"Add {name} -> {n}" for n in range(30)))
        variants.append(
            Variant(
                certificate=certificate, variant=name, leak=Leak(output=name, path=path),
                visibility={f"{n} {name}": CAUSAL for n in range(6)},
                placement={f"{name} on {name}": 3}, not_checked=(name,),
            )
        )  # fmt: skip
    return Report(
        variants=tuple(variants), path=Path(f"a/{HOSTILE.replace('/', '')}"),
        skipped={HOSTILE: LONG, LONG: HOSTILE}, exit_code=1,
    )  # fmt: skip


@cache
def rendered(report: Callable[[], Report]) -> str:
    return render(report())


class Outline(HTMLParser):
    """Elements of a page with their attributes, its headings, and every text in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        # Between elements that begin a line, the template's own line ends are not shown.
        between = not data.strip() and "\n" in data
        if self.open and self.open[-1] != "style" and not between:
            self.text += data

    def named(self, *names: str) -> list[tuple[str, dict[str, str | None]]]:
        return [element for element in self.elements if element[0] in names]


# What it says ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("bound", [None, 9.0])
@pytest.mark.parametrize(
    "results", [r for n in range(3) for r in itertools.product([True, False, None], repeat=n)]
)
def test_a_headline_is_good_only_if_the_certificate_passed(
    verdict: Verdict, bound: float | None, results: tuple[bool | None, ...]
) -> None:
    checks = tuple(
        Check(name=f"check {n}", passed=passed, detail=f"detail {n}")
        for n, passed in enumerate(results)
    )
    certificate = certified(verdict, checks, bound)
    line = headline(cast(Any, Variant(certificate=certificate)))
    assert (line.tone in ("good", "conditional")) is certificate.passed
    assert (line.tone == "bad") is (verdict is Verdict.NOT_CAUSAL or False in results)
    if verdict is Verdict.NOT_CAUSAL:
        assert line.words == "Not causal"
    for n, passed in enumerate(results):
        if passed is False and verdict is not Verdict.NOT_CAUSAL:
            assert f"“check {n}”" in line.words
            assert f"detail {n}" in line.reason


@pytest.mark.parametrize(
    ("certificate", "leak", "words", "reason"),
    [
        (certified(), None, "Causal", "All 2 checks passed."),
        (
            certified(Verdict.CONDITIONAL, bound=1.7e38), None, "Causal while |score| ≤ 1.7e+38",
            "A finite mask",
        ),
        (
            certified(Verdict.NOT_CAUSAL), Leak(past=3), "Not causal",
            "Input position 4 reaches position 2 of logits in a call of 6 tokens with 3 in the "
            "cache.",
        ),
        (
            certified(Verdict.UNDECIDED, (Check(name="x", passed=None, detail="because of Foo"),)),
            None, "Undecided", "because of Foo.",
        ),
    ],
)  # fmt: skip
def test_the_verdict_comes_first(
    certificate: Certificate, leak: Leak | None, words: str, reason: str
) -> None:
    text = Outline(page(certificate=certificate, leak=leak)).text
    assert text.startswith(f"{words}: causal_attention")
    start = text.index("causal-attn verify")
    assert text.index(words, start) < text.index(reason, start) < text.index("Exit code")


def test_everything_found_is_on_the_page() -> None:
    variant = Variant(
        certificate=certified(), visibility={"logits": CAUSAL},
        placement={"MatMul on cpu": 2, "Softmax on cpu": 1, "Shape on cuda": 4},
        not_checked=("padding: there is no mask",),
    )  # fmt: skip
    report = Report(variants=(variant,), skipped={"fast": "cuda is not installed here"})
    text = Outline(render(report)).text
    for part in (
        "decomposed on cpu", "future is invisible", "the past bitwise equal", "4.2e-07", "1.5",
        "2.1e-06", "20%", "2 MatMul, 1 Softmax", "elsewhere", "padding: there is no mask",
        DIGEST, "1.2", "Variants that were not run", "cuda is not installed here",
        "Exit code 0: all checks passed.", "models/causal_attention",
    ):  # fmt: skip
        assert part in text
    order = ["What each output sees", "Checks", "Parity", "Placement", "What was not checked"]
    places = [text.index(part) for part in (*order, "Versions and digest", "not run")]
    assert places == sorted(places)


def test_sections_without_content_say_so() -> None:
    text = Outline(page(certificate=certified(checks=()))).text
    for part in (
        "Causal, but nothing was checked", "no visibility matrix", "No check is recorded",
        "Parity was not checked", "no record of where nodes ran", "Nothing is recorded as left",
    ):  # fmt: skip
        assert part in text
    assert "Nothing was checked" in Outline(render(Report(variants=()))).text


def test_parity_figures_may_be_anything() -> None:
    figures = {
        "a": {"max_abs": float("nan"), "max_rel": "inf", "max_ulp": None, "budget": 1.0},
        "b": {"max_abs": 0, "budget": 0},
        "c": {"max_abs": 1, "budget": 0},
        "seed": 3,
    }
    check = Check(name="parity", passed=False, detail="", figures=figures)
    text = Outline(page(certificate=certified(checks=(check,)))).text
    assert "anan" in text
    assert "exact" in text
    assert "over" in text
    assert "seed" not in text


def test_equal_matrices_share_a_picture_and_leaks_come_first() -> None:
    visibility = {f"present.{n}": CAUSAL.copy() for n in range(6)} | {"logits": LEAKY}
    outline = Outline(page(visibility=visibility, leak=Leak()))
    alts = [attributes["alt"] for _, attributes in outline.named("img")]
    assert alts == [
        "Visibility of logits, 6 rows by 6 input positions: 5 leaks, the first from input "
        "position 1 to row 0.",
        "Visibility of present.0 and 5 more, 6 rows by 6 input positions: no row sees its future.",
    ]
    assert "present.5" in outline.text


def test_pictures_that_are_left_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("causal_attn.verify.page.sections.MOST_PICTURES", 2)
    many = {f"out.{n}": np.tri(2, n + 2, n, dtype=bool) for n in range(4)}
    many["empty"] = np.zeros((0, 4), bool)
    outline = Outline(page(visibility=many))
    alts = [attributes["alt"] or "" for _, attributes in outline.named("img")]
    assert len(alts) == 2
    assert all(alt.endswith("no row sees its future.") for alt in alts)
    assert "Not drawn: " in outline.text
    for name in ("out.2", "out.3", "empty"):
        assert name in outline.text


@pytest.mark.parametrize("length", [0, 1, 12, 13, 300])
def test_the_leaking_path_is_whole_and_numbered(length: int) -> None:
    path = tuple(f"Op 'node_{n}' -> tensor_{n}[0]" for n in range(length))
    outline = Outline(page(certificate=certified(Verdict.NOT_CAUSAL), leak=Leak(path=path)))
    found = re.findall(r"node_(\d+)", outline.text)
    assert found == [str(n) for n in range(length)]
    starts = [attributes.get("start", "1") for _, attributes in outline.named("ol")]
    assert starts == ([] if not length else ["1"] if length <= 12 else ["1", "5", str(length - 3)])


@pytest.mark.parametrize(
    ("crossing", "starts", "between"),
    [
        (1, ["1", "2", "3", "5", "27"], ["22"]),
        (12, ["1", "5", "13", "14", "27"], ["8", "13"]),
        (29, ["1", "5", "27", "30"], ["22"]),
    ],
)
def test_the_step_that_crosses_positions_is_not_folded(
    crossing: int, starts: list[str], between: list[str]
) -> None:
    path = tuple(f"Op 'node_{n}' -> tensor_{n}[0]" for n in range(30))
    leak = Leak(path=path, crossing=crossing)
    outline = Outline(page(certificate=certified(Verdict.NOT_CAUSAL), leak=leak))
    lists = outline.named("ol")
    assert [attributes.get("start", "1") for _, attributes in lists] == starts
    (crossed,) = (a for _, a in lists if "crossing" in (a.get("class") or ""))
    assert crossed.get("start", "1") == str(crossing + 1)
    assert re.findall(r"(\d+) steps in between", outline.text) == between
    assert f"It is crossed at Op 'node_{crossing}'" in outline.text


def test_the_mask_at_the_crossing_is_drawn_beside_the_one_it_should_be() -> None:
    seen = np.array([[1, 1, 0], [1, 1, 1], [1, 1, 1]], bool)
    crossed = Crossed(tokens=3, past=2, first=(2, 2), seen=seen)
    shown = page(
        certificate=certified(Verdict.NOT_CAUSAL),
        leak=Leak(crossing=1, layer="layer 4", crossed=crossed),
    )
    grids = re.findall(r"<pre>(.*?)</pre>", re.sub(r"</?b.*?>", "", shown), re.DOTALL)
    assert [[line.split() for line in grid.strip().splitlines()] for grid in grids] == [
        [["2", "#", "X", "."], ["3", "#", "#", "X"], ["4", "#", "#", "#"]],
        [["2", "#", ".", "."], ["3", "#", "#", "."], ["4", "#", "#", "#"]],
    ]
    text = Outline(shown).text
    assert "(3 tokens, 2 in the cache)" in text
    assert "(layer 4)" in text
    assert "The first position drawn is 2." in text


def test_the_same_report_is_the_same_bytes() -> None:
    assert render(leaking()) == rendered(leaking)


# What it cannot be made to do --------------------------------------------------------------------


@pytest.mark.parametrize("report", [hostile, leaking])
def test_the_page_loads_nothing_and_runs_nothing(report: Callable[[], Report]) -> None:
    outline = Outline(rendered(report))
    assert not outline.named("script", "iframe", "object", "embed", "base", "form", "video", "a")
    urls = [
        value or ""
        for _, attributes in outline.elements
        for name, value in attributes.items()
        if name in ("src", "srcset", "href", "action", "data", "poster", "background")
    ]
    assert all(url.startswith("data:") for url in urls)
    names = {name for _, attributes in outline.elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name == "style"]
    assert "url(" not in STYLE
    assert "@import" not in STYLE
    assert "</" not in STYLE
    (policy,) = (
        attributes["content"]
        for _, attributes in outline.named("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")


def test_hostile_names_are_shown_as_they_are() -> None:
    outline = Outline(rendered(hostile))
    assert outline.text.count("<script>document.title='taken'</script>") > 10
    wholes = [a["title"] or "" for _, a in outline.elements if a.get("title")]
    assert LONG in wholes
    # Shortened in the middle wherever it is not folded away.
    assert max(map(len, re.findall(r"<p[ >].*?</p>", rendered(hostile)))) < 3 * len(LONG)
    assert "…[10,120 characters]…" in outline.text


def test_every_template_escapes_and_none_can_leave_a_name_out() -> None:
    made = environment()
    assert made.autoescape is True
    for name in made.list_templates(extensions=["j2"]):
        source = Path(page_module.__file__).with_name(name).read_text()
        assert not re.search(r"\|\s*safe|autoescape", source), name
    shown = made.from_string('<p title="{{ name }}">{{ name }}</p>').render(name="\"<b>'&")
    assert shown == '<p title="&#34;&lt;b&gt;&#39;&amp;">&#34;&lt;b&gt;&#39;&amp;</p>'
    assert TEXT.code('a/<b>"') == "<code>a/<wbr>&lt;b&gt;&#34;</code>"
    with pytest.raises(jinja2.UndefinedError):
        made.from_string("{{ mispelt }}").render()


@pytest.mark.parametrize("make", [TEXT.code, partial(TEXT.foldable, most=80)])
@pytest.mark.parametrize("size", [80, 81, 10_000, MOST_KEPT, 1_000_000])
def test_long_names_lose_their_middle_and_keep_the_whole(make: Any, size: int) -> None:
    name = ("<" + "x" * size)[:size]
    made = make(name)
    shown = re.sub(r"<[^>]*>", "\n", made)
    assert len(html.unescape(min(shown.split(), key=len))) <= 110
    assert (html.escape(name) in made) is (size <= MOST_KEPT)
    assert ("title=" in made or "<details>" in made) is (size > 80)
    assert len(made) < 2 * MOST_KEPT


def test_middle_counts_what_it_leaves_out() -> None:
    assert middle("abcdef", 6) == "abcdef"
    assert middle("abcdefg", 4) == "ab…[3 characters]…fg"
    assert middle("abcdefg", 5) == "abc…[2 characters]…fg"


def test_what_prints_nothing_is_written_out() -> None:
    assert visible("a\u202eb\u200bc\0d\ud800\n") == r"a\u202eb\u200bc\x00d\ud800\n"
    assert visible("naïve 猫\n", keep="\n") == "naïve 猫\n"
    page(not_checked=("\ud800",), variant="\ud800").encode()


# Where it is written -----------------------------------------------------------------------------


def test_the_page_is_written_and_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"
    path = write(leaking(), folder)
    assert path == folder / "index.html"
    assert path.read_text("utf-8") == rendered(leaking)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    write(Report(variants=(Variant(certificate=certified()),)), str(folder))
    assert "Not causal" not in path.read_text("utf-8")
    assert [entry.name for entry in folder.iterdir()] == ["index.html"]


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(UsageError, match="`folder` must be a folder or not exist"):
        write(leaking(), file)
    with pytest.raises(UsageError, match="`folder` must be a place that can be written"):
        write(leaking(), file / "below")
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="`folder` must be a folder or not exist"):
        write(leaking(), dangling)
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<h1>mine</h1>")
    with pytest.raises(UsageError, match=r"no index\.html of something else"):
        write(leaking(), site)
    assert (site / "index.html").read_text() == "<h1>mine</h1>"
    (tmp_path / "odd" / "index.html").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"no index\.html of something else"):
        write(leaking(), tmp_path / "odd")
    assert file.read_text() == "mine"


def test_an_interruption_leaves_the_earlier_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(leaking(), tmp_path).read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UsageError, match="No space left on device"):
        write(hostile(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_bytes() == before


# For everybody -----------------------------------------------------------------------------------


@pytest.mark.parametrize("report", [hostile, leaking])
def test_the_structure_is_accessible(report: Callable[[], Report]) -> None:
    outline = Outline(rendered(report))
    assert outline.elements[0] == ("html", {"lang": "en"})
    levels = [int(name[1]) for name, _ in outline.named("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert {a.get("scope") for _, a in outline.named("th")} == {"row", "col"}
    assert all(a.get("alt") and a.get("width") for _, a in outline.named("img"))
    assert all(a.get("aria-hidden") == "true" for _, a in outline.named("svg"))
    ids = [a["id"] for _, a in outline.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    assert all(a["aria-labelledby"] in ids for _, a in outline.named("article"))


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["light", "dark", "print"])
def test_text_has_contrast(mode: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[mode]))
    tones = ("good", "conditional", "unsure", "bad")
    pairs = [(text, ground) for text in ("ink", "soft") for ground in ("ground", "card")]
    pairs += [(text, f"{tone}-wash") for tone in tones for text in (tone, "ink")]
    for text, ground in pairs:
        dark, light = sorted((luminance(colours[text]), luminance(colours[ground])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


# In a browser ------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
in_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="neither chromium nor chromium-browser is on the PATH"
)

PROBE = """<!doctype html><title>probe</title><link rel="icon" href="data:,">
<iframe src="index.html" width="1200" height="900"></iframe>
<iframe src="index.html" width="390" height="900"></iframe>
<pre></pre>
<script>
window.onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    return {
      title: page.title, width: root.clientWidth, needs: root.scrollWidth,
      pictures: [...page.images].map(image => image.naturalWidth),
      text: page.body.innerText, scripts: page.scripts.length,
    };
  });
  document.querySelector("pre").textContent = JSON.stringify(found);
};
</script>"""
"""Reads the page from outside: its policy lets no script run inside."""


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder, the address it is served at, and what was asked of it."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    asked: list[str] = []
    server.asked = asked  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def browse(tmp_path: Path, *arguments: str) -> str:
    """Run headless Chromium with a profile of its own and return what it printed."""
    assert CHROMIUM is not None
    profile = tmp_path / "profile"
    result = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb",
            f"--user-data-dir={profile}", *arguments,
        ],
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    shutil.rmtree(profile, ignore_errors=True)
    return result.stdout.decode()


def pixels(path: Path, colour: str) -> int:
    """How many pixels are within rounding of `colour`."""
    from matplotlib.image import imread

    image = (imread(path)[..., :3] * 255).round().astype(int)
    wanted = [int(colour[n : n + 2], 16) for n in (1, 3, 5)]
    return int((np.abs(image - wanted).max(axis=-1) <= 2).sum())


@in_browser
@pytest.mark.parametrize("report", [hostile, leaking])
def test_a_browser_shows_the_page(
    site: tuple[Path, str, list[str]], tmp_path: Path, report: Callable[[], Report]
) -> None:
    folder, address, asked = site
    (folder / "index.html").write_text(rendered(report), "utf-8")
    (folder / "probe.html").write_text(PROBE)
    dom = browse(tmp_path, "--dump-dom", f"{address}/probe.html")
    (found,) = re.findall(r"<pre>(.*?)</pre>", dom, re.DOTALL)
    desktop, phone = json.loads(html.unescape(found))
    assert desktop["width"] > phone["width"] > 360
    for view in (desktop, phone):
        assert view["title"].startswith("Not causal: ")
        assert "Input position 4 reaches position 2 of" in view["text"]
        assert len(view["pictures"]) == 2
        assert all(size > 0 for size in view["pictures"])
        assert view["scripts"] == 0
        assert view["needs"] <= view["width"], "the page is wider than the screen"
    assert set(asked) == {"/probe.html", "/index.html"}


@in_browser
def test_a_browser_obeys_the_policy(site: tuple[Path, str, list[str]], tmp_path: Path) -> None:
    folder, address, asked = site
    text = rendered(leaking)
    injected = f"<img src='{address}/taken'><style>@import '{address}/style'</style></main>"
    text = text.replace("</main>", injected)
    bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    # The page itself never holds such markup; the policy is the second lock, and this the key.
    (folder / "locked.html").write_text(text, "utf-8")
    browse(tmp_path, "--dump-dom", f"{address}/locked.html")
    assert asked == ["/locked.html"], "not even an icon is asked for"
    (folder / "bare.html").write_text(bare, "utf-8")
    browse(tmp_path, "--dump-dom", f"{address}/bare.html")
    assert {"/taken", "/style"} < set(asked), "the test cannot see requests"


@in_browser
@pytest.mark.parametrize(
    ("leaks", "scheme", "ground"),
    [(False, "0", "#101317"), (True, "1", "#f6f7f9")],
    ids=["causal-dark", "leaking-light"],
)
def test_leaks_are_red_on_the_screen(
    tmp_path: Path, leaks: bool, scheme: str, ground: str
) -> None:
    causal = Report(variants=(Variant(certificate=certified(), visibility={"logits": CAUSAL}),))
    path = write(leaking() if leaks else causal, tmp_path / "report")
    picture = tmp_path / "screen.png"
    browse(
        tmp_path, f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1000,1400",
        f"--screenshot={picture}", path.as_uri(),
    )  # fmt: skip
    assert pixels(picture, BLUE) > 10_000
    assert pixels(picture, ground) > 10_000
    red = pixels(picture, LEAK)
    assert red > 1000 if leaks else red == 0
