# SPDX-License-Identifier: Apache-2.0
"""Writes the report as Markdown: sentences, short tables and matrices. Only the HTML page has curves."""

from .model import Bars, Facts, Matrices, Matrix, Notice, Picture, Table
from . import words

LONGEST_TABLE = 24


def escape(text):
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(head, rows, align=""):
    rule = ["---:" if i < len(align) and align[i] == ">" else "---" for i in range(len(head))]
    lines = [head, rule] + rows
    return "\n".join("| " + " | ".join(escape(c) for c in line) + " |" for line in lines) + "\n"


def matrix(item):
    head = [item.unit] + [f"{name}" for name in item.columns]
    rows = []
    for r in item.rows:
        cells = [item.cells.get((r, c)) for c in item.columns]
        rows.append([r] + [(c.text + (f" ({c.state})" if c.state and c.state != "good" else "")) if c else "" for c in cells])
    note = f" ({escape(item.note)})" if item.note else ""
    return f"**{escape(item.title)}**{note}\n\n" + table(head, rows, ">" * len(head))


def block(item):
    if isinstance(item, Notice):
        return f"> {escape(item.text)}\n"
    if isinstance(item, Table) and not item.folded and len(item.rows) <= LONGEST_TABLE:
        title = f"**{escape(item.title)}**\n\n" if item.title else ""
        return title + table(item.head, item.rows, item.align)
    if isinstance(item, Matrix):
        return matrix(item)
    if isinstance(item, Matrices):
        return "\n".join(matrix(m) for m in item.items)
    if isinstance(item, Bars):
        rows = [[category] + [words.rounded(values[i]) for _, values in item.series] for i, category in enumerate(item.categories)]
        return f"**{escape(item.title)}, {escape(item.unit)}**\n\n" + table([""] + [name for name, _ in item.series], rows, "<" + ">" * len(item.series))
    if isinstance(item, Picture):
        return "\n".join(f"- {escape(line)}" for line in item.words) + "\n"
    if isinstance(item, Facts) and not item.quiet:
        return f"**{escape(item.title)}**: " + "; ".join(f"{escape(k)} {escape(v)}" for k, v in item.items if v != "") + "\n"
    return ""


def render(report):
    out = [f"# {escape(report.title)}\n", "\n".join(f"- {escape(line)}" for line in report.summary) + "\n"]
    out += [block(item) for item in report.facts]
    for section in report.sections:
        state = f" ({section.state})" if section.state else ""
        out.append(f"## {escape(section.title)}{state}\n")
        if section.summary:
            out.append("\n".join(f"- {escape(line)}" for line in section.summary) + "\n")
        out += [text for text in map(block, section.blocks) if text]
    return "\n".join(out)
