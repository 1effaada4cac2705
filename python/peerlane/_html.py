# SPDX-License-Identifier: Apache-2.0
"""HTML tables for the display of objects in notebooks."""

import html
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["rows", "table"]


def rows(title: str, facts: Mapping[str, object]) -> str:
    """Returns a table with a name and a value in each row. All texts are escaped."""
    cells = "".join(f"<tr><th style='text-align:left'>{html.escape(str(name))}</th><td style='text-align:left'>{html.escape(str(value))}</td></tr>"
                    for name, value in facts.items())
    return f"<table><caption>{html.escape(title)}</caption>{cells}</table>"


def table(title: str, columns: Sequence[str], lines: Iterable[Mapping[str, object]]) -> str:
    """Returns a table with a row for each of `lines` and a column for each of `columns`. All texts are escaped."""
    head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td style='text-align:left'>{html.escape(str(line.get(name, '')))}</td>" for name in columns) + "</tr>"
                   for line in lines)
    return f"<table><caption>{html.escape(title)}</caption><tr>{head}</tr>{body}</table>"
