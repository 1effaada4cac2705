# SPDX-License-Identifier: Apache-2.0
"""The parts of a report, independent of the output format. html.py and markdown.py write them."""

from dataclasses import dataclass, field


@dataclass
class Series:
    """One line of a chart. `emphasis`: "main", "" or "faint". `shown` False: the line is only in the legend until the reader clicks it."""

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
    """A line chart. `x_unit` and `y_unit`: "bytes", "us", "GB/s", "ratio" or any other text."""

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
    table: bool = True   # numbers as a table below, for readers who cannot see the chart or use a mouse


@dataclass
class Bars:
    """Horizontal bars: one group for each category, one bar for each series."""

    title: str
    categories: list
    series: list  # of (name, values)
    x_title: str
    unit: str = "us"
    x_log: bool = False
    note: str = ""


@dataclass
class Cell:
    """A cell of a matrix. `text`: its content. `share`: measured by expected value, for the colour. `state`: "good", "low", "suspicious" or ""."""

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
    """Names and values. `quiet`: collapsed until the reader opens it."""

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
    """An SVG drawing. `words`: the same content as text, for readers who cannot see it."""

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
