# SPDX-License-Identifier: Apache-2.0
"""`peerlane p2p` and `peerlane async`: messages and streams (puts that kernels start: view_channels.py)."""

from . import words
from .curves import CROSSOVER_NOTE, QUANTILE_ALIGN, QUANTILE_HEAD, crossover_sentence, crossovers, histogram, latency_chart
from .curves import marks_of, quantile_table_rows, series_by
from .model import Bars, Chart, Table
from .view_channels import kernel_put
from .view_copy import groups

BENCHMARKS = {"latency": "One-way time of a message", "multi_lat": "One-way time of a message, several pairs", "bw": "Bandwidth of a window",
              "bibw": "Bandwidth both ways", "mbw_mr": "Bandwidth and message rate of several pairs"}
MEMORY = {"H": "host", "D": "GPU", "MD": "managed (GPU)", "MH": "managed (host)"}
OURS = ("ours", "peer", "peer-kernel")


def emphasise(series):
    for one in series:
        one.emphasis = "main" if one.name in OURS else ""
    return series


def p2p(result):
    out, summary = [], []
    key = lambda r: (r["benchmark"], r["send_memory"], r["receive_memory"])  # noqa: E731
    for (benchmark, sender, receiver), rows in groups(result.rows, key).items():
        title = f"{BENCHMARKS.get(benchmark, benchmark)}, {MEMORY.get(sender, sender)} to {MEMORY.get(receiver, receiver)}"
        if benchmark in ("latency", "multi_lat"):
            series = emphasise(series_by(rows, lambda r: r["via"]))
            chart, found = latency_chart(title, series)
        else:
            series = emphasise(series_by(rows, lambda r: r["via"], y="bandwidth_mb_per_s", scale=1e-3))
            found = crossovers(series, low_is_good=False)
            chart = Chart(title, series, "size", "bandwidth (median batch)", y_unit="GB/s", marks=marks_of(found),
                          note=CROSSOVER_NOTE if found else "")
        out.append(chart)
        out += distribution(result, rows)
        out.append(details(rows))
        summary += sentences(title, rows, found)
    return out, summary


def distribution(result, rows):
    sizes = sorted({r["size_bytes"] for r in rows})
    size = 8 if 8 in sizes else sizes[0]
    one_way = rows[0]["benchmark"] in ("latency", "multi_lat")
    scale = 1 / 2000 if one_way else 1 / 1000  # samples of a latency are round trips
    named = [(r["via"], [v * scale for v in result.samples_of(r.get("series")) or []]) for r in rows if r["size_bytes"] == size]
    named = [(name, values) for name, values in named if len(values) >= 20]
    measured = "a message, one way" if one_way else f"a window of {rows[0]['window']}"
    return [histogram(f"Distribution of the time of {measured}: {words.size(size)}", named)] if named else []


def details(rows):
    checked = any("wrong_bytes" in r for r in rows)
    rate = any("bandwidth_mb_per_s" in r for r in rows)
    head = ["via", "size"] + (["GB/s"] if rate else []) + QUANTILE_HEAD + (["wrong bytes", "check"] if checked else [])
    lines = [[r["via"], words.size(r["size_bytes"])] + ([words.rounded(r["bandwidth_mb_per_s"] / 1000)] if rate else []) +
             line[1:] + ([str(r.get("wrong_bytes", "–")), r.get("validation", "–")] if checked else [])
             for r, line in zip(rows, quantile_table_rows(rows, lambda r: r["via"]))]
    return Table("", head, lines, "<>" + (">" if rate else "") + QUANTILE_ALIGN + ("><" if checked else ""), folded=True,
                 note="Times in µs" + (", of a whole window." if rate else "."))


def sentences(title, rows, found):
    out = []
    wrong = [r for r in rows if r.get("wrong_bytes")]
    if any("wrong_bytes" in r for r in rows):
        out.append(f"{title}: {len(rows) - len(wrong)} of {len(rows)} sizes checked without a wrong byte.")
    at8 = {r["via"]: r["latency_ns_p50"] for r in rows if r["size_bytes"] == 8 and r["window"] == 1}
    if at8:
        out.append(f"{title}, 8 B: " + ", ".join(f"{library} {words.duration(ns)}" for library, ns in at8.items()) + ".")
    if found:
        out.append(f"{title}: {crossover_sentence(found)}.")
    return out


# ---- async -----------------------------------------------------------------------------------------------------------


def streams(result):
    rows = result.rows
    first = rows[0] if rows else {}
    if "iteration_ns_p50" in first:
        return pingpong(rows)
    if "step_ns_p50" in first:
        return halos(rows, "step", "the stencil", "Stencil")
    if "cycle_ns_p50" in first:
        return halos(rows, "cycle", "multigrid", "Multigrid")
    if "put_ns_p50" in first:
        return kernel_put(result)
    if "gpu_ns_p50" in first:
        return cost(rows)
    if "free_ns_p50" in first:
        return stuck(rows)
    if "finished_while_stopped" in first:
        return stopped(rows)
    if result.rows_of("poke"):
        return poke(result)
    return [], []


def arm(row):
    return row["arm"] if row.get("mode", "performance") == "performance" else f"{row['arm']}, {row['mode']}"


def kernel_words(ns):
    return "kernel that only computes" if ns == 0 else f"kernel busy for {words.duration(ns)}"


