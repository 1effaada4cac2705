#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""builds_table.py FOLDER RESULTS: writes the tables RESULTS/cases.txt and RESULTS/summary.txt from the files NAME.BUILD.ROUND.json of builds.sh.

For each case (a size, a direction ...): the median over the rounds of each run's median. `cost`: new / old; above 1 is worse, also for
bandwidths. `null`: the same ratio for the older build and itself.
"""

import collections
import json
import os
import statistics
import sys
from pathlib import Path

ORDER = ("pplat", "copylat", "copy", "p2p_device", "p2p_host", "p2p_bw", "store_volatile", "store_durable")


def cases(name, row):
    """[(case, value, whether a higher value is better)] of a row of a result file."""
    latency = row.get("latency_ns_p50")
    if name == "pplat":
        return [("round trip", latency, False)]
    if name == "copylat":
        return [(f"{row['direction']} {row['contender']} {row['size_bytes']}", latency, False)] if row["contender"] in ("peerlane", "cuMemcpy") else []
    if name == "copy":
        return [(f"{row['direction']} {row['method']} {row['size_bytes']}", latency, False)] if row.get("kind") == "method" else []
    if name == "p2p_bw":
        return [(str(row["size_bytes"]), row["bandwidth_mb_per_s"], True)]
    if name.startswith("p2p"):
        return [(str(row["size_bytes"]), latency, False)]
    return [(row["direction"], latency, False)] if row.get("kind") == "transfer" else []


def read(folder):
    """{(name, case): {build: [value of each round]}}, {(name, case): whether a higher value is better}"""
    values, high = collections.defaultdict(lambda: collections.defaultdict(list)), {}
    for path in sorted(Path(folder).glob("*.json")):
        name, build, _ = path.name.removesuffix(".json").rsplit(".", 2)
        for row in json.loads(path.read_text(encoding="utf-8")).get("rows", []):
            for case, value, is_high_good in cases(name, row):
                values[name, case][build].append(value)
                high[name, case] = is_high_good
    return values, high


def cost(high, other, base):
    ratio = statistics.median(other) / statistics.median(base)
    return 1 / ratio if high else ratio


def main(folder, results):
    values, high = read(folder)
    values = {key: builds for key, builds in values.items() if len(builds["old"]) > 1 and len(builds["new"]) > 1}
    groups = collections.defaultdict(list)
    with open(os.path.join(results, "cases.txt"), "w", encoding="utf-8") as file:
        print(f"{'measurement':16}{'case':26}{'old':>12}{'new':>12}{'cost':>7}{'null':>7}", file=file)
        for name, case in sorted(values, key=lambda key: ORDER.index(key[0])):
            builds, is_high_good = values[name, case], high[name, case]
            worse = cost(is_high_good, builds["new"], builds["old"])
            null = cost(is_high_good, builds["same"], builds["old"]) if builds["same"] else 1
            groups[name + (" cuMemcpy" if "cuMemcpy" in case else "")].append((worse, null))
            medians = [statistics.median(builds[build]) for build in ("old", "new")]
            print(f"{name:16}{case:26}{medians[0]:12.1f}{medians[1]:12.1f}{worse:7.3f}{null:7.3f}", file=file)
    rounds = max((len(builds["new"]) for builds in values.values()), default=0)
    lines = [f"{'measurement':20}{'cases':>6}{'cost':>8}{'worst':>8}{'over 1.02':>11}{'null':>8}{'worst':>8}{'over 1.02':>11}   ({rounds} rounds)"]
    for name, pairs in groups.items():
        columns = [[statistics.median(side), max(side), sum(value > 1.02 for value in side)] for side in zip(*pairs)]
        lines.append(f"{name:20}{len(pairs):6}" + "".join(f"{middle:8.3f}{worst:8.3f}{count:11}" for middle, worst, count in columns))
    Path(results, "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:3])
