# SPDX-License-Identifier: Apache-2.0
"""What a report is made of, without saying how it looks: html.py and markdown.py draw the same pieces."""

from dataclasses import dataclass, field


@dataclass
class Series:
    """One line of a chart. `emphasis`: "main", "" or "faint"; `shown` False: listed in the legend, drawn on request."""

    name: str
    x: list
    y: list
    emphasis: str = ""
    shown: bool = True


@dataclass
class Mark:
    """A vertical line in a chart, at a crossover."""

    x: float
    text: str


@dataclass
class Chart:
    """Lines over a number. `x_unit` and `y_unit`: "bytes", "us", "GB/s", "ratio" or any other word."""

    title: str
    series: list
    x_title: str
    y_title: str
    x_unit: str = "bytes"
    y_unit: str = "us"
    x_log: bool = True
    y_log: bool = True
    marks: list = field(default_factory=list)
    level: float | None = None  # a horizontal line
    steps: bool = False  # a histogram's outline
    note: str = ""
    table: bool = True   # figures as a table below, for who cannot see or point


@dataclass
class Bars:
    """Horizontal bars, one group per category, one bar of each series."""

    title: str
    categories: list
    series: list  # of (name, values)
    x_title: str
    unit: str = "us"
    x_log: bool = False
    note: str = ""


@dataclass
class Cell:
    """A cell of a matrix: `text` is read, `share` of what is expected colours it, `state` is its verdict ("good", "low", "suspicious", "")."""

    value: float | None = None
    share: float | None = None
    text: str = ""
    state: str = ""
    remark: str = ""


@dataclass
class Matrix:
    """A link matrix as a heatmap."""

    title: str
    rows: list
    columns: list
    cells: dict  # (row, column) -> Cell
    unit: str
    note: str = ""


@dataclass
class Matrices:
    """Small matrices side by side."""

    items: list


@dataclass
class Table:
    """`align`: one of "<>" for each column."""

    title: str
    head: list
    rows: list
    align: str = ""
    folded: bool = False
    note: str = ""


@dataclass
class Facts:
    """Names and values. `quiet`: fold away."""

    title: str
    items: list
    quiet: bool = False


@dataclass
class Notice:
    """A sentence that a reader must see. `level`: "ok", "note", "bad"."""

    text: str
    level: str = "note"


@dataclass
class Picture:
    """A drawing that is SVG already; `words` says the same for who cannot see it."""

    title: str
    svg: str
    words: list
    note: str = ""


@dataclass
class Log:
    title: str
    text: str


@dataclass
class Section:
    """`key`: the anchor. `summary`: sentences for the top of the page and the Markdown summary."""

    key: str
    title: str
    subtitle: str = ""
    state: str = ""  # "passed", "failed", "simulated"
    blocks: list = field(default_factory=list)
    summary: list = field(default_factory=list)


@dataclass
class Report:
    title: str
    sections: list
    facts: list = field(default_factory=list)
    summary: list = field(default_factory=list)
