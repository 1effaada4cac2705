# SPDX-License-Identifier: Apache-2.0
"""`peerlane copy` (envelope, --beside, --async), `calibrate` and `explain-copy`."""

from . import words
from .curves import (QUANTILE_ALIGN, QUANTILE_HEAD, best_of, crossover_sentence, latency_chart, quantile_table_rows, series_by)
from .model import Bars, Chart, Series, Table

DIRECTIONS = {"h2d": "host to device", "d2h": "device to host", "d2d": "within one GPU", "p2p": "GPU to GPU",
              "to_device": "host to device", "to_host": "device to host", "on_device": "within one GPU", "to_peer": "GPU to GPU"}
MEMORY = {"pinned": "pinned host memory", "pageable": "ordinary host memory"}
PLANNERS = ("planner", "planner_registered")


def direction(word):
    return DIRECTIONS.get(word, word)


def place(row):
    """Returns the title for a row's direction and kinds of memory."""
    memory = row.get("memory") or row.get("side") or ""
    if memory == "peer_gpu":
        return direction("p2p")
    if memory in ("device", "same_gpu"):
        return direction(row["direction"])
    return f"{direction(row['direction'])}, {MEMORY.get(memory, memory)}"


def family(method):
    """Returns the method without its number of threads or workers: "cpu_store" for "cpu_store x4"."""
    return method.rsplit(" x", 1)[0]


def groups(rows, key):
    out: dict = {}
    for row in rows:
        out.setdefault(key(row), []).append(row)
    return out


def families(series):
    """The single methods, each with its best number of threads at every size."""
    out = []
    for name, members in groups(series, lambda s: family(s.name)).items():
        label = name if len(members) == 1 else f"{name} (best of {len(members)})"
        out.append(best_of(label, members))
    return out


def blocks(result):
    out, summary = [], []
    for view in (envelope, beside, asynchronous, lists):
        more, sentences = view(result)
        out += more
        summary += sentences
    return out, summary


def envelope(result):
    out, summary = [], []
    best = groups(result.rows_of("envelope"), place)
    for title, rows in groups(result.rows_of("method"), place).items():
        every = series_by(rows, lambda r: r["method"])
        single = families([s for s in every if s.name not in PLANNERS])
        planners = [s for s in every if s.name in PLANNERS]
        for one in planners:
            one.emphasis = "main"
        chart, found = latency_chart(f"Time of a copy: {title}", planners + single, single)
        out.append(chart)
        out.append(rates(title, planners + single))
        if title in best:
            more, sentence = against_best(title, best[title])
            out += more
            summary.append(sentence)
        if found:
            summary.append(f"{capital(title)}: {crossover_sentence(found)}.")
    return out, summary


def rates(title, series):
    """Converts times to bandwidth: bytes by nanoseconds are GB/s."""
    shown = [Series(s.name, s.x, [x / (1000 * y) for x, y in zip(s.x, s.y)], s.emphasis) for s in series]
    return Chart(f"Bandwidth of a copy: {title}", shown, "size", "bandwidth (from the median)", y_unit="GB/s", table=False)


def against_best(title, rows):
    ratio = series_by(rows, lambda r: "planner", y="ratio", scale=1)
    registered = series_by(rows, lambda r: "planner, memory registered", y="registered_ratio", scale=1)
    ratio[0].emphasis = "main"
    over = [row for row in rows if row.get("exceeds")]
    chart = Chart(f"Planner against the best single way: {title}", ratio + registered, "size", "planner's time / best time",
                  y_unit="ratio", y_log=False, level=1.1, table=False,
                  note="Below the line: within 10 % of the best way measured in the same run.")
    table = Table("", ["size", "best way", "its time, µs", "planner, µs", "ratio", "registered, µs", "planner's choice"],
                  [[words.size(r["size_bytes"]), r["best_method"], words.microseconds(r["best_ns"]), words.microseconds(r["planner_ns"]),
                    words.rounded(r["ratio"]) + (" !" if r.get("exceeds") else ""), words.microseconds(r.get("registered_ns")),
                    r["choice"]] for r in rows], "><>>>><", folded=True,
                  note="! : more than 10 % and more than 100 ns above the best way")
    worst = max(rows, key=lambda r: r["ratio"])
    sentence = (f"{capital(title)}: the planner is more than 10 % and 100 ns above the best single way at {len(over)} of {len(rows)} "
                f"sizes (worst ratio {words.rounded(worst['ratio'])} at {words.size(worst['size_bytes'])}).")
    return [chart, table], sentence


