#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the store with a raw TCP socket, RocksDB, LMDB and Mooncake's store, in one run.

    scripts/store_compare.py [--build build/release] [--mooncake VENV] [--ucx] [--json FILE] [--rounds N] [--seconds S]

The contenders of each part take turns in every round, so that a busy machine affects all of them; a ratio is the median of the ratios in
each round. Server and client are always two processes. RocksDB and LMDB need `store_bench` (-DPEERLANE_BENCH=ON). Mooncake needs a virtual
environment with mooncake-transfer-engine-non-cuda. Contenders that are missing are left out, with the reason in the notes of the result.
--ucx: compares the store's UCX transport, over any transport that UCX finds here, with the store's own TCP.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALL, MIDDLE, LARGE = 4 << 10, 1 << 20, 128 << 20
CALL_BYTES = 4 << 20  # of the raw socket: longer calls gain nothing
PORT = 17800  # Mooncake's, and the next three


def quantile(samples, fraction):
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


@dataclass
class Turn:
    """The result of one turn of one contender."""

    rate: float  # in the part's unit
    p50_ns: float = 0
    p99_ns: float = 0


@dataclass
class Contender:
    name: str
    turn: object  # () -> Turn
    turns: list = field(default_factory=list)


@dataclass
class Part:
    name: str
    unit: str
    contenders: list
    # (of, to, aim): the ratio of the first rate to the second, and the least that it should be (None: no aim)
    ratios: list


def timed_turn(call, seconds, least, bytes_each=None):
    """Calls until the time is over; the rate is in GB/s if `bytes_each` is given, else in calls a second."""
    taken, start = [], time.perf_counter()
    while len(taken) < least or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        call(len(taken))
        taken.append(time.perf_counter() - before)
    rate = len(taken) / sum(taken)
    return Turn(rate * bytes_each / 1e9 if bytes_each else rate, quantile(taken, 0.5) * 1e9, quantile(taken, 0.99) * 1e9)


# ---- a raw socket ---------------------------------------------------------------------------------------------------------


def swallow(listener):
    """Receives values and acknowledges each with a byte, until the other end closes."""
    connection, _ = listener.accept()
    room = memoryview(bytearray(LARGE))
    while True:
        done = 0
        while done < LARGE:
            got = connection.recv_into(room[done : done + CALL_BYTES])
            if got == 0:
                return
            done += got
        connection.send(b"k")


class RawSocket:
    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.other = multiprocessing.get_context("fork").Process(target=swallow, args=(listener,), daemon=True)
        self.other.start()
        self.socket = socket.create_connection(listener.getsockname())
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.close()
        self.value = memoryview(os.urandom(1 << 20) * (LARGE >> 20))
        self.put(0)  # so that its pages are allocated

    def put(self, _):
        for offset in range(0, LARGE, CALL_BYTES):
            self.socket.sendall(self.value[offset : offset + CALL_BYTES])
        if self.socket.recv(1) != b"k":
            raise RuntimeError("the raw socket's other end is gone")

    def close(self):
        self.socket.close()
        self.other.join()


# ---- the store ------------------------------------------------------------------------------------------------------------


class Store:
    def __init__(self, program, folder, *more):
        self.program, self.folder = program, folder
        self.server = subprocess.Popen(
            [program, "store", "serve", "--data", folder / "data", "--listen", "127.0.0.1:0", "--arena", "1G", "--chunk", "64M",
             "--log-level", "error", "--admins", f"uid:{os.geteuid()},tcp", *more], stdout=subprocess.PIPE, text=True)
        line = self.server.stdout.readline()
        if "TCP " not in line:
            raise RuntimeError("the store's server did not start")
        self.tcp, self.socket = line.split("TCP ")[1].strip(), folder / "data" / "store.sock"
        self.machine = {}

    def perf(self, test, size, seconds, reach, **options):
        out = self.folder / "perf.json"
        words = [self.program, "store", "perf", "--test", test, "--value_length", size, "--server", reach, "--duration",
                 max(1, round(seconds)), "--json", out]
        for name, value in options.items():
            words += [f"--{name}", value]
        environment = {"PEERLANE_STORE_UCX": "on" if options.get("require-path") == "ucx" else "off"}
        subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
        result = json.loads(out.read_text())
        self.machine = result["machine"]
        row = result["rows"][0]
        self.path = row["path"]
        rate = row["bandwidth_gb_per_s"] if size > SMALL else row["operations_per_s"]
        return Turn(rate, row["latency_ns_p50"], row["latency_ns_p99"])

    def close(self):
        self.server.terminate()
        self.server.wait()


