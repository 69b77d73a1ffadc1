"""The style sheet of the page that `verify` writes: light and dark, wide and narrow, and paper."""

from __future__ import annotations

__all__ = ["STYLE"]

# The pictures are white in both modes: their colours are checked for contrast on white.
# Every text colour has a contrast of at least 4.5 on the backgrounds it stands on.
STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --card: #ffffff; --ink: #1b2027; --soft: #566070; --line: #d9dee5;
  --good: #11693a; --good-wash: #e6f4ec;
  --conditional: #0b5a8f; --conditional-wash: #e5f1f9;
  --unsure: #805000; --unsure-wash: #fdf2dc;
  --bad: #a82a00; --bad-wash: #fdebe5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #101317; --card: #191e24; --ink: #e8ebef; --soft: #a3adba; --line: #333b45;
    --good: #6fd39b; --good-wash: #12291d;
    --conditional: #7cc0ee; --conditional-wash: #10273a;
    --unsure: #f0bd5c; --unsure-wash: #2e230c;
    --bad: #ff9a76; --bad-wash: #371a10;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
header, main, footer { max-width: 62rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1, h2, h3 { line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h1 { font-size: 1.125rem; font-weight: 600; }
h2 { font-size: 1.375rem; }
h2 code { font-weight: 700; }
h2 span { color: var(--soft); font-weight: 400; }
h3 { font-size: 1.0625rem; margin: 2rem 0 .625rem; }
p, ul, ol, dl { margin: 0 0 .75rem; }
code, .digest {
  font: .875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; unicode-bidi: isolate;
}
.soft { color: var(--soft); }
.from { color: var(--soft); font-size: .875rem; margin: 0 0 .125rem; }

.good { --tone: var(--good); --wash: var(--good-wash); }
.conditional { --tone: var(--conditional); --wash: var(--conditional-wash); }
.unsure { --tone: var(--unsure); --wash: var(--unsure-wash); }
.bad { --tone: var(--bad); --wash: var(--bad-wash); }

.verdicts { list-style: none; padding: 0; margin: 1.25rem 0 1rem; }
.verdicts li {
  display: grid; grid-template-columns: auto minmax(0, 1fr); column-gap: 1rem;
  padding: 1.25rem 1.5rem; margin-bottom: .75rem; border-radius: .75rem;
  background: var(--wash); border: 1px solid var(--tone);
}
.verdicts svg { width: 2.75rem; height: 2.75rem; margin-top: .125rem; }
.verdicts p { margin: 0; overflow-wrap: anywhere; }
.verdicts .word {
  font-size: clamp(1.5rem, 1.1rem + 2vw, 2.25rem); font-weight: 700; line-height: 1.15;
  letter-spacing: -.01em; color: var(--tone); margin-bottom: .375rem;
}
.verdicts .where { font-size: .875rem; margin-top: .375rem; }
svg { fill: none; stroke: var(--tone); stroke-width: 2; stroke-linecap: round;
  stroke-linejoin: round; }
a { color: inherit; text-underline-offset: .15em; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible {
  outline: 3px solid var(--conditional); outline-offset: 2px; border-radius: .25rem;
}

article {
  background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  padding: 1.5rem; margin: 1.5rem 0;
}
.title { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: baseline;
  justify-content: space-between; }
.title h2 { min-width: 0; }
.mark {
  display: inline-block; color: var(--tone); background: var(--wash);
  border-radius: 1rem; padding: .0625rem .625rem; font-size: .875rem; font-weight: 600;
}

.pictures { display: grid; gap: 1.25rem; margin: 0;
  align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 18rem), 1fr)); }
.pictures.one { grid-template-columns: minmax(0, 28rem); }
figure { margin: 0; min-width: 0; border: 1px solid var(--line); border-radius: .5rem;
  overflow: hidden; }
img { display: block; width: 100%; height: auto; background: #ffffff; }
figcaption { padding: .625rem .875rem; font-size: .9375rem; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }

.path { margin: 0; padding-left: 2.5rem; }
.path li { padding: .1875rem 0 .1875rem .25rem; }
.path li::marker { color: var(--soft); font-variant-numeric: tabular-nums; }
.path .to { display: block; color: var(--soft); }
.leak { border-left: .25rem solid var(--bad); padding-left: .875rem; }

/* A shadow at the side on which a table goes on: covers scroll with it, shadows stay. */
.scroll { overflow-x: auto;
  background: linear-gradient(90deg, var(--card) 30%, transparent) left / 2rem 100% local,
    linear-gradient(-90deg, var(--card) 30%, transparent) right / 2rem 100% local,
    linear-gradient(90deg, var(--line), transparent) left / .75rem 100% scroll,
    linear-gradient(-90deg, var(--line), transparent) right / .75rem 100% scroll;
  background-repeat: no-repeat; }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .5rem; overflow-wrap: anywhere; }
th, td { text-align: left; vertical-align: baseline; padding: .5rem .875rem .5rem 0;
  border-top: 1px solid var(--line); overflow-wrap: anywhere; }
thead th { border-top: 0; color: var(--soft); font-weight: 600; font-size: .875rem;
  overflow-wrap: normal; }
tbody th { font-weight: 600; }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.name { min-width: 6rem; }
.rows th:first-child { min-width: 15rem; }
td .mark { white-space: nowrap; }

details { margin: .125rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
.whole { margin: .5rem 0; padding: .625rem .875rem; background: var(--ground);
  border-radius: .5rem; max-height: 20rem; overflow: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: .25rem 1.25rem; }
dt { color: var(--soft); }
dd { margin: 0; }
dt, dd { overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: .875rem; padding-bottom: 2.5rem; }

@media (max-width: 40rem) {
  header, main, footer { padding-left: .875rem; padding-right: .875rem; }
  header { padding-top: 1.25rem; }
  article { padding: 1.125rem .875rem; }
  .verdicts li { padding: 1rem; column-gap: .75rem; }
  .verdicts svg { width: 2rem; height: 2rem; }
  .path { padding-left: 2rem; }
  /* A row becomes a block of two lines: what and its result, then the sentence. */
  .rows thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px;
    overflow: hidden; }
  .rows tr { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 0 .75rem;
    padding: .625rem 0; border-top: 1px solid var(--line); }
  .rows tbody tr:first-child { border-top: 0; }
  .rows th, .rows td { border: 0; padding: 0; }
  .rows th:first-child { min-width: 0; }
  .scroll th, .scroll td { padding-right: .75rem; font-size: .875rem; }
  .rows .wide { grid-column: 1 / -1; }
}
@media print {
  :root {
    color-scheme: light;
    --ground: #ffffff; --card: #ffffff; --ink: #000000; --soft: #444444; --line: #bbbbbb;
    --good: #11693a; --good-wash: #ffffff;
    --conditional: #0b5a8f; --conditional-wash: #ffffff;
    --unsure: #805000; --unsure-wash: #ffffff;
    --bad: #a82a00; --bad-wash: #ffffff;
  }
  body { font-size: 10pt; }
  header, main, footer { max-width: none; padding: 0; }
  article { border: 0; border-top: 2px solid var(--line); border-radius: 0; padding: 1rem 0 0; }
  figure, tr, .verdicts li, .path li { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
  .pictures { grid-template-columns: repeat(2, 1fr); }
  .pictures.one { grid-template-columns: 50%; }
  img { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .scroll, .whole { overflow: visible; max-height: none; }
  /* Paper cannot be unfolded. */
  .between::details-content { content-visibility: visible; block-size: auto; }
}
"""
