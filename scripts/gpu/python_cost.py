#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What single elements and copies cost from Python, on whatever GPU answers: scripts/gpu/python_cost.py [--json FILE].

PyTorch's and CuPy's ways are measured beside ours where they are installed. Each row is the median over 15 rounds of as many
calls as take some milliseconds; the loop's own cost is measured and taken off. Runs with PYTHONPATH=build/release/out/python
or an installed wheel.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np
import peerlane
from peerlane import testing

ROUNDS = 15
ROUND_S = 4e-3


def cost_ns(call):
    """Median and least cost of a call, less that of the loop around it."""
    clock = time.perf_counter_ns

    def once(what, calls):
        start = clock()
        for _ in range(calls):
            what()
        return (clock() - start) / calls

    calls = 1
    while once(call, calls) * calls < ROUND_S * 1e9 and calls < 1 << 20:
        calls *= 2
    empty = min(once(lambda: None, calls) for _ in range(5))
    rounds = [once(call, calls) - empty for _ in range(ROUNDS)]
    return {"median_ns": statistics.median(rounds), "least_ns": min(rounds), "calls": calls * ROUNDS}


def library(name):
    """torch or cupy with a GPU that works, else None; never beside the simulated GPU."""
    if testing.is_simulated():
        return None
    try:
        module = __import__(name)
        if name == "torch":
            module.zeros(1, device="cuda")
        else:
            module.zeros(1)
        return module
    except Exception as why:
        print(f"{name}: not measured ({type(why).__name__}: {why})", file=sys.stderr)
        return None


def scalar_rows(torch, cupy):
    x = torch.zeros(1024, device="cuda") if torch else testing.zeros(1024)
    m = peerlane.map(x)
    view = m.array
    host = np.zeros(1024, np.float32)
    rows = {
        "mapping.write(i, v)": lambda: m.write(3, 1.5),
        "mapping.read(i)": lambda: m.read(3),
        "mapping[i] = v": lambda: m.__setitem__(3, 1.5),
        "mapping[i]": lambda: m[3],
        "view[i] = v": lambda: view.__setitem__(3, 1.5),
        "view[i]": lambda: view[3],
        "host array[i] = v": lambda: host.__setitem__(3, 1.5),
        "host array[i]": lambda: host[3],
    }
    for size in (4 << 10, 64 << 10):
        many = peerlane.map(torch.zeros(size, dtype=torch.uint8, device="cuda") if torch else testing.zeros(size, np.uint8))
        rows[f"np.array(view), {size} B"] = (lambda seen: lambda: np.array(seen))(many.array.view(np.ndarray))
        rows[f"mapping.read(), {size} B"] = many.read
    if torch:
        rows["torch x[i].item()"] = lambda: x[3].item()
        rows["torch x.item(), one element"] = (lambda one: lambda: one.item())(x[3])
        rows["torch x[i] = v"] = lambda: x.__setitem__(3, 1.5)
    if cupy:
        c = cupy.zeros(1024, cupy.float32)
        rows["cupy x[i].item()"] = lambda: c[3].item()
        rows["cupy x[i] = v"] = lambda: c.__setitem__(3, 1.5)
    return {name: cost_ns(call) for name, call in rows.items()}


def copy_rows(torch):
    rows = {}
    for size in (64, 4 << 10, 64 << 10, 1 << 20, 16 << 20):
        host, back = np.ones(size, np.uint8), np.empty(size, np.uint8)
        x = torch.zeros(size, dtype=torch.uint8, device="cuda") if torch else testing.zeros(size, np.uint8)
        rows[f"copy to GPU, {size} B"] = cost_ns(lambda: peerlane.copy(x, host))
        rows[f"copy to GPU, after=None, {size} B"] = cost_ns(lambda: peerlane.copy(x, host, after=None))
        rows[f"copy to host, {size} B"] = cost_ns(lambda: peerlane.copy(back, x))
        rows[f"copy to host, after=None, {size} B"] = cost_ns(lambda: peerlane.copy(back, x, after=None))
        if torch:
            there = torch.from_numpy(host)
            rows[f"torch x.copy_(host) + synchronize, {size} B"] = cost_ns(
                lambda: (x.copy_(there), torch.cuda.current_stream().synchronize()))
            rows[f"torch x.cpu(), {size} B"] = cost_ns(lambda: x.cpu())
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 0.2 ms: to see that it runs")
    arguments = parser.parse_args()
    global ROUNDS, ROUND_S
    if arguments.quick:
        ROUNDS, ROUND_S = 2, 2e-4
    torch, cupy = library("torch"), library("cupy")
    machine = peerlane.info()["machine"]
    if machine["simulated"]:
        print("SIMULATED GPU: these figures are this program's overhead on a CPU, not a GPU's")
    rows = {**scalar_rows(torch, cupy), **copy_rows(torch)}
    for name, row in rows.items():
        print(f"{name:44} {row['median_ns']:12.0f} ns   least {row['least_ns']:12.0f} ns")
    if arguments.json:
        versions = {each.__name__: each.__version__ for each in (np, torch, cupy, peerlane) if each}
        result = {"schema": "peerlane-result/1", "tool": "python_cost", "command_line": sys.argv, "simulated": machine["simulated"],
                  "passed": True, "machine": machine, "parameters": {"python": sys.version.split()[0], **versions},
                  "units": {"latency_ns_p50": "ns", "latency_ns_min": "ns"}, "notes": [], "samples": [],
                  "rows": [{"call": name, "latency_ns_p50": row["median_ns"], "latency_ns_min": row["least_ns"], "sample_count": row["calls"]}
                           for name, row in rows.items()]}
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
