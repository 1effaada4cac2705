#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that a real srun starts on two hosts find each other with --mpi=none, pmi2 and pmix.

A private cluster of Debian's packages: two slurmd, whose hosts are this machine under other names (UTS namespaces), in network,
mount and process namespaces of its own, which end with it.

usage: slurm_e2e.py CHILD CASE        one function below for each case; CMakeLists.txt lists them
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import slurm_cluster  # noqa: E402
from slurm_cluster import Cluster  # noqa: E402

SKIPPED = 77
NAMESPACES = ["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
NODES = {"peerlane-a": 6818, "peerlane-b": 6819}  # the ports are this network namespace's
LIMIT_S = 160
CHILD, CLUSTER = "", None


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(SKIPPED)


def check(condition, *facts):
    if not condition:
        raise AssertionError(" | ".join(str(fact) for fact in facts))


def srun(plugin, *arguments, ranks=3, **more):
    listed = CLUSTER.ask("srun", "--mpi=list")
    if plugin not in re.findall(r"\w+", listed.stdout + listed.stderr):
        skip(f"this srun has no --mpi={plugin}")
    environment = {k: v for k, v in CLUSTER.environment.items() if not k.startswith("PEERLANE_")} | more
    return subprocess.run(["srun", "--overcommit", "-N2", f"-n{ranks}", f"--mpi={plugin}", CHILD, *arguments], env=environment, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S / 2, check=False)


def met(done, meetings):
    check(done.returncode == 0, done.stdout, done.stderr)
    check(sorted(done.stdout.split("\n")[:-1]) == sorted([f"met {i} {10 + i} {20 + i}" for i in range(meetings)] * 3), done.stdout, done.stderr)
    check("invalid" not in done.stderr, done.stderr)


def none():
    met(srun("none", "2", "60"), 2)


def pmi2():
    met(srun("pmi2", "3", "60"), 3)
    met(srun("pmi2", "2", "60", "-1", "fork"), 2)


def pmix():
    met(srun("pmix", "3", "60"), 3)


def secret():
    name = str(CLUSTER.folder / "secret")
    with open(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    return {"PEERLANE_LINK_SECRET_FILE": name}


def every_plugin_with_a_secret():
    for plugin in ("none", "pmi2", "pmix"):
        met(srun(plugin, "2", "60", **secret()), 2)


def pmi2_beside_mpi():
    """Slurm lets one user of the socket begin: an MPI that is there has it, and one that comes has it where a secret is set."""
    if subprocess.run(["sh", "-c", "ldconfig -p | grep -q libmpich.so.12"], check=False).returncode != 0:
        skip("libmpich.so.12 is not installed (apt-get install mpich)")
    met(srun("pmi2", "2", "60", "-1", "mpi-before"), 2)
    met(srun("pmi2", "2", "60", "-1", "mpi-after", **secret()), 2)


def pmix_beside_mpi():
    if subprocess.run(["sh", "-c", "ldconfig -p | grep -q libmpi.so.40"], check=False).returncode != 0:
        skip("libmpi.so.40 is not installed (apt-get install openmpi-bin)")
    for order in ("mpi-before", "mpi-after"):
        met(srun("pmix", "2", "60", "-1", order), 2)


def a_rank_that_does_not_come():
    """The sentences also show by which way the ranks were to meet."""
    for plugin, absent, sentence in (("pmi2", "2", "has not reached the launcher's barrier within 6 s"), ("pmix", "0", "rank 0 has published nothing at the launcher for 6 s"),
                                     ("none", "2", "these did not connect to peerlane-a:")):
        done = srun(plugin, "1", "6", absent)
        check(done.returncode != 0, plugin, done.stdout)
        check(sentence in done.stderr, plugin, done.stderr)


def inside(case, folder):
    """As the first process of the namespaces."""
    global CLUSTER
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # getaddrinfo(), as Slurm calls it, counts no address of 127.0.0.0/8.
    subprocess.run(["ip", "addr", "add", "10.77.0.1/32", "dev", "lo"], check=True)
    hosts = Path(folder) / "hosts"
    hosts.write_text("127.0.0.1 localhost " + " ".join(NODES) + "\n")
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    subprocess.run(["hostname", next(iter(NODES))], check=True)
    CLUSTER = Cluster(folder, NODES, 6817, cpus=2)
    try:
        CLUSTER.start()
        case()
    except AssertionError:
        CLUSTER.print_logs()
        raise
    finally:
        CLUSTER.stop()


def main():
    global CHILD
    CHILD = os.path.abspath(sys.argv[1])
    cases = (none, pmi2, pmix, every_plugin_with_a_secret, pmi2_beside_mpi, pmix_beside_mpi, a_rank_that_does_not_come)
    case = {case.__name__: case for case in cases}[sys.argv[2]]
    if len(sys.argv) > 3:
        return inside(case, sys.argv[3])
    if reason := slurm_cluster.why_not():
        skip(reason)
    if subprocess.run([*NAMESPACES, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode != 0:
        skip("unshare --mount --uts --net --pid is refused, or ip is not installed (apt-get install iproute2)")
    folder = tempfile.mkdtemp()
    try:
        sys.exit(subprocess.run([*NAMESPACES, sys.executable, "-B", *sys.argv, folder], stdin=subprocess.DEVNULL, timeout=LIMIT_S,
                                check=False).returncode)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