def capital(text):
    return text[:1].upper() + text[1:]


def beside(result):
    rows = result.rows_of("beside")
    out: list = []
    if rows:
        calls = list(dict.fromkeys(r["call"] for r in rows))
        engines = list(dict.fromkeys(r["engine"] for r in rows))
        medians = {(r["call"], r["engine"]): r["latency_ns_p50"] / 1000 for r in rows}
        out.append(Bars("Calls of the driver beside the GPU engine (median)", calls,
                        [(f"engine: {e}", [medians.get((c, e)) for c in calls]) for e in engines], "time", x_log=True))
        out.append(Table("", ["call", "engine"] + QUANTILE_HEAD,
                         [[r["call"]] + line for r, line in zip(rows, quantile_table_rows(rows, lambda r: r["engine"]))],
                         "<<" + QUANTILE_ALIGN, folded=True, note="Times in µs."))
    rows = result.rows_of("throughput")
    if rows:
        out.append(Table("What an idle engine takes from other kernels", ["kernel", "engine", "median, ms", "against none", "GB/s"],
                         [[r["kernel"], r["engine"], words.rounded(r["latency_ns_p50"] / 1e6, 4),
                           f"{100 * (r['ratio_p50_to_none'] - 1):+.1f} %", words.rounded(r.get("bandwidth_gb_per_s"), 4)] for r in rows],
                         "<<>>>"))
    worst = max((r for r in result.rows_of("throughput")), key=lambda r: r["ratio_p50_to_none"], default=None)
    summary = [f"An engine that waits takes at most {100 * (worst['ratio_p50_to_none'] - 1):.1f} % from another kernel "
               f"({worst['kernel']})."] if worst else []
    return out, summary


def asynchronous(result):
    out = []
    for title, rows in groups(result.rows_of("async"), place).items():
        series = series_by(rows, lambda r: r["method"])
        sizes = sorted({x for s in series for x in s.x})
        out.append(Bars(f"Asynchronous copies: {title}", [words.size(x) for x in sizes],
                        [(s.name, [dict(zip(s.x, s.y)).get(x) for x in sizes]) for s in series], "time (median)", x_log=True))
    return out, []


def lists(result):
    rows = result.rows_of("list")
    if not rows:
        return [], []
    names = lambda r: f"{direction(r['direction'])}, {r['pieces']} pieces of {words.size(r['piece_bytes'])}"  # noqa: E731
    medians = {(names(r), r["method"]): r["latency_ns_p50"] / 1000 for r in rows}
    categories, methods = list(dict.fromkeys(map(names, rows))), list(dict.fromkeys(r["method"] for r in rows))
    return [Bars("Lists of small pieces", categories, [(m, [medians.get((c, m)) for c in categories]) for m in methods],
                 "time of the whole list (median)", x_log=True)], []


def calibrate(result):
    out = []
    for title, rows in groups(result.rows_of("cost"), place).items():
        series = families(series_by(rows, lambda r: r["method"], y="cost_ns"))
        chart, _ = latency_chart(f"Measured cost: {title}", series)
        out.append(chart)
    return out + choices(result), []


def choices(result):
    rows = result.rows_of("crossover")
    if not rows:
        return []
    return [Table("What the planner takes", ["copy", "GPU engine", "up to", "way"],
                  [[place(r), "hot" if r["engine_hot"] else "cold",
                    "any size" if r["up_to_bytes"] < 0 else words.size(r["up_to_bytes"] + 1) + " (exclusive)", r["method"]]
                   for r in rows], "<<><", folded=len(rows) > 12)]