# ---- Mooncake -------------------------------------------------------------------------------------------------------------

MOONCAKE_NODE = """
import json, sys, time
from mooncake.store import MooncakeDistributedStore
port, offered, buffers = map(int, sys.argv[1:4])
store = MooncakeDistributedStore()
code = store.setup(f"127.0.0.1:{port}", "http://127.0.0.1:%d/metadata" % int(sys.argv[5]), offered, buffers, "tcp", "",
                   "127.0.0.1:" + sys.argv[4])
print("ready" if code == 0 else f"setup failed with {code}", flush=True)
value, number = {}, 0
for line in sys.stdin:
    what, size, seconds, least = json.loads(line)
    data = value.setdefault(size, bytes(size))
    taken, names, start = [], [], time.perf_counter()
    while len(taken) < least or time.perf_counter() - start < seconds:
        name = f"v{number}"
        number += 1
        if what == "get":
            store.put(name, data)
        before = time.perf_counter()
        if what == "put":
            ok = store.put(name, data) == 0
        else:
            ok = len(store.get(name)) == size
        taken.append(time.perf_counter() - before)
        if not ok:
            raise SystemExit("Mooncake refused a " + what)
        names.append(name)
        if size > 1 << 20:
            store.remove(names.pop(), True)  # also while a reader has a lease
    for name in names:
        store.remove(name, True)
    print(json.dumps(taken), flush=True)
"""


