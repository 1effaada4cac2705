#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of single elements and copies from Python, on a real or simulated GPU: scripts/gpu/python_cost.py [--json FILE]
[--beside FOLDER].

Also measures the same operations of PyTorch and CuPy if they are installed. Each row is the median over 15 rounds, each of as many calls as
take some milliseconds, minus the measured cost of the loop. Without PyTorch the arrays are those of peerlane.testing, and of CuPy if it is
installed. Runs with PYTHONPATH=build/release/out/python or an installed wheel. --beside: another build of the package (the folder that
PYTHONPATH would name) is measured interleaved with this one, three times each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import peerlane
from peerlane import testing

ROUNDS = 15
ROUND_S = 4e-3


def cost_ns(call):
    """Median and minimum cost of a call, minus that of the loop around it."""
    clock = time.perf_counter_ns

    def once(label, calls):
        start = clock()
        for _ in range(calls):
            label()
        return (clock() - start) / calls

    calls = 1
    while once(call, calls) * calls < ROUND_S * 1e9 and calls < 1 << 20:
        calls *= 2
    empty = min(once(lambda: None, calls) for _ in range(5))
    rounds = [once(call, calls) - empty for _ in range(ROUNDS)]
    return {"median_ns": statistics.median(rounds), "least_ns": min(rounds), "calls": calls * ROUNDS}


def library(name):
    """torch or cupy with a working GPU, else None; always None on the simulated GPU."""
    if testing.is_simulated():
        return None
    try:
        module = __import__(name)
        if name == "torch":
            module.zeros(1, device="cuda")
        else:
            module.zeros(1)
        return module
    except Exception as error:
        print(f"{name}: not measured ({type(error).__name__}: {error})", file=sys.stderr)
        return None


def scalar_rows(torch, cupy):
    x = torch.zeros(1024, device="cuda") if torch else testing.zeros(1024)
    m = peerlane.map(x)
    view = m.array
    table = peerlane.map(torch.zeros(16, 64, device="cuda") if torch else testing.zeros((16, 64)))
    pair = testing.zeros(1024)
    raw = peerlane.map((pair.address, pair.nbytes), dtype="float32")
    host = np.zeros(1024, np.float32)
    rows = {
        "mapping.write(i, v)": lambda: m.write(3, 1.5),
        "mapping.read(i)": lambda: m.read(3),
        "mapping[i] = v": lambda: m.__setitem__(3, 1.5),
        "mapping[i]": lambda: m[3],
        "mapping[i, j] = v": lambda: table.__setitem__((3, 5), 1.5),
        "mapping[i, j]": lambda: table[3, 5],
        "mapping[i], of a raw pointer": lambda: raw[3],
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


def copy_rows(torch, cupy):
    rows = {}
    for size in (8, 64):
        on_device, host, back = testing.zeros(size, np.uint8), np.ones(size, np.uint8), np.empty(size, np.uint8)
        m = peerlane.map(on_device)
        rows[f"copy to GPU, peerlane.testing, {size} B"] = cost_ns(lambda: peerlane.copy(on_device, host))
        rows[f"copy to host, peerlane.testing, {size} B"] = cost_ns(lambda: peerlane.copy(back, on_device))
        rows[f"copy to host, a mapping, {size} B"] = cost_ns(lambda: peerlane.copy(back, m))
        if cupy:
            theirs = cupy.zeros(size, cupy.uint8)
            rows[f"copy to GPU, CuPy, {size} B"] = cost_ns(lambda: peerlane.copy(theirs, host))
            rows[f"copy to host, CuPy, {size} B"] = cost_ns(lambda: peerlane.copy(back, theirs))
            rows[f"cupy x.get(), {size} B"] = cost_ns(theirs.get)
    for size in (8, 64, 4 << 10, 64 << 10, 1 << 20, 16 << 20):
        host, back = np.ones(size, np.uint8), np.empty(size, np.uint8)
        x = torch.zeros(size, dtype=torch.uint8, device="cuda") if torch else testing.zeros(size, np.uint8)
        rows[f"copy to GPU, {size} B"] = cost_ns(lambda: peerlane.copy(x, host))
        rows[f"copy to GPU, after=None, {size} B"] = cost_ns(lambda: peerlane.copy(x, host, after=None))
        rows[f"copy to host, {size} B"] = cost_ns(lambda: peerlane.copy(back, x))
        rows[f"copy to host, after=None, {size} B"] = cost_ns(lambda: peerlane.copy(back, x, after=None))
        if torch:
            on_device = torch.from_numpy(host)
            rows[f"torch x.copy_(host) + synchronize, {size} B"] = cost_ns(
                lambda: (x.copy_(on_device), torch.cuda.current_stream().synchronize()))
            rows[f"torch x.cpu(), {size} B"] = cost_ns(lambda: x.cpu())
    return rows


def by_turns(arguments):
    """Measures each package in separate processes, so that neither affects the other."""
    folders = {"beside": arguments.beside, "this": str(Path(peerlane.__file__).resolve().parents[1])}
    turns = {name: [] for name in folders}
    for _ in range(3):
        for name, folder in folders.items():
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                command = [sys.executable, __file__, "--json", file.name, *(["--quick"] if arguments.quick else [])]
                path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
                subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.DEVNULL)
                turns[name].append({row["call"]: row["latency_ns_p50"] for row in json.load(file)["rows"]})
    print(f"{'median of three turns':44} {'beside':>12}    {'this':>12}")
    for call in turns["this"][0]:
        medians = [statistics.median(turn[call] for turn in turns[name]) for name in folders]
        print(f"{call:44} {medians[0]:12.0f} ns {medians[1]:12.0f} ns")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 0.2 ms: to see that it runs")
    parser.add_argument("--beside", metavar="FOLDER", help="measure the package in that folder, too, by turns")
    arguments = parser.parse_args()
    if arguments.beside:
        sys.exit(by_turns(arguments))
    global ROUNDS, ROUND_S
    if arguments.quick:
        ROUNDS, ROUND_S = 2, 2e-4
    torch, cupy = library("torch"), library("cupy")
    machine = peerlane.info()["machine"]
    if machine["simulated"]:
        print("SIMULATED GPU: these figures are this program's overhead on a CPU, not a GPU's")
    rows = {**scalar_rows(torch, cupy), **copy_rows(torch, cupy)}
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
