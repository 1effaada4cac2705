# SPDX-License-Identifier: Apache-2.0
"""`store_bench`: the store's engine beside what a disk and a plain file do, each part in its own unit. `store_compare`: client
and server beside a raw socket, RocksDB, LMDB and Mooncake. `store gpu-direct-demo`:
values between GPU memory and a store, against the link. `store perf`: operations and their latency."""

from . import words
from .model import Bars, Table
from .view_copy import groups


def bench(result):
    out: list = []
    summary = []
    for (part, unit), rows in groups(result.rows, lambda r: (r["part"], r["unit"])).items():
        unit = "ratio" if unit == "1" else unit
        if len(rows) > 1:
            out.append(Bars(f"{part} (median)", [r["contender"] for r in rows], [(unit, [r["median"] for r in rows])], unit, unit=unit))
        summary.append(f"{part}: " + ", ".join(f"{r['contender']} {words.rounded(r['median'], 4)} {unit}" for r in rows) + ".")
    out.append(Table("All rows", ["part", "contender", "median", "unit"],
                     [[r["part"], r["contender"], words.rounded(r["median"], 4), r["unit"]] for r in result.rows], "<<><", folded=True))
    return out, summary


def rivals(result):
    """`store_compare`: the systems of each part in their unit, and the ratios with their goals."""
    out: list = []
    summary = []
    for (part, unit), rows in groups(result.rows_of("contender"), lambda r: (r["part"], r["unit"])).items():
        out.append(Bars(f"{part} (median)", [r["contender"] for r in rows], [(unit, [r["median"] for r in rows])], unit, unit=unit))
    ratios = result.rows_of("ratio")
    out.append(Table("Ratios (medians of the rounds' ratios)", ["part", "contender", "to", "ratio", "aim"],
                     [[r["part"], r["contender"], r["to"], words.rounded(r["ratio"], 3), words.rounded(r["aim"], 3) if "aim" in r else "–"] for r in ratios], "<<<>>"))
    for r in ratios:
        summary.append(f"{r['part']}: {r['contender']} / {r['to']} = {words.rounded(r['ratio'], 3)}" +
                       ("." if r.get("met", True) else f", aim {words.rounded(r['aim'], 3)}."))
    return out, summary


def demo(result):
    rows = result.rows_of("transfer")
    names = [f"{r['direction']} {words.size(r['size_bytes'])}, {r['path']}, {r['durability']}" for r in rows]
    bars = Bars("GPU memory and the store", names, [("store", [r["bandwidth_gb_per_s"] for r in rows]),
                                                           ("link", [r["link_gb_per_s"] for r in rows])], "bandwidth", unit="GB/s")
    table = Table("Transfers", ["transfer", "GB/s", "of the link", "p50 us", "p99 us"],
                  [[name, words.rounded(r["bandwidth_gb_per_s"], 3), f"{r['ratio_to_link']:.0%}", words.rounded(r["latency_ns_p50"] / 1e3, 4),
                    words.rounded(r["latency_ns_p99"] / 1e3, 4)] for name, r in zip(names, rows)], "<>>>>")
    summary = [f"{name}: {words.rounded(r['bandwidth_gb_per_s'], 3)} GB/s, {r['ratio_to_link']:.0%} of the link." for name, r in zip(names, rows)]
    return [bars, table], summary


def perf(result):
    """The rows unchanged: each kind of operation has its own columns."""
    out: list = []
    for (kind,), rows in groups(result.rows, lambda r: (r.get("kind", ""),)).items():
        columns = [name for name in rows[0] if name != "kind" and not isinstance(rows[0][name], (list, dict))]
        out.append(Table(kind or "Rows", columns, [[str(r.get(name, "")) for name in columns] for r in rows], "<" * len(columns)))
    return out, []
