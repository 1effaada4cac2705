#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how often `peerlane gate` calls a healthy machine unfit, and which faults it finds, on the simulated GPU with noise.

    scripts/gate_false_alarms.py [--build build/release] [--runs 200] [--fault-runs 10] [--json FILE]

The machine has two GPUs. Its rates vary by 2 % from run to run and again by 2 % from copy to copy, by a seed for each run. The
baseline is learnt from 16 runs with other seeds. Then the gate runs many times on the healthy machine, and some times with each fault.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RATES = "h2d=0.4,d2h=0.4,p2p=0.8,local=0.8,noise=0.02"
LINKS = "pcie=5x16/5x16"
LEARNT_RUNS = 16
FIRST_SEED = 1000  # of the judged runs; the seeds of the learning runs begin at 1

# Name, links, changes of the healthy rates, further arguments and variables, the check that should fail first.
FAULTS = (
    ("PCIe link at x8, half the rate", ";0:pcie=5x8/5x16", ";0:factor=0.5", (), {}, "pcie_link"),
    ("PCIe link at x8, only the width says so", ";0:pcie=5x8/5x16", "", (), {}, "pcie_link"),
    ("one GPU at half its rates", "", ";1:factor=0.5", (), {}, "rate"),
    ("one GPU 20 % slow", "", ";1:factor=0.8", (), {}, "rate"),
    ("one GPU 10 % slow", "", ";1:factor=0.9", (), {}, "rate"),
    ("uncorrected ECC error", ";1:ecc=1", "", (), {}, "ecc"),
    ("GPU on another NUMA node", ";0:numa=1", "", (), {}, "numa"),
    ("17 of 18 NVLinks", ";0:nvlink=4x17/18", "", (), {}, "nvlink"),
    ("slowed down by its temperature", ";0:throttle=0x40", "", (), {}, "clocks"),
    ("BAR1 of 256 MiB", ";1:bar1=256M", "", (), {}, "bar1"),
    ("one GPU is missing", "", "", (), {"PEERLANE_SIM_DEVICES": "1"}, "gpus"),
    ("Xid 79 in the kernel's log", "", "", ("--kernel-log", "XID"), {}, "xid"),
)
RATE_CHECKS = {"h2d", "d2h", "local", "p2p"}


class Gate:
    def __init__(self, build, folder):
        self.program, self.folder = build / "out" / "peerlane", folder
        self.baseline, self.result = f"{folder}/baseline.json", f"{folder}/result.json"
        self.log = f"{folder}/kmsg"
        Path(self.log).write_text("4,1,1,-;NVRM: Xid (PCI:0000:fe:01): 79, pid=1, GPU has fallen off the bus.\n")

    def ask(self, seed, *arguments, links="", rates="", **variables):
        environment = os.environ | {"PEERLANE_GPU": "sim", "PEERLANE_SIM_LOG": "error", "PEERLANE_SIM_LINKS": LINKS + links,
                                    "PEERLANE_SIM_RATES": f"{RATES},seed={seed}{rates}"} | variables
        arguments = [self.log if one == "XID" else one for one in arguments]
        return subprocess.run([str(self.program), "gate", *arguments], env=environment, capture_output=True, text=True, timeout=120)

    def learn(self):
        for seed in range(1, LEARNT_RUNS + 1):
            done = self.ask(seed, "--learn", self.baseline, "--runs", "1", *(["--add"] if seed > 1 else []))
            if done.returncode != 0:
                sys.exit(f"learning failed: {done.stderr}")

    def judge(self, name, runs, first_seed, links="", rates="", arguments=(), variables=None):
        row = {"machine": name, "runs": runs, "unfit": 0, "unknown": 0, "checks": [], "example": "", "seconds_max": 0.0}
        checks = collections.Counter()
        for seed in range(first_seed, first_seed + runs):
            done = self.ask(seed, "--baseline", self.baseline, "--output", "line", "--json", self.result, *arguments, links=links,
                            rates=rates, **(variables or {}))
            if done.returncode not in (0, 2, 3):
                sys.exit(f"{name}: exit code {done.returncode}: {done.stderr}")
            result = json.loads(Path(self.result).read_text())
            row["seconds_max"] = max(row["seconds_max"], result["parameters"]["seconds"])
            row["unfit"] += done.returncode == 2
            row["unknown"] += done.returncode == 3
            if done.returncode == 2:
                worst = [one for one in result["rows"] if one.get("state") == "UNFIT"]
                checks[worst[0]["check"]] += 1
                row["example"] = row["example"] or done.stdout.strip()
            self.machine = result["machine"]
        row["checks"] = [check for check, _ in checks.most_common()]
        print(f"{name:45} {row['unfit']:4} of {runs:4}  {', '.join(row['checks']):20} {row['example'][:90]}", flush=True)
        return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--fault-runs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gate = Gate(options.build, folder)
        gate.learn()
        rows = [gate.judge("healthy", options.runs, FIRST_SEED)]
        for i, (name, links, rates, arguments, variables, wanted) in enumerate(FAULTS):
            row = gate.judge(name, options.fault_runs, FIRST_SEED * (i + 2), links, rates, arguments, variables)
            row["wanted"] = wanted
            rows.append(row)
    result = {"schema": "peerlane-result/1", "tool": "gate_false_alarms", "command_line": [Path(sys.argv[0]).name, *sys.argv[1:]],
              "simulated": True, "passed": rows[0]["unfit"] == 0, "machine": gate.machine, "units": {},
              "parameters": {"rates": RATES, "links": LINKS, "learnt_runs": LEARNT_RUNS, "false_alarm": 1e-4},
              "notes": ["The simulated GPU plays rates, noise and faults; nothing here is a GPU's."], "rows": rows, "samples": []}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
