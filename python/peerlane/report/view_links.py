# SPDX-License-Identifier: Apache-2.0
"""`peerlane bandwidth`: link matrices with their verdicts, curves of a size sweep, what was waived and why."""

from . import words
from .curves import histogram, latency_chart, series_by
from .model import Cell, Chart, Matrices, Matrix, Notice, Table
from .view_copy import groups

SWEEP_SIZES = 4  # a testcase with at least this many sizes is drawn as curves instead of matrices
SPREAD_SAMPLES = 8

STATE_WORDS = {"good": "good", "low": "low", "suspicious": "suspicious", "slow": "slower than the baseline"}


def blocks(result):
    testcases, cells = result.rows_of("testcase"), result.rows_of("cell")
    out, summary = verdicts(testcases, cells)
    by_case = groups(cells, lambda r: r["testcase"])
    matrices, sweeps = [], {}
    for case, rows in by_case.items():
        sizes = {r["bytes"] for r in rows}
        if len(sizes) >= SWEEP_SIZES:
            sweeps[case] = rows
        else:
            matrices += case_matrices(case, rows)
    out += sweep_charts(sweeps)
    if matrices:
        out.append(Matrices(matrices))
    out += spread(result, cells)
    out.append(testcase_table(testcases))
    return out, summary


def verdicts(testcases, cells):
    """The findings: each value that is not as expected, with its reason."""
    out: list = []
    for row in cells:
        if row["state"] == "mismatch":
            out.append(Notice(f"{row['testcase']}, {ends(row)}: {row['mismatched_bytes']} bytes arrived wrong", "bad"))
        elif row.get("baseline_verdict") == "slow":
            out.append(Notice(f"{row['testcase']}, {ends(row)}, {words.size(row['bytes'])}: {words.rounded(row['baseline_ratio'])} of the baseline",
                              "bad"))
    judged = [r for r in cells if r["verdict"] is not None]
    bad = [r for r in judged if r["verdict"] != "good"]
    if bad:
        out.append(Table("Links that carry less or more than they should", ["testcase", "from → to", "size", "measured", "expected", "verdict", "reason"],
                         [[r["testcase"] + (f" ({r['part']})" if r["part"] else ""), ends(r), words.size(r["bytes"]),
                           f"{words.rounded(r['value'])} {r['unit']}", words.rounded(r["expected"]), r["verdict"],
                           r["verdict_reason"] or ""] for r in bad], "<<>>><<", folded=len(bad) > 12))
    states = groups(testcases, lambda r: r["state"])
    summary = ["Testcases: " + ", ".join(f"{len(rows)} {state}" for state, rows in states.items()) + "."]
    if judged:
        summary.append(f"Judged links: {len(judged) - len(bad)} of {len(judged)} good" +
                       (f"; {len(bad)} not, the worst {worst(bad)}." if bad else "."))
    return out, summary


def worst(rows):
    row = min(rows, key=lambda r: r["verdict_ratio"] if r.get("verdict_ratio") else 1)
    return f"{row['testcase']} {ends(row)} at {words.size(row['bytes'])}: {words.rounded(row['value'])} of {words.rounded(row['expected'])} {row['unit']}"


def ends(row):
    return f"{row['source']} → {row['destination']}" if row.get("source") and row.get("destination") else f"{row['row']}, {row['column']}"


def case_matrices(case, rows):
    out = []
    for (part, size), some in groups(rows, lambda r: (r["part"], r["bytes"] if r["state"] == "measured" else None)).items():
        if size is None:
            continue
        missing = [r for r in rows if r["state"] != "measured" and r["part"] == part]
        cells = {(r["row"], r["column"]): Cell(text="–", remark=r["why"]) for r in missing}
        cells |= {(r["row"], r["column"]): cell(r) for r in some}
        rows_of, columns_of = axis_names(rows)
        named = {(rows_of(r), columns_of(c)): value for (r, c), value in cells.items()}
        out.append(Matrix(case + (f", {part}" if part else ""), [rows_of(r) for r in ordered(r for r, _ in cells)],
                          [columns_of(c) for c in ordered(c for _, c in cells)], named, some[0]["unit"], note=caption(some[0], size)))
    return out


def axis_names(rows):
    """Returns the names of rows and columns. If host memory takes part, rows are CPUs and columns are GPUs."""
    host = any("H" in (r["source"][:1], r["destination"][:1]) for r in rows if r["state"] != "not_applicable")
    several = len({r["row"] for r in rows}) > 1
    first = "CPU {}" if host else "GPU {}" if several else "{}"
    numbered = lambda pattern: lambda name: pattern.format(name) if name.isdigit() else name  # noqa: E731
    return (numbered(first) if host or several else lambda name: "" if name.isdigit() else name), numbered("GPU {}")


def ordered(names):
    return sorted(dict.fromkeys(names), key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else 0, n))


def caption(row, size):
    parts = [words.size(size)] if size else []
    if row.get("expected") is not None:
        parts.append(f"expected {words.rounded(row['expected'])} {row['unit']}")
    return ", ".join(parts)


def cell(row):
    remark = f"{row['sample_count']} samples, {words.rounded(row['min'])} to {words.rounded(row['max'])}"
    if row.get("expected") is not None:
        remark += f", expected {words.rounded(row['expected'])}"
    state = row["verdict"] or ""
    if row["state"] != "measured":
        state = "low"
    if row.get("baseline_verdict") == "slow":
        state = "slow"
    if row.get("verdict_reason"):
        remark += f": {row['verdict_reason']}"
    text = words.rounded(row["value"]) if row["value"] is not None else row["state"]
    return Cell(row["value"], share_of_expected(row), text, state, remark)


def share_of_expected(row):
    """Returns measured by expected value, inverted for times: 1 is as expected, less is worse. None: nothing is expected."""
    if not row.get("expected") or not row["value"]:
        return None
    return row["expected"] / row["value"] if row["unit"] == "ns" else row["value"] / row["expected"]


def sweep_charts(sweeps):
    out = []
    of_unit = groups([r for rows in sweeps.values() for r in rows if r["state"] == "measured"], lambda r: r["unit"])
    for unit, rows in of_unit.items():
        name = lambda r: f"{r['testcase']}, {ends(r)}" + (f", {r['part']}" if r["part"] else "")  # noqa: E731
        series = series_by(rows, name, x="bytes", y="value", scale=1e-3 if unit == "ns" else 1)
        if unit == "ns":
            out.append(latency_chart("Times by size", series)[0])
        else:
            out.append(Chart("Bandwidth by size", series, "size", "bandwidth (median)", y_unit="GB/s"))
    return out


def spread(result, cells):
    """Histograms of the series that have enough samples."""
    named = [(f"{r['testcase']}, {ends(r)}", result.samples_of(r.get("series")) or []) for r in cells if r["unit"] == "GB/s"]
    named = [(name, values) for name, values in named if len(values) >= SPREAD_SAMPLES][:8]
    if not named:
        return []
    return [histogram("Spread of the samples", named, unit="GB/s")]


def testcase_table(rows):
    return Table("Testcases", ["testcase", "result", "seconds", "reason"],
                 [[r["testcase"], r["state"], words.rounded(r["seconds"]), r["reason"]] for r in rows], "<<><", folded=True)
