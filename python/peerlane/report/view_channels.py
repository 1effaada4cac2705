# SPDX-License-Identifier: Apache-2.0
"""What DMA channels carry: `peerlane blocks`, transfers that kernels start, NIXL, and the order of bytes and completion words."""

from . import words
from .model import Table
from .view_copy import direction

HIDDEN = ("kind", "latency_ns_min", "latency_ns_max", "latency_ns_mean", "latency_ns_p90", "latency_ns_stddev", "sample_count")


def size(count):
    for unit, bytes_of in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_of and count % bytes_of == 0:
            return f"{count // bytes_of} {unit}"
    return f"{count} B"


def cell(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.rounded(value) if isinstance(value, float) else "" if value is None else str(value)


def by_kind(result):
    """A table for each kind of row, with all that its rows say but the lesser quantiles."""
    out = []
    for kind in dict.fromkeys(row["kind"] for row in result.rows):
        rows = result.rows_of(kind)
        columns = [name for name in dict.fromkeys(n for row in rows for n in row) if name not in HIDDEN]
        out.append(Table(str(kind).replace("_", " "), [name.replace("_", " ") for name in columns],
                         [[cell(row.get(name)) for name in columns] for row in rows], "<" * len(columns)))
    return out, [f"{words.plural(len(result.rows), 'row')}."]


def blocks(result):
    """Rates of each contender by size and count; kernels beside lists; short lists behind long ones."""
    out, summary = [], []
    for way in dict.fromkeys(row["direction"] for row in result.rows_of("blocks")):
        rows = [row for row in result.rows_of("blocks") if row["direction"] == way and "bandwidth_gb_per_s" in row]
        methods = list(dict.fromkeys(row["method"] for row in rows))
        rate = {(row["block_bytes"], row["count"], row["method"]): row["bandwidth_gb_per_s"] for row in rows}
        points = list(dict.fromkeys((row["block_bytes"], row["count"]) for row in rows))
        out.append(Table(f"Blocks, {direction(way)} (median), GB/s", ["block", "count", *methods],
                         [[size(b), f"{n:,}", *(words.rounded(rate[b, n, m]) if (b, n, m) in rate else "" for m in methods)] for b, n in points],
                         ">" * (2 + len(methods))))
        ours = [p for p in points if (*p, "peerlane") in rate]
        best = sum(rate[(*p, "peerlane")] >= 0.98 * max(rate.get((*p, m), 0) for m in methods) for p in ours)
        summary.append(f"{direction(way)}: Peerlane is the fastest, or within 2 % of it, at {best} of {len(ours)} points.")
    beside = [[r["kernels"], direction(r["direction"]), size(r["block_bytes"]), r["method"], words.rounded(r["loss_percent"]),
               words.rounded(r["bandwidth_gb_per_s"])] for r in result.rows_of("blocks_beside")]
    if beside:
        out.append(Table("Kernels beside lists", ["kernels", "direction", "block", "by", "loss, %", "GB/s"], beside, "<<><>>"))
    urgent = [[direction(r["direction"]), f"{r['count']:,}", size(r["block_bytes"]), r["condition"], words.duration(r["latency_ns_p50"]),
               words.duration(r["latency_ns_p99"])] for r in result.rows_of("urgent")]
    if urgent:
        out.append(Table("Short lists", ["direction", "blocks", "bytes each", "condition", "p50", "p99"], urgent, "<>><>>"))
    return out, summary
