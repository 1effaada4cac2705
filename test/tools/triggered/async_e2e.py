#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the built `peerlane async` on the simulated GPU: exit codes, that the data are right, tables and result files.

usage: async_e2e.py OUT_FOLDER CASE        one function below for each case; exit code 77: left out, and the reason is printed
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from e2e import Done, check, clean_environment, refuse  # noqa: E402

OUT = ""
DISORDER = {"PEERLANE_SIM_SEED": "7", "PEERLANE_SIM_DELAY": "20"}


def run(*arguments, env=None):
    variables = {**clean_environment(), **(env or {})}
    return Done(subprocess.run([os.path.join(OUT, "peerlane"), "async", *arguments], env=variables, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100))


def measure(*arguments, env=None):
    """A run that succeeds, and its result file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        done = run(*arguments, "--json", path, env=env)
        if done.code != 0 and "UCX" in done.err:
            print(f"left out: {done.err.strip()}")
            sys.exit(77)
        check(done.code == 0, f"exit code {done.code}", done.out[-1500:], done.err[-1500:])
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
    check(result["passed"], result)
    return done, result


def usage():
    done = run("--help")
    check(done.code == 0, done.err)
    for name in ("pingpong", "economy", "stencil", "multigrid", "stopped", "stuck", "poke", "cost", "kernel-put"):
        check(f"\n  {name} " in done.out, name, done.out)
        check("Usage:" in run(name, "--help").out, name)
    refuse(run("nonsense"), 'unknown benchmark "nonsense"; peerlane async -h lists them')
    refuse(run(), "")


def bad_options():
    for arguments, words in (
            (("pingpong", "--arms", "normal,fast"), 'not one of normal, hostfn, peer, peer-kernel, proxy, proxy-kernel, dma, device, graph, graph-kernel, graph-dma, graph-loop, graph-loop-dma'),
            (("pingpong", "-s", "12"), "--sizes"),
            (("pingpong", "-k", "soon"), "--kernel"),
            (("pingpong", "--gpus", "0,one"), "--gpus"),
            (("pingpong", "-b", "4097"), "1 to 4096"),
            (("pingpong", "--netns", "none-such", "-i", "10"), "--netns none-such: opening /run/netns/none-such"),
            (("pingpong", "--gpus", "0,99", "-i", "10"), "rank 1"),
            (("economy", "--arms", ""), "--arms"),
            (("stencil", "--grid", "1x1"), "--grid"),
            (("stencil", "--grid", "2x1x1"), "--grid"),
            (("stencil", "--grid", "5x5"), "--grid"),
            (("stencil", "-p", "1"), "2 to 16"),
            (("stencil", "-n", "1"), "--points"),
            (("stencil", "-n", "16385"), "--points"),
            (("stencil", "--arms", "graph"), 'no form for "graph"'),
            (("pingpong", "--arms", "device"), 'only stencil and multigrid have a form for "device"'),
            (("multigrid", "-n", "48"), "48 is not a power of two"),
            (("multigrid", "-n", "16384"), "2 to 8192"),
            (("stopped", "-i", "301"), "1 to 300"),
            (("stopped", "-s", "12"), "--size"),
            (("stuck", "-n", "0"), "1 to 512"),
            (("poke", "-n", "0"), "1 to 1000000"),
            (("poke", "--stuck", "some"), "--stuck"),
            (("poke", "extra"), "extra")):
        refuse(run(*arguments), words)


def pingpong():
    done, result = measure("pingpong", "--arms", "normal,hostfn,peer,peer-kernel", "-i", "30", "-r", "2", "-b", "7", "-s", "8,16K",
                           "-k", "0,20")
    rows = {(row["arm"], row["size_bytes"], row["kernel_asked_ns"]): row for row in result["rows"]}
    check(set(rows) == {(arm, size, busy) for arm in ("normal", "hostfn", "peer", "peer-kernel") for size in (8, 16384)
                        for busy in (0, 20000)}, rows.keys())
    for row in rows.values():
        check(row["iteration_ns_p50"] > 2 * row["kernel_asked_ns"] and row["kernel_ns"] >= row["kernel_asked_ns"], row)
        check((row["enqueue_ns_p50"] > 0) == (row["arm"] != "normal"), row)
        check(row["cpu_busy_percent_p50"] >= 0 and row["sleeps_per_s_p50"] >= 0, row)
    check(all(row["ratio_to_first"] == 1 for row in rows.values() if row["arm"] == "normal"), "ratios")
    check("CPU %" in done.out and "enqueue us" in done.out, done.out)


def pingpong_without_memory():
    """One rank's error ends the command, before the other one has waited a minute for it."""
    done = Done(subprocess.run(["bash", "-c", f"ulimit -d 30000 && exec '{OUT}/peerlane' async pingpong -i 20"], env=clean_environment(), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=45))
    check(done.code == 0 or "memory" in done.err.splitlines()[-1], done.out, done.err)


