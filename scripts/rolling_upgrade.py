#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Upgrades a cluster of three servers from one release to another, one server at a time, and back, under load.

usage: rolling_upgrade.py OLD_PROGRAM NEW_PROGRAM [--etcd PROGRAM] [--seconds N] [--json FILE]

OLD_PROGRAM and NEW_PROGRAM are `peerlane` programs of the two releases: build the earlier one from its tag, or from the commit
that `git log -S'VERSION 0.2.0' -- CMakeLists.txt` finds, with -DPEERLANE_TESTS=OFF -DPEERLANE_PYTHON=OFF. Each phase lasts N
seconds (10). A client of each release puts and gets single values and lists without pause, in a pool with two copies. Each get is
compared with the acknowledged puts. At the end both clients read everything back. Exit code 1: a value was lost, an erased one came
back, or a request was refused.
"""
import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

KEYS = 60  # of each writer


RESERVED = []  # a socket for each port given, so that nobody else gets it before a server listens there


def free_port():
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    RESERVED.append(one)
    return one.getsockname()[1]


def run(program, *words, timeout=120):
    return subprocess.run([program, "store", *words], text=True, capture_output=True, timeout=timeout, check=False)


def version_of(program):
    return subprocess.run([program, "--version"], text=True, capture_output=True, timeout=60, check=True).stdout.strip()


class Cluster:
    def __init__(self, folder, etcd):
        self.folder = folder
        port, peers = free_port(), free_port()
        self.etcd_url = f"http://127.0.0.1:{port}"
        self.etcd = subprocess.Popen([etcd, "--data-dir", os.path.join(folder, "etcd"), "--listen-client-urls", self.etcd_url,
                                      "--advertise-client-urls", self.etcd_url, "--listen-peer-urls", f"http://127.0.0.1:{peers}",
                                      "--initial-advertise-peer-urls", f"http://127.0.0.1:{peers}", "--initial-cluster",
                                      f"default=http://127.0.0.1:{peers}", "--log-level", "error"],
                                     stdout=subprocess.DEVNULL, stderr=open(os.path.join(folder, "etcd.log"), "w", encoding="utf-8"))
        self.ports = {name: free_port() for name in "abc"}
        self.servers = {}

    def endpoint(self, name):
        return f"127.0.0.1:{self.ports[name]}"

    def start(self, name, program):
        log = open(os.path.join(self.folder, f"{name}.out"), "a", encoding="utf-8")
        self.servers[name] = subprocess.Popen(
            [program, "store", "serve", "--data", os.path.join(self.folder, name), "--listen", self.endpoint(name), "--cluster",
             self.etcd_url, "--name", name, "--admins", f"uid:{os.geteuid()},tcp", "--arena", "64M", "--chunk", "16M", "--extent-file", "16M"],
            stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.servers[name].stdout.readline()
        if "TCP" not in line:
            raise SystemExit(f"server {name} of {program} did not start: {line}, {self.folder}/{name}.out")

    def end(self, name, ending):
        process = self.servers.pop(name)
        process.send_signal(ending)
        process.wait(60)
        process.stdout.close()

    def settled(self, program):
        """Waits until every unit is on the live servers where it belongs. Counts tries and not time, because a virtual machine may pause for long."""
        text = ""
        for _ in range(6):
            done = run(program, "cluster", "rebalance", "--cluster", self.etcd_url, "--wait-s", "60")
            text = done.stdout + done.stderr
            if done.returncode == 0:
                return
        raise SystemExit(f"the cluster did not settle: {text}")

    def close(self):
        for name in list(self.servers):
            self.end(name, signal.SIGKILL)
        self.etcd.kill()
        self.etcd.wait()


class Writer(threading.Thread):
    """Puts and gets with the program of one release. A value names its writer, key and round."""

    def __init__(self, name, program, cluster, folder):
        super().__init__()
        self.name, self.program, self.cluster = name, program, cluster
        self.folder = os.path.join(folder, "writer-" + name)
        os.makedirs(self.folder)
        self.known, self.problems, self.puts, self.gets = {}, [], 0, 0
        self.slowest_s = 0.0
        self.stopping = threading.Event()
        self.random = random.Random(name)
        self.has_lists = "multi-put" in run(program, "--help").stdout
        self.retries = 0

    def value(self, key, turn):
        return f"{self.name} {key} {turn} ".encode() * (1 + (turn * 7 + len(key)) % 3000)

    def call(self, *words):
        """Runs a command with any of the servers. If the one that it names is gone, or ends while it lists the others, the command is
        repeated with another one; a long-lived client knows them all."""
        end = time.monotonic() + 90
        while True:
            began = time.monotonic()
            done = run(self.program, *words, "--connect", self.cluster.endpoint(self.random.choice("abc")))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            is_about_server = any(word in done.stderr for word in ("refused", "reset", "closed", "ended the connection", "shutting down"))
            if done.returncode == 0 or time.monotonic() > end or not is_about_server:
                return done
            self.retries += 1

    def file(self, name, content=None):
        path = os.path.join(self.folder, name)
        if content is not None:
            with open(path, "wb") as out:
                out.write(content)
        return path

    def put(self, turn):
        keys = self.random.sample(range(KEYS), 8 if self.has_lists and turn % 3 == 0 else 1)
        names = [f"{self.name}/{i}" for i in keys]
        files = [self.file(f"in{i}", self.value(f"{self.name}/{i}", turn)) for i in keys]
        if len(keys) == 1:
            done = self.call("put", "upgrade", names[0], files[0])
        else:
            done = self.call("multi-put", "upgrade", *(f"{name}={path}" for name, path in zip(names, files)))
        if done.returncode != 0:
            self.problems.append(f"put of {names}: {done.stderr[-300:]}")
            return
        self.puts += len(keys)
        self.known.update({name: turn for name in names})

    def check(self, name, turn):
        path = self.file("out")
        done = self.call("get", "upgrade", name, path, "--verify")
        if done.returncode != 0:
            self.problems.append(f"get of {name}: {done.stderr[-300:]}")
            return
        self.gets += 1
        with open(path, "rb") as back:
            content = back.read()
        if content != self.value(name, turn):
            self.problems.append(f"{name} is \"{content[:40]!r}\", not that of turn {turn}")

    def run(self):
        turn = 0
        while not self.stopping.is_set():
            turn += 1
            self.put(turn)
            if self.known:
                name = self.random.choice(sorted(self.known))
                self.check(name, self.known[name])


def main():
    parser = argparse.ArgumentParser(description="Upgrades a cluster from one release to another, and back, under load.")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--etcd", default="/usr/bin/etcd")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json")
    given = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="peerlane-upgrade-")
    cluster = Cluster(folder, given.etcd)
    report = {"old": version_of(given.old), "new": version_of(given.new), "phases": []}
    writers = []
    try:
        for name in "abc":
            cluster.start(name, given.old)
        cluster.settled(given.old)
        made = run(given.old, "pool", "create", "upgrade", "--copies", "2", "--durability", "logged", "--connect", cluster.endpoint("a"))
        if made.returncode != 0:
            raise SystemExit(made.stderr)
        writers = [Writer(name, program, cluster, folder) for name, program in (("old", given.old), ("new", given.new))]
        for one in writers:
            one.start()
        # Upgrade: two servers stop normally, one is killed. Downgrade: the same.
        steps = [(name, program, ending) for program in (given.new, given.old)
                 for name, ending in (("a", signal.SIGTERM), ("b", signal.SIGKILL), ("c", signal.SIGTERM))]
        for name, program, ending in steps:
            time.sleep(given.seconds)
            before = [(one.puts, one.gets) for one in writers]
            began = time.monotonic()
            cluster.end(name, ending)
            cluster.start(name, program)
            cluster.settled(given.new)
            phase = {"server": name, "to": version_of(program), "ended_by": ending.name, "settled_after_s": round(time.monotonic() - began, 1),
                     "puts_meanwhile": [one.puts - puts for one, (puts, _) in zip(writers, before)],
                     "gets_meanwhile": [one.gets - gets for one, (_, gets) in zip(writers, before)]}
            report["phases"].append(phase)
            print(json.dumps(phase), flush=True)
        time.sleep(given.seconds)
    except SystemExit as reason:
        report["stopped_by"] = str(reason)
        print(reason, file=sys.stderr)
    finally:
        for one in writers:
            one.stopping.set()
        for one in writers:
            one.join()
        try:
            for one in writers:
                for reader in (given.old, given.new):
                    one.program = reader
                    for name, turn in sorted(one.known.items()):
                        one.check(name, turn)
        finally:
            cluster.close()
    report["writers"] = [{"release": one.name, "puts": one.puts, "gets": one.gets, "slowest_command_s": round(one.slowest_s, 1),
                          "asked_another_server": one.retries, "problems": one.problems} for one in writers]
    print(json.dumps(report["writers"], indent=1))
    if given.json:
        with open(given.json, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)
            out.write("\n")
    bad = "stopped_by" in report or any(one.problems for one in writers) or not all(one.puts for one in writers)
    if not bad:
        shutil.rmtree(folder)
    else:
        print(f"logs are in {folder}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
