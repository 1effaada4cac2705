#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`peerlane gate` on simulated machines, healthy and broken ones; and asked by a real Slurm. One ctest test for each case."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import slurm_cluster  # noqa: E402
from slurm_cluster import wait_for  # noqa: E402

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
        for number, (key, figures) in enumerate(file["figures"].items()):
            rate = 0.8 if key.startswith(("p2p", "local")) else 0.4
            figures["gb_per_s"] = [rate * (0.97 + 0.01 * ((i * (number % 6 + 1)) % 7)) for i in range(7)]
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
        # A log and a baseline by pipe, whose writers take their time. A file that was named must be a log, with an end.
        pipes = 'exec "$0" gate --passive --output line --baseline <(sleep 0.3; cat "$1") --kernel-log <(sleep 0.3; cat "$2")'
        environment = os.environ | {"PEERLANE_GPU": "sim", "PEERLANE_SIM_RATES": RATES, "PEERLANE_SIM_LINKS": LINKS}
        done = subprocess.run(["bash", "-c", pipes, f"{OUT}/peerlane", good.path, str(log)], env=environment,
                              capture_output=True, text=True, timeout=60)
        check(done.returncode == 2 and done.stdout.startswith("unfit: GPU 1: Xid 79"), done.stdout, done.stderr)
        for path in (good.folder.name, "/dev/zero"):
            done = run("--baseline", good.path, "--passive", "--kernel-log", path, code=1)
            check(f"cannot read the kernel log {path}" in done.stderr and "fit" not in done.stdout, done.stdout, done.stderr)


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
                              (["--false-alarm", "2"], "between 0 and 0.5"), (["--exit-codes", "x"], "--exit-codes"),
                              (["--prometheus", "-"], "--output prometheus"), (["--learn", "-"], "name a file")):
        done = run(*arguments, code=1)
        check(wanted in done.stderr, arguments, done.stderr)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.json"
        path.write_text("{}")
        check("not a baseline file" in run("--baseline", str(path), code=1).stderr, "not a baseline")
        done = run("--learn", str(path), links=LINKS + ";0:ecc=1", code=2)
        check("only a good machine" in done.stderr, done.stderr)
        check(path.read_text() == "{}", "the file is left alone")
    if not Path("/dev/nvidiactl").exists():
        done = run("--output", "line", code=2, PEERLANE_GPU="real")
        check(done.stdout.startswith("unfit: "), done.stdout)


# ---- schedulers -------------------------------------------------------------------------------------------------------------


class Slurm(slurm_cluster.Cluster):
    """One node of this machine's name, with the gate's scripts as packaging/slurm has them."""

    def __init__(self, folder):
        self.node = socket.gethostname().split(".")[0]
        control, daemon = slurm_cluster.free_ports(2)
        super().__init__(folder, {self.node: daemon}, control, cpus=1, more=f"""
Prolog={folder}/peerlane-gate-prolog
SchedulerParameters=nohold_on_prolog_fail
HealthCheckProgram={folder}/peerlane-gate-health
HealthCheckInterval=1
HealthCheckNodeState=ANY
""")
        for name in ("peerlane-gate-prolog", "peerlane-gate-health"):
            shutil.copy(f"{SOURCE}/packaging/slurm/{name}", self.folder)

    def gate(self, links, baseline, health_options=""):
        """What the scripts find: a machine with these links. Whole or not at all, as a script may be reading it."""
        fresh = self.folder / "gate.conf.new"
        fresh.write_text(f'GATE="{OUT}/peerlane gate --baseline {baseline}"\nGATE_HEALTH_OPTIONS="{health_options}"\n'
                         f"export SLURM_CONF={self.folder}/slurm.conf PEERLANE_GPU=sim PEERLANE_SIM_LOG=off PEERLANE_SIM_RATES='{RATES}' PEERLANE_SIM_LINKS='{links}'\n")
        fresh.rename(self.folder / "gate.conf")

    def reason(self):
        shown = self.ask("scontrol", "-o", "show", "node", self.node).stdout
        found = re.search(r" Reason=(.*)$", shown.strip())
        return found.group(1) if found else ""


def slurm():
    """Debian's Slurm on loopback: a fit node runs jobs; one that turns unfit is drained with the reason before a job starts, the
    job waits, and the node and the job go on when it is fit again; a node that a person drained stays drained."""
    if reason := slurm_cluster.why_not():
        print(f"SKIPPED: {reason}")
        sys.exit(77)
    with learnt() as good, tempfile.TemporaryDirectory() as folder:
        cluster = Slurm(folder)
        cluster.gate(LINKS, good.path)
        try:
            cluster.start()
            first, second = Path(folder) / "first", Path(folder) / "second"
            done = cluster.ask("sbatch", "-o", f"{folder}/job.out", f"--wrap=touch {first}")
            check(done.returncode == 0, done.stderr)
            wait_for("the first job", first.exists)

            # The health check only reads here, so that the job's prolog is what finds a slow link... an ECC error both find.
            cluster.gate(LINKS + ";1:ecc=1", good.path)
            wait_for("a drained node", lambda: cluster.state().startswith("drain"))
            wait_for("the reason", lambda: "peerlane gate: unfit: GPU 1: 1 uncorrected ECC error" in cluster.reason())
            cluster.ask("sbatch", "-o", f"{folder}/job.out", f"--wrap=touch {second}")
            cluster.gate(LINKS, good.path)
            wait_for("the second job, on the repaired node", second.exists)

            # Now the prolog alone: the health check is told to read only, and a slow board cannot be read.
            prolog_only(cluster, good, folder)

            cluster.ask("scontrol", "update", f"NodeName={cluster.node}", "State=DRAIN", "Reason=by hand")
            for _ in range(2):  # a health check that began now has ended
                before = health_checks(cluster)
                wait_for("a health check", lambda count=before: health_checks(cluster) > count)
            check(cluster.reason().startswith("by hand"), cluster.reason())
        except AssertionError:
            cluster.print_logs()
            raise
        finally:
            cluster.stop()