def two_hosts():
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "scripts", "two_hosts.sh")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        command = f"'{OUT}/peerlane' async pingpong --netns $HOST_A,$HOST_B --arms normal,proxy -i 40 -r 2 -s 128,64K --json '{path}'"
        done = Done(subprocess.run([script, "sh", "-c", command], env=clean_environment(), text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, timeout=100))
        if not os.path.exists(path) and ("Operation not permitted" in done.err or "ip: " in done.err):
            print(f"left out: no network namespaces here: {done.err.strip()}")
            sys.exit(77)
        check(done.code == 0, f"exit code {done.code}", done.out[-1500:], done.err[-1500:])
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
    check(result["passed"] and result["parameters"]["hosts"] == 2 and result["parameters"]["path"] == "network", result)
    check({row["arm"] for row in result["rows"]} == {"normal", "proxy"}, result["rows"])
    check(all(row["iteration_ns_p99"] >= row["iteration_ns_p50"] > 0 for row in result["rows"]), result["rows"])


def graph():
    """Captured exchanges, or the reason why there are none and the other arm's figures."""
    _, result = measure("pingpong", "--arms", "peer,graph,graph-kernel", "-i", "40", "-r", "2", "-b", "10")
    arms = [row["arm"] for row in result["rows"]]
    is_left_out = any("graph is left out: " in note for note in result["notes"])
    check(arms == (["peer"] if is_left_out else ["peer", "graph", "graph-kernel"]), arms, result["notes"])
    # Several launches until the next event, and a graph that is longer than what other arms may queue.
    _, result = measure("economy", "--arms", "peer,graph-kernel", "-i", "240", "-r", "2", "-b", "120", "--unroll", "30")
    check([row["arm"] for row in result["rows"]] == ["peer"] * 2 + ["graph-kernel"] * 2, result["rows"])
    check(result["parameters"]["unroll"] == 30 and result["parameters"]["batch"] == 120, result["parameters"])
    measure("pingpong", "--arms", "graph-kernel", "-i", "200", "-r", "2", "-b", "100")


def graph_loop():
    """One launch a repetition, whatever -b says; where ranks share a GPU the reason why there is none."""
    two = {"PEERLANE_SIM_DEVICES": "2"}
    for disorder in ({}, DISORDER):
        _, result = measure("economy", "--arms", "graph-kernel,graph-loop,graph-loop-dma", "-i", "400", "-r", "2", "-b", "20", "--unroll", "10",
                            "-s", "128,16K", env={**two, **disorder})
        seen = [(row["arm"], row["mode"], row["size_bytes"]) for row in result["rows"]]
        check(seen == [(arm, mode, size) for size in (128, 16384) for arm in ("graph-kernel", "graph-loop", "graph-loop-dma")
                       for mode in ("performance", "economy")], seen, result["notes"])
    _, result = measure("pingpong", "--arms", "graph,graph-loop", "--gpus", "0,0", "-i", "40", "-r", "2", "-b", "10", env=two)
    check([row["arm"] for row in result["rows"]] == ["graph"], result["rows"])
    check(any("graph-loop is left out: rank 0: a loop's body takes kernels and copies alone" in note for note in result["notes"]), result["notes"])


