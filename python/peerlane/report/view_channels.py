# SPDX-License-Identifier: Apache-2.0
"""Results of DMA channels: `peerlane blocks`, transfers that kernels start, NIXL, and the order of bytes and completion words."""

from . import words
from .curves import series_by
from .model import Chart, Table
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
    """A table for each kind of row, with all fields except the less important quantiles."""
    out = []
    for kind in dict.fromkeys(row.get("kind", "rows") for row in result.rows):
        rows = [row for row in result.rows if row.get("kind", "rows") == kind]
        columns = [name for name in dict.fromkeys(n for row in rows for n in row) if name not in HIDDEN]
        out.append(Table(str(kind).replace("_", " "), [name.replace("_", " ") for name in columns],
                         [[cell(row.get(name)) for name in columns] for row in rows], "<" * len(columns)))
    return out, [f"{words.plural(len(result.rows), 'row')}."]


def blocks(result):
    """Rates of each method by size and count; kernels that run beside lists; short lists that follow long ones."""
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


def kernel_put(result):
    """`peerlane async kernel-put`: the time of one put by size and scope, and the rate of puts by the number of thread blocks."""
    latencies, rates = result.rows_of("latency"), result.rows_of("rate")
    executor = result.parameters.get("carried_out_by", "")
    note = f"Carried out by {'the CPU proxy' if executor == 'proxy' else 'a ' + executor}." if executor else ""
    places = list(dict.fromkeys(row["to"] for row in latencies + rates))
    out: list = []
    for memory in places:
        rows = [row for row in latencies if row["to"] == memory]
        if rows:
            out.append(Chart(f"put_signal until its word is seen, bytes to the {memory}'s memory", series_by(rows, lambda r: r["scope"], y="put_ns_p50"),
                             "size", "time (median)", note=note))
    for memory in places:
        rows = [row for row in rates if row["to"] == memory]
        if rows:
            out += rate_charts(rows, memory, note)
    out.append(Table("All times", ["to", "by a", "size", "put, µs"], [[r["to"], r["scope"], size(r["size_bytes"]), words.microseconds(r["put_ns_p50"])]
                                                                     for r in latencies], "<<>>", folded=True))
    out.append(Table("All rates", ["to", "by a", "size", "blocks", "million puts a second", "GB/s"],
                     [[r["to"], r["scope"], size(r["size_bytes"]), str(r["blocks"]), words.rounded(r["puts_per_s"] / 1e6), words.rounded(r["bandwidth_gb_per_s"])]
                      for r in rates], "<<>>>>", folded=True))
    return out, kernel_put_sentences(latencies, rates)


def rate_charts(rows, memory, note):
    """The rate of the smallest puts by the number of thread blocks, and the bandwidth by size with the largest number that every size has."""
    smallest = min(row["size_bytes"] for row in rows)
    small = [row for row in rows if row["size_bytes"] == smallest]
    out = []
    if len({row["blocks"] for row in small}) > 1:
        out.append(Chart(f"Puts of {size(smallest)} to the {memory}'s memory", series_by(small, lambda r: r["scope"], x="blocks", y="puts_per_s", scale=1e-6),
                         "blocks that post", "puts", x_unit="blocks", y_unit="million/s", note=note))
    shared = set.intersection(*({r["blocks"] for r in rows if r["size_bytes"] == s} for s in {r["size_bytes"] for r in rows}))
    if shared:
        most = max(shared)
        out.append(Chart(f"Bytes of puts by {words.plural(most, 'block')} to the {memory}'s memory",
                         series_by([r for r in rows if r["blocks"] == most], lambda r: r["scope"], y="bandwidth_gb_per_s", scale=1),
                         "size", "bandwidth", y_unit="GB/s", note=note))
    return out


def kernel_put_sentences(latencies, rates):
    out = []
    if latencies:
        smallest = min(row["size_bytes"] for row in latencies)
        one = [row for row in latencies if row["size_bytes"] == smallest and row["scope"] == "thread"]
        if one:
            out.append(f"put_signal of {size(smallest)} by a thread, until its word is seen: " +
                       ", ".join(f"{words.duration(row['put_ns_p50'])} to the {row['to']}" for row in one) + ".")
    if rates:
        quick, wide = max(rates, key=lambda r: r["puts_per_s"]), max(rates, key=lambda r: r["bandwidth_gb_per_s"])
        out.append(f"The most: {words.rounded(quick['puts_per_s'] / 1e6)} million puts of {size(quick['size_bytes'])} a second to the {quick['to']}, and "
                   f"{words.rounded(wide['bandwidth_gb_per_s'])} GB/s by puts of {size(wide['size_bytes'])} to the {wide['to']}.")
    return out
