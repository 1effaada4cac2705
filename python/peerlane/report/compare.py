# SPDX-License-Identifier: Apache-2.0
"""Compares runs: pairs the rows that measured the same thing, with their ratio and the significance of the difference."""

from dataclasses import dataclass

from . import words
from .model import Chart, Section, Series, Table
from .stats import holm, mann_whitney

# Fields that identify what a row measured, as opposed to results.
IDENTITY = ("kind", "benchmark", "testcase", "part", "row", "column", "direction", "memory", "side", "method", "contender", "test", "call",
            "cached", "via", "send_memory", "receive_memory", "window", "pairs", "arm", "mode", "kernel_asked_ns", "n", "grid", "operation",
            "word", "wait", "engine", "kernel", "pieces", "piece_bytes", "writes", "flush_every", "list_operations", "data_bytes",
            "device_alignment_bytes")
SIZES = ("size_bytes", "bytes")
# (field, lower is better): the first field that a row has is compared
MEASURES = (("latency_ns_p50", True), ("value", None), ("iteration_ns_p50", True), ("step_ns_p50", True), ("gpu_ns_p50", True),
            ("cost_ns", True), ("bandwidth_mb_per_s", False), ("time_per_message_ns", True), ("write_ns_p50", True))
LEVEL = 0.05
SMALLEST_CHANGE = 0.02

METHOD = (f"Test: two-sided Mann-Whitney U on the raw samples (exact up to 12 on each side without equal values, else normal approximation "
          f"with tie correction), p corrected by Holm over the rows of this comparison; \"slower\" and \"faster\" need p < {LEVEL} and medians "
          f"more than {SMALLEST_CHANGE:.0%} apart. Samples of one run are not independent of each other, so this tells runs apart, "
          f"not causes; repeat runs before believing small differences.")


@dataclass
class Line:
    name: str
    size: float
    base: float
    new: float
    lower_is_better: bool
    p: float | None = None
    share: float | None = None
    corrected: float | None = None

    @property
    def ratio(self):
        """Above 1: the new run is slower, for times as well as for rates."""
        return self.new / self.base if self.lower_is_better else self.base / self.new

    @property
    def verdict(self):
        if self.p is None or self.corrected is None:
            return "not tested"
        if self.corrected >= LEVEL or abs(self.ratio - 1) <= SMALLEST_CHANGE:
            return "no difference shown"
        return "slower" if self.ratio > 1 else "faster"


def identity(row):
    scalar = (str, int, float, bool)
    return tuple((k, row[k]) for k in IDENTITY if isinstance(row.get(k), scalar)), next((row[s] for s in SIZES if is_number(row.get(s))), None)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def measure(row):
    """Returns (value, lower is better), or None if the row has no known measure."""
    for field, low in MEASURES:
        if is_number(row.get(field)) and row[field] > 0:
            return row[field], (row.get("unit") == "ns" if low is None else low)
    return None


def measured_rows(result):
    return {identity(row): row for row in result.rows if measure(row) is not None and row.get("kind") != "envelope"}


def command(result):
    """Returns the command line without the path of the program and without file names, to match runs of the same command."""
    out, skip = [], False
    for word in map(str, result.command_line[1:]):
        if skip or word.startswith("--json="):
            skip = False
        elif word == "--json":
            skip = True
        else:
            out.append(word)
    return tuple(out)


def pairs(results):
    """Returns [(base, new)]: files of the same command, each paired with the first of them. Two files of one tool are always paired."""
    if len(results) == 2 and results[0].tool == results[1].tool:
        return [tuple(results)]
    groups: dict = {}
    for result in results:
        groups.setdefault((result.tool, command(result)), []).append(result)
    return [(group[0], new) for group in groups.values() for new in group[1:]]


