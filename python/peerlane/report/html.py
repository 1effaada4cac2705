# SPDX-License-Identifier: Apache-2.0
"""Writes the report as one HTML page. Style, script, plotly and data are inline, so the page loads nothing."""

import json
from html import escape as escape_text
from pathlib import Path

from . import words
from .model import Bars, Chart, Facts, Log, Matrices, Matrix, Notice, Picture, Table

HERE = Path(__file__).resolve().parent
STATES = {"good": "✓", "low": "▼ low", "suspicious": "? suspicious", "slow": "▼ slow"}
LEVEL_WORDS = {"ok": "Ok.", "note": "Note.", "bad": "Attention."}
SHORT_TABLE = 12   # rows that a page of paper keeps together
TABLE_POINTS = 60  # a chart's table has at most so many sizes


def escape(text):
    """Escapes a value for HTML. Accepts any type, because a damaged result file may have a number in place of a text."""
    return escape_text(str(text))


class Page:
    """Collects the charts while the sections are written. A script in the page draws them from one block of data."""

    def __init__(self):
        self.charts = []

    def block(self, item):
        draw = {Chart: self.chart, Bars: self.bars, Matrix: matrix, Matrices: matrices, Table: table, Facts: facts, Notice: notice,
                Picture: picture, Log: log}[type(item)]
        return draw(item)

    def figure(self, item, data, below):
        number = len(self.charts)
        self.charts.append(data)
        note = f'<p class="note">{escape(item.note)}</p>' if item.note else ""
        height = data.get("height", 380)
        return (f'<figure class="chart"><figcaption id="c{number}t">{escape(item.title)}</figcaption>'
                f'<div class="plot" id="c{number}" role="img" aria-labelledby="c{number}t" style="min-height:{height}px"></div>{note}{below}</figure>')

    def chart(self, item):
        data = {"kind": "steps" if item.steps else "curves", "x": item.x_title, "y": item.y_title, "xu": item.x_unit, "yu": item.y_unit,
                "xlog": item.x_log, "ylog": item.y_log, "level": item.level,
                "series": [{"n": s.name, "x": numbers(s.x), "y": numbers(s.y), "e": s.emphasis, "s": s.shown} for s in item.series],
                "marks": [{"x": short(m.x), "t": m.text} for m in item.marks]}
        crossings = "".join(f"<li>{escape(m.text)}</li>" for m in item.marks)
        below = f'<ol class="marks" aria-label="Crossovers">{crossings}</ol>' if crossings else ""
        return self.figure(item, data, below + (points(item) if item.table else ""))

    def bars(self, item):
        height = 90 + len(item.categories) * (18 * len(item.series) + 16)
        series = [(name, numbers(values)) for name, values in item.series]
        data = {"kind": "bars", "x": item.x_title, "xu": item.unit, "xlog": item.x_log, "categories": item.categories, "height": height,
                "series": [{"n": name, "v": values} for name, values in series]}
        rows = [[c] + [words.rounded(values[i]) for _, values in series] for i, c in enumerate(item.categories)]
        below = table(Table("", [""] + [f"{name}, {shown_unit(item.unit)}" for name, _ in item.series], rows, "<" + ">" * len(item.series), folded=True))
        return self.figure(item, data, below)


def short(value):
    return float(f"{value:.5g}") if isinstance(value, (int, float)) else None  # a damaged row becomes a gap in the line


def numbers(values):
    return [short(v) for v in values]


def shown_unit(unit):
    return {"us": "µs", "bytes": "B"}.get(unit, unit)


def points(item):
    """Returns the numbers of a chart as a table: a column for each series, a row for each x."""
    xs = sorted({x for s in item.series for x in s.x})
    if not xs or len(xs) > TABLE_POINTS:
        return ""
    values = [dict(zip(s.x, s.y)) for s in item.series]
    rows = [[words.size(int(x)) if item.x_unit == "bytes" else words.rounded(x)] +
            [words.rounded(v[x]) if x in v else "" for v in values] for x in xs]
    head = [item.x_title] + [f"{s.name}" for s in item.series]
    return table(Table("", head, rows, ">" * len(head), folded=True, note=f"{item.y_title}, {shown_unit(item.y_unit)}"))


def table(item):
    head = "".join(f'<th scope="col"{side(item.align, i)}>{escape(str(h))}</th>' for i, h in enumerate(item.head))
    body = "".join("<tr>" + "".join(table_cell(item, i, c) for i, c in enumerate(row)) + "</tr>" for row in item.rows)
    note = f'<p class="note">{escape(item.note)}</p>' if item.note else ""
    title = f"<caption>{escape(item.title)}</caption>" if item.title and not item.folded else ""
    short = " short" if len(item.rows) <= SHORT_TABLE else ""
    text = f'<div class="scroll{short}" tabindex="0" role="region" aria-label="{escape(item.title or "Figures")}"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}'
    return folded(item.title or "Figures", words.plural(len(item.rows), "row"), text) if item.folded else text


def side(align, i):
    return ' class="r"' if i < len(align) and align[i] == ">" else ""


BADGES = {"good": "good", "passed": "good", "PASSED": "good", "pass": "good", "ok": "good", "Pass": "good", "low": "bad", "failed": "bad", "FAILED": "bad",
          "slower": "bad", "BLOCKER": "bad", "faster": "good", "suspicious": "note", "waived": "note", "WAIVED": "note", "note": "note"}