def health_checks(cluster):
    """How often the health check's script has asked the gate: it leaves its Prometheus file anew each time."""
    path = cluster.folder / "gate.prom"
    return path.stat().st_mtime_ns if path.exists() else 0


def prolog_only(cluster, good, folder):
    third = Path(folder) / "third"
    slow = f"{RATES};1:factor=0.4"
    cluster.gate(LINKS, good.path, f"--passive --prometheus {folder}/gate.prom")
    text = (cluster.folder / "gate.conf").read_text().replace(RATES, slow)
    (cluster.folder / "gate.conf.new").write_text(text)
    (cluster.folder / "gate.conf.new").rename(cluster.folder / "gate.conf")
    before = health_checks(cluster)
    wait_for("a health check that reads only", lambda: health_checks(cluster) > before)
    check(cluster.state() in ("idle", "completing"), cluster.state(), cluster.reason())
    job = cluster.ask("sbatch", "--parsable", "-o", f"{folder}/job.out", f"--wrap=touch {third}").stdout.strip()
    wait_for("the prolog's reason", lambda: re.search(r"peerlane gate: unfit: GPU 1: \S+ .*GB/s, learnt", cluster.reason()))
    check(not third.exists(), "the job ran on the slow node")
    cluster.gate(LINKS, good.path, f"--prometheus {folder}/gate.prom")
    wait_for("an idle node", lambda: cluster.state() == "idle")
    # Slurm itself lets a job that was queued again wait for two minutes.
    wait_for("the job, queued again", lambda: cluster.ask("squeue", "-h", "-j", job, "-o", "%T").stdout.strip() == "PENDING")
    cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for("the third job, on the repaired node", third.exists)
    wait_for("an idle node", lambda: cluster.state() == "idle")


# Go's structs of node-problem-detector 0.8 (pkg/custompluginmonitor/types), restated: keys and what they hold.
NPD_TOP = {"plugin": str, "pluginConfig": dict, "source": str, "metricsReporting": bool, "conditions": list, "rules": list}
NPD_PLUGIN = {"invoke_interval": "duration", "timeout": "duration", "max_output_length": int, "concurrency": int,
              "enable_message_change_based_condition_update": bool, "skip_initial_status": bool}
NPD_CONDITION = {"type": str, "reason": str, "message": str}
NPD_RULE = {"type": str, "condition": str, "reason": str, "path": str, "args": list, "timeout": "duration",
            "invoke_interval": "duration"}


def seconds_of(text):
    found = re.fullmatch(r"(\d+)(ms|s|m|h)", text)
    check(found, "not a duration of Go", text)
    return int(found.group(1)) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[found.group(2)]


def expect_shape(one, shape):
    for key, value in one.items():
        check(key in shape, "node-problem-detector does not know", key)
        if shape[key] == "duration":
            seconds_of(value)
        else:
            check(type(value) is shape[key], key, value)


def kubernetes():
    """The configuration is one that node-problem-detector takes, and the plugin speaks as it expects."""
    config = json.loads(Path(f"{SOURCE}/packaging/kubernetes/peerlane-gate.json").read_text())
    expect_shape(config, NPD_TOP)
    expect_shape(config["pluginConfig"], NPD_PLUGIN)
    check(config["plugin"] == "custom", config["plugin"])
    for one in config["conditions"]:
        expect_shape(one, NPD_CONDITION)
    known = {one["type"] for one in config["conditions"]}
    for rule in config["rules"]:
        expect_shape(rule, NPD_RULE)
        check(rule["type"] == "permanent" and rule["condition"] in known, rule)
        check(seconds_of(rule["timeout"]) <= seconds_of(config["pluginConfig"]["timeout"]), "a rule's timeout exceeds the whole")
        check(all(type(one) is str for one in rule["args"]), rule["args"])
        check(Path(rule["path"]).name == "peerlane-gate-npd", rule["path"])
    with learnt() as good:
        settings = Path(good.folder.name) / "gate.conf"
        settings.write_text(f'GATE="{OUT}/peerlane gate --baseline {good.path}"\n')

        def plugin(links, gate=None):
            environment = os.environ | {"PEERLANE_GPU": "sim", "PEERLANE_SIM_LOG": "off", "PEERLANE_SIM_RATES": RATES,
                                        "PEERLANE_SIM_LINKS": links, "GATE_SETTINGS": str(settings) if gate is None else gate,
                                        "PATH": "/usr/bin:/bin"}
            return subprocess.run([f"{SOURCE}/packaging/kubernetes/peerlane-gate-npd", *config["rules"][0]["args"]],
                                  env=environment, capture_output=True, text=True, timeout=60)
        done = plugin(LINKS)
        check(done.returncode == 0 and done.stdout.startswith("fit: 2 GPUs"), done.returncode, done.stdout)
        done = plugin(LINKS + ";0:pcie=1x2/1x4")
        check(done.returncode == 1 and done.stdout.startswith("GPU 0: PCIe x2, learnt x4"), done.returncode, done.stdout)
        check(len(done.stdout.splitlines()) == 1, done.stdout)
        check(plugin(LINKS, gate="/nowhere").returncode == 2, "a gate that is missing is not known")


def main():
    global OUT, SOURCE
    OUT, SOURCE, case = sys.argv[1:4]
    globals()["learnt_case" if case == "learnt" else case]()


if __name__ == "__main__":
    main()