def economy():
    done, result = measure("economy", "--arms", "peer,hostfn", "-i", "60", "-r", "2")
    modes = [(row["arm"], row["mode"]) for row in result["rows"]]
    check(modes == [(arm, mode) for arm in ("peer", "hostfn") for mode in ("performance", "economy")], modes)
    check("peer economy" in done.out, done.out)


def stencil():
    arms = ("normal", "peer", "peer-kernel", "proxy", "graph-kernel")
    _, result = measure("stencil", "--arms", ",".join(arms), "-n", "2,16,33", "-i", "25", "-r", "2", "-b", "5")
    seen = {(row["arm"], row["n"]) for row in result["rows"]}
    check(seen == {(arm, n) for arm in arms for n in (2, 16, 33)}, seen)
    for row in result["rows"]:
        check(row["steps"] == row["steps_checked_by_cpu"] == 24 and row["grid"] == "2x1", row)
        check(row["kernel_ns"] > 0 and row["step_ns_p50"] > 0 and row["edge_bytes"] == 8 * row["n"], row)


def stencil_grids():
    """Other grids, and with stores to other GPUs late and out of order."""
    _, result = measure("stencil", "--grid", "1x2", "-n", "12", "-i", "20", "-r", "2", env=DISORDER)
    check({row["grid"] for row in result["rows"]} == {"1x2"}, result["rows"])
    _, result = measure("stencil", "-p", "4", "-n", "12", "-i", "20", "-r", "2", env=DISORDER)
    check({row["grid"] for row in result["rows"]} == {"2x2"}, result["rows"])


def multigrid():
    arms = ("normal", "peer", "peer-kernel", "proxy", "graph-kernel")
    done, result = measure("multigrid", "--arms", ",".join(arms), "-n", "2,16", "-i", "5", "-r", "2")
    check({(row["arm"], row["n"]) for row in result["rows"]} == {(arm, n) for arm in arms for n in (2, 16)}, result["rows"])
    for row in result["rows"]:
        check(row["cycles"] == row["cycles_checked_by_cpu"] == 5 and row["edge_bytes"] == 8 * row["n"], row)
        check(row["kernel_ns"] > 0 and row["cycle_ns_p50"] > 0, row)
    check("us/cycle" in done.out, done.out)
    _, result = measure("multigrid", "-p", "4", "-n", "8", "-i", "3", "-r", "1", env=DISORDER)
    check({row["grid"] for row in result["rows"]} == {"2x2"}, result["rows"])


def stopped():
    """Here streams are the processes' own threads: the watcher must see that nothing moved, and nothing may be lost."""
    done, result = measure("stopped", "-i", "30", "--patience", "100")
    row, = result["rows"]
    check(row["finished_while_stopped"] is False and row["stopped_ns"] >= 100_000_000, row)
    check(row["cpu_ticks_while_stopped"] == 0, row)
    check("streams are threads of the stopped processes" in done.out, done.out)


def stuck():
    done, result = measure("stuck", "-n", "12", "-r", "3")
    check(len(result["rows"]) == 3 and "all released" in done.out, done.out)
    for row in result["rows"]:
        check(row["standing"] == 12 and 0 < row["free_ns_p50"] <= row["free_ns_max"], row)
    # Two hardware queues: the other streams stand behind the first two, and are released one after the other.
    _, result = measure("stuck", "-n", "12", "-r", "1", env={"PEERLANE_SIM_QUEUES": "2"})
    check(result["rows"][0]["standing"] == 2, result["rows"])


def poke():
    _, result = measure("poke", "-n", "30", "-r", "2")
    ways = {(row["word"], row["wait"]) for row in result["rows"] if row["kind"] == "poke"}
    check(ways == {(word, wait) for word in ("gpu", "pinned") for wait in ("front_end", "kernel")}, ways)
    rates = {row["list_operations"]: row for row in result["rows"] if row["kind"] == "doorbell"}
    check(set(rates) == {1, 4, 32, 255}, rates)
    for row in rates.values():
        check(row["write_ns_p50"] > 0 and 1 <= row["writes_seen_p50"] <= row["writes"] and row["enqueue_ns_p50"] > 0, row)


