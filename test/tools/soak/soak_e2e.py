#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How `peerlane soak` ends before its time: asked to, and killed.

usage: soak_e2e.py OUT_FOLDER CASE        one function below for each case
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from e2e import check, clean_environment  # noqa: E402

OUT = ""


def waits_for(question, seconds=120):
    end = time.monotonic() + seconds
    while not question():
        check(time.monotonic() < end, f"not within {seconds} s")
        time.sleep(0.05)


class Soak:
    """A soak of an hour in a folder of its own."""

    def __init__(self, folder, *options):
        self.folder, self.path = folder, os.path.join(folder, "soak.json")
        self.log = os.path.join(folder, "log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                [os.path.join(OUT, "peerlane"), "soak", "--minutes", "60", "--seed", "5", "--folder", folder, "--json", self.path, *options],
                env=clean_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def __enter__(self):
        try:
            waits_for(lambda: os.path.exists(self.path) or self.process.poll() is not None)
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.signal_children(signal.SIGCONT)  # what stands still does not see that it is alone
        self.process.kill()
        self.process.wait()

    def children(self):
        try:
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="utf-8") as file:
                main = file.read().split()
        except OSError:
            return []
        own = [int(one) for one in main]
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{thread}/children", encoding="utf-8") as file:
                own += [int(one) for one in file.read().split()]
        return own

    def signal_children(self, number):
        for child in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def result(self):
        with open(self.path, encoding="utf-8") as file:
            return json.load(file)

    def words(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read()


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def ends_when_asked():
    """Both signals: a summary, the counts, nothing that runs, no folder."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with tempfile.TemporaryDirectory() as folder, Soak(folder) as soak:
            waits_for(lambda: len(soak.children()) >= 2)  # pylint: disable=cell-var-from-loop
            time.sleep(4)
            children = soak.children()
            soak.process.send_signal(number)
            check(soak.process.wait(timeout=200) == 4, soak.process.returncode, soak.words()[-2000:])
            check("INTERRUPTED: nothing was broken until then" in soak.words(), soak.words()[-2000:])
            result = soak.result()
            check(result["passed"] is False and result["parameters"]["interrupted"] is True, result["parameters"])
            check(not result["notes"], result["notes"])
            counted = {row["part"] for row in result["rows"] if row["kind"] == "count"}
            check("store" in counted and not [row for row in result["rows"] if row["kind"] == "violation"], result["rows"])
            check(not [child for child in children if is_alive(child)], "a process is left")
            check(not [name for name in os.listdir(folder) if name.startswith("peerlane-soak-")], os.listdir(folder))


def leaves_a_file():
    """A run that is killed has written what it had until then, and leaves no process."""
    with tempfile.TemporaryDirectory() as folder, Soak(folder, "--only", "mappings") as soak:
        waits_for(soak.children)
        time.sleep(2)  # there is something to count

        def has_written():  # every 30 s; its load, all CPUs of the machine, stands still until then
            soak.signal_children(signal.SIGSTOP)
            return soak.result()["rows"]

        waits_for(has_written)
        check([row for row in soak.result()["rows"] if row["kind"] == "count"], soak.result()["rows"])
        soak.signal_children(signal.SIGCONT)
        children = soak.children()
        check(children, "nothing runs")
        soak.process.kill()
        soak.process.wait(timeout=60)
        result = soak.result()
        check(result["passed"] is False and result["notes"] == ["not over: these are the counts so far"], result["notes"])
        check(result["parameters"]["ran_seconds"] >= 29, result["parameters"])
        waits_for(lambda: not [child for child in children if is_alive(child)])


def says_early():
    """A file that cannot be written is told at once."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([os.path.join(OUT, "peerlane"), "soak", "--minutes", "60", "--json", os.path.join(folder, "none", "x.json")],
                              env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        check(done.returncode == 1 and "choose another --json FILE" in done.stderr, done.returncode, done.stderr)


if __name__ == "__main__":
    OUT = os.path.abspath(sys.argv[1])
    globals()[sys.argv[2]]()