def pingpong(rows):
    place = lambda r: (f"{words.size(r['size_bytes'])}, " if len({x['size_bytes'] for x in rows}) > 1 else "") + \
        kernel_words(r["kernel_asked_ns"])  # noqa: E731
    categories, arms = list(dict.fromkeys(map(place, rows))), list(dict.fromkeys(map(arm, rows)))
    row_of = {(place(r), arm(r)): r for r in rows}
    pick = lambda field, scale: [(a, [row_of[c, a][field] * scale if (c, a) in row_of else None for c in categories]) for a in arms]  # noqa: E731
    out = [Bars("Round trip with a kernel at each end (median)", categories, pick("iteration_ns_p50", 1e-3), "time of a round trip"),
           Bars("CPU that it takes (median)", categories, pick("cpu_busy_percent_p50", 1), "of one core", unit="%"),
           Table("All rows", ["case", "arm", "round trip, µs", "against first", "CPU, %", "to enqueue, µs", "sleeps a second"],
                 [[place(r), arm(r), words.microseconds(r["iteration_ns_p50"]), words.rounded(r["ratio_to_first"]),
                   words.rounded(r["cpu_busy_percent_p50"]), words.microseconds(r["enqueue_ns_p50"]),
                   words.rounded(r["sleeps_per_s_p50"])] for r in rows], "<<>>>>>", folded=True)]
    case = categories[0]
    return out, [f"Round trip, {case}: " + ", ".join(f"{a} {words.duration(row_of[case, a]['iteration_ns_p50'])}" for a in arms
                                                    if (case, a) in row_of) + "."]


def halos(rows, unit, work, title):
    """stencil and multigrid. `unit`: "step" or "cycle", as the rows name it."""
    took = f"{unit}_ns_p50"
    series = emphasise(series_by(rows, lambda r: r["arm"], x="n", y=took))
    out: list = []
    if max(len(s.x) for s in series) > 1:
        out.append(Chart(f"Time of a {unit} of {work}", series, "edge of the grid, points", "time (median)", x_unit="points"))
    else:
        out.append(Bars(f"Time of a {unit} of {work}", [f"{rows[0]['n']}²"], [(s.name, s.y) for s in series], "time (median)"))
    out.append(Table("All rows", ["arm", "n", "ranks", f"{unit}, µs", "against first", "kernel, µs", "CPU, %", f"{unit}s, all checked"],
                     [[r["arm"], str(r["n"]), r["grid"], words.microseconds(r[took]), words.rounded(r["ratio_to_first"]),
                       words.microseconds(r["kernel_ns"]), words.rounded(r["cpu_busy_percent_p50"]),
                       f"{r[unit + 's']}" + ("" if r[unit + "s"] == r[f"{unit}s_checked_by_cpu"] else f", {r[unit + 's_checked_by_cpu']} checked")]
                      for r in rows], "<><>>>>>", folded=True))
    small = rows[0]["n"]
    return out, [f"{title} {small}² on {rows[0]['grid']} ranks, a {unit}: " +
                 ", ".join(f"{r['arm']} {words.duration(r[took])}" for r in rows if r["n"] == small) + "."]


def cost(rows):
    names = [r["operation"] for r in rows]
    return [Bars("Cost of operations on a stream (median)", names, [("GPU", [r["gpu_ns_p50"] / 1000 for r in rows]),
                                                                   ("CPU, to enqueue", [r["cpu_ns_p50"] / 1000 for r in rows])],
                 "time")], []


def stuck(rows):
    table = Table("Streams stuck on purpose", ["turn", "streams", "kept standing", "cancel calls, µs", "free after (median), µs", "last free, µs"],
                  [[str(r["turn"]), str(r["streams"]), str(r["standing"]), words.microseconds(r["cancel_calls_ns"]),
                    words.microseconds(r["free_ns_p50"]), words.microseconds(r["free_ns_max"])] for r in rows], ">>>>>>")
    last = max(r["free_ns_max"] for r in rows)
    return [table], [f"{rows[0]['streams']} stuck streams: the last was free {words.duration(last)} after the first cancel, at most."]


def stopped(rows):
    return [Table("Both processes stopped", ["outcome", "exchange", "stopped for", "CPU ticks meanwhile"],
                  [[r["outcome"], words.duration(r["exchange_ns"]), words.duration(r["stopped_ns"]), str(r["cpu_ticks_while_stopped"])]
                   for r in rows], "<>>>")], [f"Stopped processes: {rows[0]['outcome']} ({words.duration(rows[0]['exchange_ns'])})."]


def poke(result):
    rows = result.rows_of("poke")
    named = [(r["series"], [v / 1000 for v in result.samples_of(r["series"]) or []]) for r in rows]
    out = [histogram("CPU store, stream released, word back", [(n, v) for n, v in named if v])] if any(v for _, v in named) else []
    out.append(Table("", ["what"] + QUANTILE_HEAD, list(quantile_table_rows(rows, lambda r: r["series"])), "<" + QUANTILE_ALIGN,
                     note="Times in µs."))
    doorbells = result.rows_of("doorbell")
    if doorbells:
        out.append(Table("Writes queued on a stream and seen by the CPU", ["list", "each write, ns", "to enqueue, ns", "writes", "seen apart"],
                         [[f"{r['list_operations']} operations", words.rounded(r["write_ns_p50"]), words.rounded(r["enqueue_ns_p50"]),
                           str(r["writes"]), words.rounded(r["writes_seen_p50"])] for r in doorbells], "<>>>>"))
    best = min(rows, key=lambda r: r["latency_ns_p50"])
    return out, [f"CPU to stream and back: {words.duration(best['latency_ns_p50'])} ({best['series']})."]