class Mooncake:
    """A master, a process that offers memory, and a client in a separate process, as with the store."""

    def __init__(self, venv, folder):
        programs, self.processes = Path(venv).resolve() / "bin", []
        quiet = {**os.environ, "GLOG_minloglevel": "3", "MC_LOG_LEVEL": "ERROR"}
        self.log = folder / "mooncake.log"
        log = open(self.log, "w")  # noqa: SIM115 - the processes write to it until close()
        options = {"cwd": folder, "env": quiet, "stderr": log, "text": True}
        master = subprocess.Popen([programs / "mooncake_master", f"--rpc_port={PORT}", "--enable_http_metadata_server=true",
                                   f"--http_metadata_server_port={PORT + 1}", f"--metrics_port={PORT + 2}"], stdout=log, **options)
        self.processes.append(master)
        time.sleep(2)  # it does not report when it is ready

        def node(port, offered, buffers):
            made = subprocess.Popen([programs / "python", "-c", MOONCAKE_NODE, str(port), str(offered), str(buffers), str(PORT),
                                     str(PORT + 1)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
            self.processes.insert(0, made)
            line = self.line_of(made)
            if line != "ready":
                self.close()
                raise RuntimeError(line or self.last_words())
            return made

        node(PORT + 12, 1 << 30, 16 << 20)
        self.client = node(PORT + 13, 0, 512 << 20)

    @staticmethod
    def line_of(process):
        """Its next line that this script wrote; the library also writes to standard output."""
        for line in process.stdout:
            line = line.strip()
            if line == "ready" or line.startswith(("setup failed", "[")):
                if not line.startswith("[") or line[1:2].isdigit():
                    return line
        return ""

    def last_words(self):
        lines = self.log.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "without a word")

    def turn(self, kind, size, seconds):
        self.client.stdin.write(json.dumps([kind, size, seconds, 3 if size == LARGE else 50]) + "\n")
        self.client.stdin.flush()
        line = self.line_of(self.client)
        if not line:
            raise RuntimeError("Mooncake's client ended: " + self.last_words())
        taken = json.loads(line)
        rate = len(taken) / sum(taken)
        return Turn(rate * size / 1e9 if size > SMALL else rate, quantile(taken, 0.5) * 1e9, quantile(taken, 0.99) * 1e9)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()


# ---- the run --------------------------------------------------------------------------------------------------------------


def rival(bench, name, folder, seconds):
    """One client of RocksDB or LMDB that syncs each put of 4 KiB."""
    done = subprocess.run([bench, "--dir", folder / "rival", "--seconds", str(seconds), "--rival", name], check=True,
                          stdout=subprocess.PIPE, text=True)
    return Turn(float(done.stdout))


def parts_of(store, raw, mooncake, rivals, seconds):
    level = {"durability": "volatile"}
    large = {"elements": 2, "depth": 1, **level}
    middle = {"elements": 100, "depth": 1, **level}
    parts = [
        Part("put of 128 MiB", "GB/s",
             [Contender("raw socket", lambda: timed_turn(raw.put, seconds, 3, LARGE)),
              Contender("store, TCP", lambda: store.perf("put", LARGE, seconds, store.tcp, **large)),
              Contender("store, shm-direct", lambda: store.perf("put", LARGE, seconds, store.socket, **large))],
             [("store, TCP", "raw socket", 0.75)]),
        Part("get of 128 MiB", "GB/s",
             [Contender("raw socket", lambda: timed_turn(raw.put, seconds, 3, LARGE)),
              Contender("store, TCP", lambda: store.perf("get", LARGE, seconds, store.tcp, **large))], [("store, TCP", "raw socket", 0.75)]),
        Part("put of 4 KiB, volatile", "op/s",
             [Contender("store, 64 under way, unix socket",
                        lambda: store.perf("put", SMALL, seconds, store.socket, elements=10000, depth=64, **level)),
              Contender("store, 64 under way, TCP",
                        lambda: store.perf("put", SMALL, seconds, store.tcp, elements=10000, depth=64, **level)),
              Contender("store, one at a time, TCP",
                        lambda: store.perf("put", SMALL, seconds, store.tcp, elements=10000, depth=1, **level))], []),
        Part("put of 4 KiB, durable", "op/s",
             [Contender("store, 32 clients, one at a time each",
                        lambda: store.perf("put", SMALL, seconds, store.socket, elements=10000, cores=32, depth=1,
                                           durability="durable"))] +
             [Contender(f"{name}, one client", lambda call=call: call(seconds)) for name, call in rivals.items()],
             [("store, 32 clients, one at a time each", f"{name}, one client", 3.0) for name in rivals]),
        Part("put of 1 MiB", "GB/s",
             [Contender("store, TCP", lambda: store.perf("put", MIDDLE, seconds, store.tcp, **middle)),
              Contender("store, shm-direct", lambda: store.perf("put", MIDDLE, seconds, store.socket, **middle))], []),
    ]
    if mooncake:
        for part, kind, size in ((parts[0], "put", LARGE), (parts[1], "get", LARGE), (parts[2], "put", SMALL), (parts[4], "put", MIDDLE)):
            part.contenders.append(Contender("Mooncake", lambda kind=kind, size=size: mooncake.turn(kind, size, seconds)))
        parts[0].ratios += [("store, TCP", "Mooncake", 5.0), ("store, shm-direct", "Mooncake", 5.0)]
        parts[2].ratios.append(("store, 64 under way, TCP", "Mooncake", 5.0))
        parts[2].ratios.append(("store, one at a time, TCP", "Mooncake", 5.0))
        parts[4].ratios += [("store, TCP", "Mooncake", 5.0), ("store, shm-direct", "Mooncake", 5.0)]
    return parts


def ucx_parts_of(store, seconds):
    def turn(test, size, **more):
        return store.perf(test, size, seconds, store.tcp, elements=2 if size == LARGE else 100, depth=1, durability="volatile", **more)

    parts = []
    for size, name in ((LARGE, "128 MiB"), (MIDDLE, "1 MiB"), (64 << 10, "64 KiB")):
        for test in ("put", "get"):
            parts.append(Part(f"{test} of {name}", "GB/s",
                              [Contender("store, TCP", lambda test=test, size=size: turn(test, size)),
                               Contender("store, UCX transport", lambda test=test, size=size: turn(test, size, **{"require-path": "ucx"}))],
                              [("store, UCX transport", "store, TCP", None)]))
    return parts


def rows_of(part):
    by_name = {one.name: one for one in part.contenders}
    rows = [{"kind": "contender", "part": part.name, "contender": one.name, "unit": part.unit,
             "median": statistics.median(turn.rate for turn in one.turns), "best": max(turn.rate for turn in one.turns),
             "latency_ns_p50": statistics.median(turn.p50_ns for turn in one.turns),
             "latency_ns_p99": statistics.median(turn.p99_ns for turn in one.turns), "series": f"{part.name}/{one.name}"}
            for one in part.contenders]
    for measured, base, aim in part.ratios:
        ratio = statistics.median(a.rate / b.rate for a, b in zip(by_name[measured].turns, by_name[base].turns))
        wanted = {} if aim is None else {"aim": aim, "met": ratio >= aim}
        rows.append({"kind": "ratio", "part": part.name, "contender": measured, "to": base, "ratio": ratio, **wanted})
    return rows


def show(rows):
    for row in rows:
        if row["kind"] == "ratio":
            aim = f" (aim {row['aim']:g})" if "aim" in row else ""
            print(f"{row['part']}: {row['contender']} / {row['to']} = {row['ratio']:.2f}{aim}")
        else:
            latency = f", p50 {row['latency_ns_p50'] / 1e3:.1f} us, p99 {row['latency_ns_p99'] / 1e3:.1f} us" if row["latency_ns_p50"] else ""
            print(f"{row['part']}: {row['contender']}: {row['median']:.4g} {row['unit']}{latency}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="the build folder [build/release]")
    parser.add_argument("--mooncake", metavar="VENV", help="virtual environment that has Mooncake [without Mooncake]")
    parser.add_argument("--ucx", action="store_true", help="the UCX transport beside TCP instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a result file")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender [5]")
    parser.add_argument("--seconds", type=float, default=2, help="of a turn [2]")
    parser.add_argument("--folder", type=Path, help="where data files go: the disk that is measured [the system's temporary folder]")
    arguments = parser.parse_args()
    notes, rivals, mooncake = [], {}, None
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="store-compare-", dir=arguments.folder))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        raw = RawSocket()
        stack.callback(raw.close)
        store = Store(arguments.build / "out" / "peerlane", folder, *(["--ucx", "on"] if arguments.ucx else []))
        stack.callback(store.close)
        bench = arguments.build / "bench" / "store_bench"
        for name, key in () if arguments.ucx else (("RocksDB", "rocksdb"), ("LMDB", "lmdb")):
            try:
                rival(bench, key, folder, 0.01)
                rivals[name] = lambda seconds, key=key: rival(bench, key, folder, seconds)
            except (OSError, subprocess.CalledProcessError) as error:
                notes.append(f"{name} was left out: {error}")
        try:
            if arguments.mooncake:
                mooncake = Mooncake(arguments.mooncake, folder)
                stack.callback(mooncake.close)
            elif not arguments.ucx:
                notes.append("Mooncake was left out: --mooncake was not given")
        except (OSError, RuntimeError) as error:
            notes.append(f"Mooncake was left out: {error}")
        parts = ucx_parts_of(store, arguments.seconds) if arguments.ucx else parts_of(store, raw, mooncake, rivals, arguments.seconds)
        load = os.getloadavg()[0]
        rows = []
        for part in parts:
            for one in part.contenders:
                one.turn()  # so that memory, files and connections exist
            for _ in range(arguments.rounds):
                for one in part.contenders:
                    one.turns.append(one.turn())
            rows += rows_of(part)
        show(rows)
    for note in notes:
        print(note)
    if not arguments.json:
        return 0
    result = {"schema": "peerlane-result/1", "tool": "store_compare", "command_line": [Path(sys.argv[0]).name, *sys.argv[1:]],
              "simulated": False, "passed": True, "machine": store.machine, "units": {}, "notes": notes, "rows": rows,
              "parameters": {"rounds": arguments.rounds, "seconds_a_turn": arguments.seconds, "load_average_at_start": load,
                             "small_bytes": SMALL, "large_bytes": LARGE},
              "samples": [{"series": f"{part.name}/{one.name}", f"samples_{part.unit}": [round(turn.rate, 6) for turn in one.turns],
                           "samples_taken": len(one.turns), "samples_kept": len(one.turns), "thinned": False}
                          for part in parts for one in part.contenders]}
    arguments.json.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