def cost():
    _, result = measure("cost", "-n", "5", "-r", "2")
    names = {row["operation"] for row in result["rows"]}
    check({"kernel", "write64 here", "wait64 here, satisfied"} <= names, names)


def dma():
    """By a copy engine between two processes on one GPU; on two GPUs with the reason why not."""
    _, result = measure("pingpong", "--gpus", "0,0", "--arms", "peer,dma", "-i", "30", "-r", "2", "-b", "7", "-s", "8,64K")
    rows = [(row["arm"], row["size_bytes"]) for row in result["rows"]]
    check(rows == [("peer", 8), ("dma", 8), ("peer", 65536), ("dma", 65536)], rows)
    _, result = measure("pingpong", "--gpus", "0,1", "--arms", "peer,dma", "-i", "10", "-r", "2")
    arms = [row["arm"] for row in result["rows"]]
    reasons = [note for note in result["notes"] if "dma is left out: the dma executor is not available: " in note]
    check(arms == (["peer"] if reasons else ["peer", "dma"]), arms, result["notes"])


def dma_graphs():
    """By a copy engine in graphs: counted on two GPUs, by slots on one."""
    for gpus in ("0,1", "0,0"):
        _, result = measure("economy", "--gpus", gpus, "--arms", "graph-dma", "-i", "240", "-r", "2", "-b", "120", "--unroll", "60")
        check([(row["arm"], row["mode"]) for row in result["rows"]] == [("graph-dma", mode) for mode in ("performance", "economy")], result["rows"])


def device_halos():
    """By kernels that put and wait themselves, and by executor D; and no arm without channels."""
    where = ("--gpus", "0,0", "--arms", "normal,device,dma")
    _, result = measure("stencil", *where, "-n", "2,33", "-i", "24", "-r", "2", "-b", "5", env=DISORDER)
    check([(row["arm"], row["n"]) for row in result["rows"]] == [(arm, n) for n in (2, 33) for arm in ("normal", "device", "dma")], result["rows"])
    check(all(row["steps_checked_by_cpu"] == 24 for row in result["rows"]), result["rows"])
    _, result = measure("multigrid", *where, "-n", "16", "-i", "4", "-r", "2")
    check([row["arm"] for row in result["rows"]] == ["normal", "device", "dma"], result["rows"])
    _, result = measure("stencil", "-p", "4", "--gpus", "0", "--arms", "device", "-n", "12", "-i", "20", "-r", "2")
    check({row["grid"] for row in result["rows"]} == {"2x2"}, result["rows"])
    refuse(run("stencil", "-n", "16", "-i", "4", "--arms", "device", env={"PEERLANE_SIM_MODE": "mig"}), "DMA channels")


def kernel_put():
    for backend, words in (("dma", "a copy engine"), ("proxy", "the CPU's proxy: it was asked for")):
        done, result = measure("kernel-put", env={"PEERLANE_DEVICE_RINGS": backend})
        check(f"executed by {words}" in done.out, done.out)
        latencies = {(row["to"], row["scope"], row["size_bytes"]) for row in result["rows"] if row["kind"] == "latency"}
        check(latencies == {(place, scope, size) for place in ("device", "host") for scope in ("thread", "warp", "block")
                            for size in (64, 8192, 65536, 1048576)}, latencies)
        rates = [row for row in result["rows"] if row["kind"] == "rate"]
        check({row["blocks"] for row in rates} == {1, 4} and all(row["puts_per_s"] > 0 for row in rates), rates)
    refuse(run("kernel-put", "--blocks", "0"), "--blocks")


if __name__ == "__main__":
    OUT = sys.argv[1]
    globals()[sys.argv[2]]()