def compare(base, new):
    old_rows, new_rows = measured_rows(base), measured_rows(new)
    lines = []
    for key in (k for k in old_rows if k in new_rows):
        (value, low), (now, _) = measure(old_rows[key]), measure(new_rows[key])
        line = Line(name_of(key[0]), key[1], value, now, low)
        first, second = base.samples_of(old_rows[key].get("series")), new.samples_of(new_rows[key].get("series"))
        if first and second and old_rows[key].get("series"):
            line.p, line.share = mann_whitney(first, second)
        lines.append(line)
    tested = [line for line in lines if line.p is not None]
    for line, corrected in zip(tested, holm([line.p for line in tested])):
        line.corrected = corrected
    return lines


def name_of(pairs_of_row):
    skip = {"kind"} | {k for k, v in pairs_of_row if v in ("", False)}
    plain = {"testcase", "part", "direction", "memory", "side", "method", "contender", "test", "call", "via", "arm", "mode", "operation", "benchmark",
             "engine", "kernel", "writes", "word", "wait"}
    points = dict(pairs_of_row)
    if "row" in points and "column" in points:
        pairs_of_row = [(k, v) for k, v in pairs_of_row if k not in ("row", "column")] + [("cell", f"{points['row']}, {points['column']}")]
    words_of = [str(v) if k in plain else f"{k.replace('_', ' ')} {v}" for k, v in pairs_of_row if k not in skip]
    return ", ".join(words_of) or "measurement"


def sections(results):
    out = []
    for base, new in pairs(results):
        lines = compare(base, new)
        if lines:
            out.append(section(base, new, lines))
    return out


def same_machine(base, new):
    return all(base.machine.get(k) == new.machine.get(k) for k in ("gpu_name", "cpu_model", "cpu_count", "driver_version"))


def section(base, new, lines):
    title = f"{new.label} against {base.label}"
    out = Section("compare-" + "-".join((base.label + "-" + new.label).lower().replace("/", "-").replace("_", "-").split()), title,
                  "run to run" if same_machine(base, new) else "two machines")
    count: dict = {}
    for line in lines:
        count[line.verdict] = count.get(line.verdict, 0) + 1
    ratios = sorted(line.ratio for line in lines)
    out.summary.append(f"{title}: {words.plural(len(lines), 'row')} compared: " +
                       ", ".join(f"{number} {word}" for word, number in sorted(count.items())) +
                       f"; median ratio {words.rounded(ratios[len(ratios) // 2])} (above 1: the later file is slower).")
    chart = ratio_chart(lines)
    if chart:
        out.blocks.append(chart)
    out.blocks.append(table(lines))
    return out


def ratio_chart(lines):
    series: dict = {}
    for line in lines:
        if line.size:
            series.setdefault(line.name, []).append((line.size, line.ratio))
    many = [Series(name, [x for x, _ in sorted(points)], [y for _, y in sorted(points)]) for name, points in series.items() if len(points) >= 3]
    many = sorted(many, key=lambda s: -len(s.x))[:8]
    if not many:
        return None
    return Chart("Ratio by size", many, "size", "time, new / base", y_unit="ratio", level=1.0, table=False,
                 note="Above the line: the later file is slower." + (" The eight longest series." if len(series) > 8 else ""))


def table(lines, limit=300):
    strongest = sorted(lines, key=lambda line: (line.verdict not in ("slower", "faster"), -abs(line.ratio - 1)))
    rows = [[line.name, words.size(line.size) if line.size else "", words.rounded(line.base, 4), words.rounded(line.new, 4),
             words.rounded(line.ratio), p_words(line.corrected), "–" if line.share is None else f"{100 * line.share:.0f} %", line.verdict]
            for line in strongest[:limit]]
    note = METHOD
    if any(line.p is None for line in lines):
        note += " \"Not tested\": a file holds no raw samples of that row."
    if len(lines) > limit:
        note += f" The {limit} largest differences of {len(lines)}."
    return Table("Rows", ["what", "size", "base", "new", "ratio", "p (Holm)", "new above base", "verdict"], rows, "<>>>>>><", folded=len(rows) > 15,
                 note=note)


def p_words(p):
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
