# SPDX-License-Identifier: Apache-2.0
"""`copylat`, `copybw`, `apiperf`, `pplat`: the benchmarks of mappings; `python_cost`: the same from Python."""

from . import words
from .curves import QUANTILE_ALIGN, QUANTILE_HEAD, crossover_sentence, histogram, latency_chart, quantile_table_rows, series_by
from .model import Bars, Chart, Table
from .view_copy import groups

DIRECTIONS = {"read": "CPU reads GPU memory", "write": "CPU writes GPU memory"}
TYPICAL_SIZES = (8, 64, 4096)


def copylat(result):
    rows = result.rows
    if rows and "device_alignment_bytes" in rows[0]:
        return alignments(rows)
    if rows and "message_rate_million_per_s" in rows[0]:
        return batch(rows)
    out, summary = [], []
    key = "contender" if rows and "contender" in rows[0] else "test"
    for direction, some in groups(rows, lambda r: r.get("direction", "")).items():
        title = DIRECTIONS.get(direction, direction or "copies through a mapping")
        series = series_by(some, lambda r: r.get(key, "?"))
        for one in series:
            one.emphasis = "main" if one.name == "peerlane" else ""
        chart, found = latency_chart(title, series)
        out.append(chart)
        out += distributions(result, some, title, key)
        out.append(quantiles(some, lambda r: f"{r.get(key, '?')}, {words.size(r['size_bytes'])}"))
        if found:
            summary.append(f"{title}: {crossover_sentence(found)}.")
        small = next((r for r in some if r.get(key) == "peerlane" and r["size_bytes"] == 8), None)
        if small:
            summary.append(f"{title}, 8 B: {words.duration(small['latency_ns_p50'])} (p99 {words.duration(small['latency_ns_p99'])}).")
    return out, summary


def distributions(result, rows, title, key):
    out = []
    sizes = {r["size_bytes"] for r in rows}
    for size in (s for s in TYPICAL_SIZES if s in sizes):
        named = [(r.get(key, "?"), [v / 1000 for v in result.samples_of(r.get("series")) or []]) for r in rows if r["size_bytes"] == size]
        named = [(name, values) for name, values in named if len(values) >= 20]
        if named:
            out.append(histogram(f"Distribution, {words.size(size)}: {title}", named))
    return out


def quantiles(rows, name_of, title=""):
    return Table(title, ["what"] + QUANTILE_HEAD, list(quantile_table_rows(rows, name_of)), "<" + QUANTILE_ALIGN, folded=True,
                 note="Times in µs.")


def alignments(rows):
    out, summary = [], []
    for direction, some in groups(rows, lambda r: r["direction"]).items():
        for size, at_size in groups(some, lambda r: r["size_bytes"]).items():
            series = series_by(at_size, lambda r: r["contender"], x="device_alignment_bytes")
            for one in series:
                one.emphasis = "main" if one.name == "peerlane" else ""
            worst = {s.name: max(s.y) for s in series}
            out.append(Chart(f"{DIRECTIONS.get(direction, direction)}: {words.size(size)} at each alignment", series, "device address modulo 64",
                             "time (median)", x_unit="B", x_log=False, y_log=False, table=False))
            if "peerlane" in worst and size >= 256:
                others = ", ".join(f"{name} {words.rounded(value)} µs" for name, value in worst.items() if name != "peerlane")
                summary.append(f"{words.size(size)}, worst of all alignments: {words.rounded(worst['peerlane'])} µs ({others}).")
    return out, summary


def batch(rows):
    names = [r["writes"] for r in rows]
    chart = Bars(f"Messages of {words.size(rows[0]['size_bytes'])} written by one core", names,
                 [("rate", [r["message_rate_million_per_s"] for r in rows])], "million messages a second", unit="M/s")
    table = Table("", ["writes", "million a second", "ns each", "each repeat, ns"],
                  [[r["writes"], words.rounded(r["message_rate_million_per_s"]), words.rounded(r["time_per_message_ns"]),
                    ", ".join(words.rounded(v) for v in r.get("time_per_message_ns_repeats", []))] for r in rows], "<>><")
    fastest = max(rows, key=lambda r: r["message_rate_million_per_s"])
    return [chart, table], [f"{words.rounded(fastest['message_rate_million_per_s'])} million messages of "
                            f"{words.size(fastest['size_bytes'])} a second by one core ({fastest['writes']})."]


def copybw(result):
    rows = result.rows
    return [Table("Bandwidth of CPU copies through a mapping", ["direction", "size", "offset", "GB/s", "MiB/s"],
                  [[DIRECTIONS.get(r["direction"], r["direction"]), words.size(r["size_bytes"]), words.size(r["offset_bytes"]),
                    words.rounded(r["bandwidth_mb_per_s"] / 1000), words.rounded(r["bandwidth_mib_per_s"], 5)] for r in rows], "<>>>>")], \
           [", ".join(f"{DIRECTIONS.get(r['direction'], r['direction'])}: {words.rounded(r['bandwidth_mb_per_s'] / 1000)} GB/s"
                      for r in rows) + "."]


def apiperf(result):
    rows = result.rows
    series = series_by(rows, lambda r: r["call"])
    title = "Cost of a call" + (", the allocation mapped already" if rows and rows[0].get("cached") else "")
    chart = Chart(title, series, "size of the mapping", "time (median)")
    size = 65536
    named = [(r["call"], [v / 1000 for v in result.samples_of(r.get("series")) or []]) for r in rows if r["size_bytes"] == size]
    named = [(n, v) for n, v in named if len(v) >= 20 and min(v) > 0]
    out = [chart]
    if named:
        out.append(histogram(f"Distribution for {words.size(size)}", named))
    out.append(quantiles(rows, lambda r: f"{r['call']}, {words.size(r['size_bytes'])}"))
    typical = {r["call"]: r["latency_ns_p50"] for r in rows if r["size_bytes"] == size}
    return out, ["For 64 KiB: " + ", ".join(f"{call} {words.duration(ns)}" for call, ns in typical.items()) + "."] if typical else []


def pplat(result):
    out, summary = [], []
    for row in result.rows:
        values = [v / 1000 for v in result.samples_of(row.get("series")) or []]
        name = f"{row['mode'].replace('_', ' ')}, {words.size(row['data_bytes'])} of data"
        if len(values) >= 20:
            out.append(histogram(f"Round trip between CPU and kernel: {name}", [("round trip", values)]))
        out.append(Table("", ["what"] + QUANTILE_HEAD + ["GPU waits on", "CPU waits on", "mismatches"],
                         [line + [row["to_gpu_flag"], row["to_cpu_flag"], str(row["mismatched_words"])]
                          for line in quantile_table_rows([row], lambda r: name)], "<" + QUANTILE_ALIGN + "<<>", note="Times in µs."))
        summary.append(f"Round trip, {name}: {words.duration(row['latency_ns_p50'])} (p99 {words.duration(row['latency_ns_p99'])}).")
    return out, summary


def python_cost(result):
    rows = result.rows
    bars = Bars("A call (median)", [r["call"] for r in rows], [("us", [r["latency_ns_p50"] / 1e3 for r in rows])], "time", x_log=True)
    table = Table("Calls", ["call", "median us", "least us", "calls"],
                  [[r["call"], words.rounded(r["latency_ns_p50"] / 1e3, 4), words.rounded(r["latency_ns_min"] / 1e3, 4), str(r["sample_count"])]
                   for r in rows], "<>>>")
    return [bars, table], [f"{r['call']}: {words.duration(r['latency_ns_p50'])}." for r in rows[:8]]
