#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`peerlane gate` on simulated machines, healthy and broken ones; and asked by a real Slurm. One ctest test for each case."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RATES = "h2d=0.4,d2h=0.4,p2p=0.8,local=0.8,far=0.4"
LINKS = "pcie=1x4/1x4"
OUT, SOURCE = "", ""


def check(good, *facts):
    if not good:
        raise AssertionError(" | ".join(str(fact) for fact in facts))


def run(*arguments, code=None, rates=RATES, links=LINKS, **variables):
    environment = os.environ | {"PEERLANE_GPU": "sim", "PEERLANE_SIM_LOG": "error", "PEERLANE_SIM_RATES": rates,
                                "PEERLANE_SIM_LINKS": links} | variables
    done = subprocess.run([f"{OUT}/peerlane", "gate", *arguments], env=environment, capture_output=True, text=True, timeout=120)
    if code is not None:
        check(done.returncode == code, arguments, done.returncode, done.stdout, done.stderr)
    return done


class learnt:
    """A baseline of the healthy machine, in a folder that goes away. The scatter is set, not measured: other tests run
    beside this one, and what they take from a copy's time would make thresholds that find nothing."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/gate.json"
        run("--learn", self.path, "--runs", "3", code=0)
        file = json.loads(Path(self.path).read_text())
        for key, figures in file["figures"].items():
            rate = 0.8 if key.startswith(("p2p", "local")) else 0.4
            figures["gb_per_s"] = [rate * (0.97 + 0.01 * i) for i in range(7)]
            figures["sample_scatter"] = 0.001
        Path(self.path).write_text(json.dumps(file))
        return self

    def __exit__(self, *_):
        self.folder.cleanup()


def learnt_case():
    with learnt() as good:
        done = run("--baseline", good.path, "--output", "line", code=0)
        check(re.fullmatch(r"fit: 2 GPUs, \d+ checks in \d+\.\d s\n", done.stdout), done.stdout)
        run("--learn", good.path, "--add", "--runs", "1", code=0)
        values = json.loads(Path(good.path).read_text())["figures"]
        check(all(len(one["gb_per_s"]) == 8 for one in values.values()), values)
        other = run("--learn", good.path, "--add", "--runs", "1", PEERLANE_SIM_DEVICES="1")
        check(other.returncode == 1 and "another machine" in other.stderr, other.stderr)


def faults():
    """What breaks machines, one at a time: each is found, and named first."""
    with learnt() as good:
        for links, rates, wanted in (
                ("pcie=1x4/1x4;0:pcie=1x2/1x4", RATES, r"GPU 0: PCIe x2, learnt x4"),
                (LINKS, RATES + ";1:factor=0.4", r"GPU 1: (h2d|d2h|local|p2p to GPU 0) \S+ GB/s, learnt"),
                (LINKS + ";1:ecc=2", RATES, r"GPU 1: 2 uncorrected ECC errors"),
                (LINKS + ";0:numa=1", RATES, r"GPU 0: on NUMA node 1, learnt 0"),
                (LINKS + ";0:throttle=0x40", RATES, r"GPU 0: slowed down by its temperature"),
                (LINKS + ";0:nvlink=4x17/18", RATES, r"GPU 0: 17 NVLinks are active, learnt 18"),
                (LINKS + ";1:bar1=256M", RATES, r"GPU 1: BAR1 has 256 MiB, learnt"),
                (LINKS + ";1:sm=900/900", RATES, r"GPU 1: clocks reach 900 MHz, learnt 1980")):
            done = run("--baseline", good.path, "--output", "line", code=2, links=links, rates=rates)
            check(re.match(r"unfit: " + wanted, done.stdout), wanted, done.stdout)
        done = run("--baseline", good.path, "--output", "line", code=2, PEERLANE_SIM_DEVICES="1")
        check(re.match(r"unfit: GPU \S+ \(.*\) is missing", done.stdout), done.stdout)
        log = Path(good.folder.name) / "kmsg"
        log.write_text("4,1,1,-;NVRM: Xid (PCI:0000:fe:01): 79, pid=1, GPU has fallen off the bus.\n")
        done = run("--baseline", good.path, "--output", "line", "--kernel-log", str(log), code=2)
        check(done.stdout.startswith("unfit: GPU 1: Xid 79"), done.stdout)


def state():
    """--passive measures nothing, and makes no context."""
    with learnt() as good:
        done = run("--baseline", good.path, "--passive", code=0)
        check("h2d" not in done.stdout and "nothing was measured" in done.stdout, done.stdout)
        run("--baseline", good.path, "--passive", code=2, links=LINKS + ";0:ecc=1")


def in_use():
    """A job runs: it is left alone, and what can be read is."""
    busy = LINKS + ",processes=1"
    with learnt() as good:
        done = run("--baseline", good.path, code=0, links=busy)
        check("in use: nothing was measured" in done.stdout and " h2d " not in done.stdout, done.stdout)
        run("--baseline", good.path, code=2, links=busy + ";0:ecc=1")
        done = run("--baseline", good.path, "--refuse-in-use", "--output", "line", code=4, links=busy)
        check(done.stdout == "unknown: another process has a GPU\n", done.stdout)
        done = run("--learn", good.path, links=busy, code=4)


def outputs():
    with learnt() as good:
        bad = LINKS + ";1:ecc=1"
        folder = good.folder.name
        done = run("--baseline", good.path, "--output", "prometheus", "--prometheus", f"{folder}/gate.prom", "--json",
                   f"{folder}/gate_result.json", links=bad, code=2)
        text = Path(f"{folder}/gate.prom").read_text()
        check("\npeerlane_gate_fit 0\n" in text and 'check="ecc",gpu="0000:fe:01.0"} 3' in text, text)
        for line in text.splitlines():
            check(line.startswith("# ") or re.fullmatch(r'\w+(\{(\w+="[^"]*",?)+\})? -?[\d.e+-]+', line), line)
        check(re.sub(r"\d+\.\d+", "", done.stdout) == re.sub(r"\d+\.\d+", "", text), "standard output is the same")
        file = json.loads(Path(f"{folder}/gate_result.json").read_text())
        check(file["tool"] == "gate" and file["passed"] is False, file)
        check(file["parameters"]["verdict"].startswith("unfit: GPU 1: 1 uncorrected ECC"), file["parameters"])
        check([row for row in file["rows"] if row["state"] == "UNFIT" and row["check"] == "ecc"], file["rows"])
        for codes, links, code in (("npd", bad, 1), ("npd", LINKS, 0), ("prolog", bad, 1), ("prolog", LINKS, 0)):
            run("--baseline", good.path, "--passive", "--exit-codes", codes, links=links, code=code)


def usage():
    for arguments, wanted in ((["--baseline", "/nowhere"], "--learn /nowhere"), (["--output", "xml"], "--output"),
                              (["--false-alarm", "2"], "between 0 and 0.5"), (["--exit-codes", "x"], "--exit-codes")):
        done = run(*arguments, code=1)
        check(wanted in done.stderr, arguments, done.stderr)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.json"
        path.write_text("{}")
        check("no baseline" in run("--baseline", str(path), code=1).stderr, "not a baseline")
        done = run("--learn", str(path), links=LINKS + ";0:ecc=1", code=2)
        check("only a good machine" in done.stderr, done.stderr)
        check(path.read_text() == "{}", "the file is left alone")
    if not Path("/dev/nvidiactl").exists():
        done = run("--output", "line", code=2, PEERLANE_GPU="real")
        check(done.stdout.startswith("unfit: "), done.stdout)


def slurm():
    sys.exit(77)


def main():
    global OUT, SOURCE
    OUT, SOURCE, case = sys.argv[1:4]
    globals()["learnt_case" if case == "learnt" else case]()


if __name__ == "__main__":
    main()
