#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the figures with targets from a folder of `peerlane async` results. scripts/gpu/async.sh runs it at its end."""

import json
import os
import sys


def rows(folder, name):
    try:
        with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
            return json.load(file).get("rows", [])
    except (OSError, ValueError):
        return []


def label(row):
    return row["arm"] + (" " + row["mode"] if row.get("mode") == "economy" else "")


def table(title, cases, found):
    """`found`: {(line, column): text}."""
    lines = list(dict.fromkeys(line for line, _ in found))
    print(title)
    print("  " + " " * 24 + "".join(f"{case:>12}" for case in cases))
    for line in lines:
        print(f"  {line:<24}" + "".join(f"{found.get((line, case), '-'):>12}" for case in cases))


def times(title, all_rows, column):
    cases = list(dict.fromkeys(column(row) for row in all_rows))
    table(title, cases, {(label(row), column(row)): f"{row['iteration_ns_p50'] / 1e3:.1f}" for row in all_rows})


def verdict(claim, value, bound, is_below=True):
    if value is None:
        print(f"  no figure  {claim}")
        return
    is_good = value <= bound if is_below else value >= bound
    print(f"  {'reached' if is_good else 'MISSED '}    {claim}: {value:.2f} (bound {bound})")


def ratio(all_rows, arm, base, **conditions):
    chosen = {row["arm"]: row for row in all_rows if all(row.get(key) == value for key, value in conditions.items())}
    if arm not in chosen or base not in chosen:
        return None
    return chosen[arm]["iteration_ns_p50"] / chosen[base]["iteration_ns_p50"]


def economy(all_rows, arm, kernel_ns):
    by_mode = {row["mode"]: row for row in all_rows if row["arm"] == arm and row["kernel_asked_ns"] == kernel_ns}
    if len(by_mode) != 2:
        return None, None
    quick, thrifty = by_mode["performance"], by_mode["economy"]
    return (quick["cpu_busy_percent_p50"] - thrifty["cpu_busy_percent_p50"],
            thrifty["iteration_ns_p50"] / quick["iteration_ns_p50"])


def main():
    folder = sys.argv[1]
    pingpong, sizes = rows(folder, "pingpong"), rows(folder, "pingpong_sizes")
    times("us a round trip of 128 B, by the kernel's time", pingpong, lambda row: f"{row['kernel_asked_ns'] / 1e3:g} us")
    times("us a round trip, by size", sizes, lambda row: f"{row['size_bytes']}")
    cut = [dict(row, arm=f"proxy, {words}") for words, name in (
        ("default", "sizes"), ("no spread", "no_spread"), ("16K", "chunk_16K"), ("32K", "chunk_32K"), ("128K", "chunk_128K"))
        for row in rows(folder, f"pingpong_{name}") if row["arm"] == "proxy" and row["size_bytes"] >= 16384]
    times("the same of the proxy, by how it cuts", cut, lambda row: f"{row['size_bytes']}")
    times("and over TCP, by chunk", [dict(row, arm=f"{row['arm']}, {chunk}") for chunk in ("32K", "64K", "128K")
                                     for row in rows(folder, f"pingpong_tcp_{chunk}")], lambda row: f"{row['size_bytes']}")
    batches = [dict(row, batch=batch) for batch in (1, 4, 16) for row in rows(folder, f"pingpong_batch_{batch}")]
    times("us a round trip of 128 B, by batch", batches, lambda row: f"batch {row['batch']}")
    times("the same over TCP", rows(folder, "pingpong_tcp"), lambda row: f"{row['size_bytes']}")
    both = rows(folder, "economy") + rows(folder, "economy_proxy")
    saved = list(both)
    for name in ("80", "640_80", "640"):
        saved += [dict(row, arm=f"{row['arm']} -b {name.replace('_', ' --unroll ')}") for row in rows(folder, f"economy_{name}")]
    saved += [dict(row, arm=row["arm"] + " -b 80") for row in rows(folder, "economy_proxy_80")]
    cases = list(dict.fromkeys(f"{row['kernel_asked_ns'] / 1e3:g} us" for row in saved))
    table("CPU % of one core / us a round trip", cases, {
        (label(row), f"{row['kernel_asked_ns'] / 1e3:g} us"):
            f"{row['cpu_busy_percent_p50']:.0f} / {row['iteration_ns_p50'] / 1e3:.1f}" for row in saved})
    stencil = rows(folder, "stencil_2x1")
    cases = list(dict.fromkeys(str(row["n"]) for row in stencil))
    table("us a step of the stencil, 2x1", cases,
          {(row["arm"], str(row["n"])): f"{row['step_ns_p50'] / 1e3:.1f}" for row in stencil})
    multigrid = rows(folder, "multigrid_2x1")
    cases = list(dict.fromkeys(str(row["n"]) for row in multigrid))
    table("us a cycle of multigrid, 2x1", cases,
          {(row["arm"], str(row["n"])): f"{row['cycle_ns_p50'] / 1e3:.1f}" for row in multigrid})
    print("targets")
    short = {"kernel_asked_ns": 0}
    verdict("executor P, best of both waits, against normal, 128 B",
            min((one for one in (ratio(pingpong, arm, "normal", **short) for arm in ("peer", "peer-kernel")) if one), default=None), 0.6)
    for size in (16384, 65536):
        verdict(f"executor X against normal, {size} B", ratio(sizes, "proxy", "normal", size_bytes=size), 1.0)
    for batch in (4, 16):
        verdict(f"executor X against normal, batch {batch}", ratio([row for row in batches if row["batch"] == batch], "proxy", "normal"), 1.0)
    for arm in ("peer", "proxy"):
        points, slower = economy(both, arm, 0)
        verdict(f"economy, {arm}: points of CPU saved", points, 45, is_below=False)
        verdict(f"economy, {arm}: time against performance", slower, 1.1)
    points, slower = economy(rows(folder, "economy_proxy_80"), "proxy", 0)
    verdict("economy, proxy -b 80: points of CPU saved", points, 45, is_below=False)
    verdict("economy, proxy -b 80: time against performance", slower, 1.1)
    for name in ("80", "640_80", "640"):
        busy = [row["cpu_busy_percent_p50"] for row in rows(folder, f"economy_{name}")
                if row["arm"] == "graph-kernel" and row["mode"] == "economy" and row["kernel_asked_ns"] == 0]
        verdict(f"graph replay, batch {name.replace('_', ' unroll ')}: CPU %", busy[0] if busy else None, 5)
    small = {row["arm"]: row["step_ns_p50"] for row in stencil if row["n"] == 256}
    verdict("stencil 256^2: peer against normal", small["peer"] / small["normal"] if "peer" in small and "normal" in small else None, 1.0)
    cycles = {row["arm"]: row["cycle_ns_p50"] for row in multigrid if row["n"] == 256}
    for arm in ("peer", "graph-kernel"):
        verdict(f"multigrid 256^2: {arm} against normal", cycles[arm] / cycles["normal"] if arm in cycles and "normal" in cycles else None, 1.0)
    ratios = [row["ratio_to_first"] for row in rows(folder, "stencil_no_gain") if row["arm"] == "peer"]
    verdict("stencil_no_gain: peer against normal, no gain expected", ratios[0] if ratios else None, 0.95, is_below=False)


if __name__ == "__main__":
    main()