def table_cell(item, i, text):
    text = str(text)
    if text in BADGES and side(item.align, i) == "":
        return f'<td><span class="badge {BADGES[text]}">{escape(text)}</span></td>'
    tag = "th scope=\"row\"" if i == 0 else "td"
    return f"<{tag}{side(item.align, i)}>{escape(text)}</{tag.split()[0]}>"


def folded(title, count, inside):
    return f'<details><summary>{escape(title)} <span class="count">{escape(count)}</span></summary>{inside}</details>'


def matrices(item):
    legend = "".join(f'<span style="--h:{heat(s)}%">{round(100 * s)} %</span>' for s in (0.5, 0.7, 0.9, 1))
    return (f'<p class="legend note"><span class="words">Share of what the link should carry:</span>{legend}<span class="free">not judged</span>'
            '<span class="words">✓ good, ▼ low, ? more than the link can carry</span></p>'
            f'<div class="matrices" style="--wide: {max(15.5, 4.5 + 4.4 * max(len(m.columns) for m in item.items)):.1f}rem">' +
            "".join(matrix(m) for m in item.items) + "</div>")


def matrix(item):
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in item.columns)
    body = ""
    for r in item.rows:
        cells = "".join(heat_cell(item.cells.get((r, c))) for c in item.columns)
        body += f'<tr><th scope="row">{escape(r)}</th>{cells}</tr>'
    note = f'<p class="note">{escape(item.note)}</p>' if item.note else ""
    return (f'<figure class="matrix"><figcaption>{breakable(item.title)}</figcaption><div class="scroll"><table class="heat"><thead><tr><th scope="col">'
            f'{escape(item.unit)}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}</figure>')


def breakable(name):
    """Allows line breaks after underscores, because names of testcases are long."""
    return f"<span>{escape(name).replace('_', '_<wbr>')}</span>"


def heat_cell(cell):
    if cell is None:
        return "<td></td>"
    if cell.value is None:
        return f'<td class="none" title="{escape(cell.remark)}">{escape(cell.text)}</td>'
    mark = f'<small class="{"good" if cell.state == "good" else "bad"}">{STATES.get(cell.state, escape(cell.state))}</small>' if cell.state else ""
    style = ' class="free"' if cell.share is None else f' style="--h:{heat(cell.share)}%"'
    return f'<td{style} title="{escape(cell.remark)}">{escape(cell.text)}{mark}</td>'


def heat(share):
    """Returns the strength of the colour in per cent: 0 at half of the expected value, 100 at the expected value and above."""
    return round(100 * min(1, max(0, (share - 0.5) / 0.5)))


def facts(item):
    lines = "".join(f"<div><dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd></div>" for k, v in item.items if v != "")
    text = f"<dl>{lines}</dl>"
    if item.quiet:
        return folded(item.title, "", text)
    return f'<div class="card"><h3>{escape(item.title)}</h3>{text}</div>'


def notice(item):
    return f'<p class="notice {item.level}"><strong>{LEVEL_WORDS[item.level]}</strong> {escape(item.text)}</p>'


def picture(item):
    said = "".join(f"<li>{escape(line)}</li>" for line in item.words)
    return (f'<figure class="picture"><figcaption>{escape(item.title)}</figcaption><div class="scroll">{item.svg}</div>'
            f"{folded('The same in words', words.plural(len(item.words), 'line'), f'<ul>{said}</ul>')}</figure>")


def log(item):
    return folded(item.title, f"{item.text.count(chr(10))} lines", f'<div class="scroll"><pre>{escape(item.text)}</pre></div>')


def section(page, item):
    summary = "".join(f"<li>{escape(line)}</li>" for line in item.summary)
    summary = f'<ul class="summary">{summary}</ul>' if summary else ""
    state = f' <span class="badge {"bad" if item.state == "failed" else "note"}">{escape(item.state)}</span>' if item.state else ""
    body = "".join(page.block(b) for b in item.blocks)
    return (f'<section id="{escape(item.key)}"><h2>{escape(item.title)}{state}</h2><p class="where">{escape(item.subtitle)}</p>'
            f"{summary}{body}</section>")


def contents(report):
    links = "".join(f'<li><a href="#{escape(s.key)}">{escape(s.title)}</a></li>' for s in report.sections)
    return f'<nav aria-label="Contents"><details open><summary>Contents</summary><ol>{links}</ol></details></nav>' if len(report.sections) > 1 else ""


def render(report, plotly_script):
    """`plotly_script`: the text of plotly.js, which becomes part of the page."""
    page = Page()
    sections = "".join(section(page, s) for s in report.sections)
    summary = "".join(f"<li>{escape(line)}</li>" for line in report.summary)
    machines = "".join(page.block(f) for f in report.facts)
    # Neither `</script` nor `<!--<script`, which would hide the element's real end, may stand in a name.
    data = json.dumps(page.charts, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    # `</script` inside plotly's text would end the element that holds it.
    script = plotly_script.replace("</script", "<\\/script") if page.charts else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escape(report.title)}</title><link rel="icon" href="data:,">
<style>{(HERE / "page.css").read_text(encoding="utf-8")}</style></head>
<body><a class="skip" href="#main">Skip to the results</a>
<header><h1>{escape(report.title)}</h1><button id="theme" type="button" hidden>Dark</button></header>
<main id="main"><ul class="summary">{summary}</ul>{contents(report)}<div class="cards">{machines}</div>{sections}</main>
<noscript><p class="notice note">Charts need JavaScript; every figure is in the tables as well.</p></noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
<script>{(HERE / "page.js").read_text(encoding="utf-8")}</script>
</body></html>
"""