def explain(result):
    rows = result.rows_of("way")
    out = [Table("Ways for this copy", ["copy", "size", "GPU engine", "way", "taken", "expected, µs", "why"],
                 [[place(r), words.size(r["size_bytes"]), "hot" if r["engine_hot"] else "cold", r["method"], "yes" if r["taken"] else "",
                   words.microseconds(r["expected_ns"]), r["why"]] for r in rows], "<><<<><")] if rows else []
    return out + choices(result), []


def dma_bench(result):
    """Copies by a DMA channel beside CUDA's, for each method of ordering operations; scattered blocks; the checks."""
    out, summary = [], []
    for order, rows in groups(result.rows_of("copy"), lambda r: r["order"]).items():
        series = series_by(rows, lambda r: r["contender"].replace("_", " "))
        for one in series:
            one.emphasis = "main" if one.name.startswith("dma") else ""
        chart, _ = latency_chart(f"One copy, order: {order}", series)
        out.append(chart)
        small = next((r for r in rows if r["contender"] == "dma_to_host" and r["size_bytes"] == 4096), None)
        if small:
            summary.append(f"4 KiB to the host, order {order}: {words.duration(small['latency_ns_p50'])} "
                           f"(p99 {words.duration(small['latency_ns_p99'])}).")
    out.append(Table("Scattered blocks", ["direction", "blocks", "bytes each", "GB/s", "CPU ns a block"],
                     [[r["direction"].replace("_", " "), f"{r['blocks']:,}", f"{r['size_bytes']:,}", words.rounded(r["bandwidth_gb_per_s"]),
                       words.rounded(r["submission_ns_per_block"])] for r in result.rows_of("list")], "<>>>>"))
    out.append(Table("Order: copies that follow a fill of the same memory", ["case", "copies", "old bytes", "of them only late", "lost"],
                     [[r["case"], f"{r['copies']:,}", f"{r['old']:,}", f"{r['late']:,}", f"{r['lost']:,}"] for r in result.rows_of("order")], "<>>>>"))
    return out, summary


def dma_planner_bench(result):
    """The planner's copies by DMA channel beside CUDA's; lists; kinds of memory; the cost of freeing memory during copies."""
    series = series_by(result.rows_of("copy"), lambda r: r["contender"].replace("_", " "))
    for one in series:
        one.emphasis = "" if one.name.endswith("cuda") else "main"
    chart, _ = latency_chart("Copies of registered memory", series)
    lists = Table("Lists", ["contender", "blocks", "bytes each", "p50", "GB/s"],
                  [[r["contender"].replace("_", " "), f"{r['blocks']:,}", f"{r['size_bytes']:,}", words.duration(r["latency_ns_p50"]),
                    words.rounded(r["gb_per_s"])] for r in result.rows_of("list")], "<>>>>")
    memory = Table("Memory: 20 copies each way, compared", ["memory", "by channel"],
                   [[r["memory"], r["by_channel"]] for r in result.rows_of("memory")], "<>")
    freeing = [[label, words.duration(r["latency_ns_p50"])] for label, kind in (("alone", "free_alone"), ("beside copies", "free_beside_copies"))
               for r in result.rows_of(kind)]
    summary = [f"Freed memory was back after {r['back_ms_min']:.0f} to {r['back_ms_max']:.0f} ms." for r in result.rows_of("freed")]
    out = [chart, lists, memory, Table("cuCtxSynchronize and cuMemFree", ["", "p50"], freeing, "<>")]
    rounds = [[r["contender"], "queued" if kind == "stream_order_queued" else "one by one", f"{r['size_bytes']:,}", words.duration(r["latency_ns_p50"])]
              for kind in ("stream_order", "stream_order_queued") for r in result.rows_of(kind)]
    if rounds:
        out.append(Table("Rounds of stream, copy to the host, stream", ["by", "rounds", "bytes", "p50 of a round"], rounds, "<<>>"))
    pageable = [[r["contender"], r["way"].replace("_", " "), f"{r['size_bytes']:,}", words.duration(r["latency_ns_p50"]), words.rounded(r["gb_per_s"])]
                for r in result.rows_of("pageable")]
    if pageable:
        out.append(Table("Pageable memory", ["by", "direction", "bytes", "p50", "GB/s"], pageable, "<<>>>"))
    return out, summary
