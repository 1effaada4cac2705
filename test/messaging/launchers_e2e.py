#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that the real mpirun of Open MPI starts on several hosts find each other by PMIx alone, those of MPICH's mpiexec by PMI.
The hosts are this machine under other names (UTS namespaces), which is all that launchers and Peerlane tell hosts by.

usage: launchers_e2e.py CHILD CASE        one function below for each case; CMakeLists.txt lists them
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

CHILD = ""
SKIPPED = 77
LIMIT_S = 100
LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "MPI_", "MV2_")
# They call it as they would ssh: options, the host's name, then words for a shell there.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec unshare --uts sh -c "hostname $host; $*"
"""


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PEERLANE_", *LAUNCHERS))}
    return {**kept, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}


def check(condition, *facts):
    if not condition:
        raise AssertionError(" | ".join(str(fact) for fact in facts))


def can_have_hosts():
    return subprocess.run(["unshare", "--uts", "hostname", "peerlane-a"], capture_output=True, check=False).returncode == 0


def launch(launcher, package, head, arguments, **more):
    """A launcher of a distribution's package, with an agent that begins its part on "another host"; `head(agent)`: its own arguments."""
    program = shutil.which(launcher)
    if program is None:
        print(f"SKIPPED: {launcher} is not installed (apt-get install {package})")
        sys.exit(SKIPPED)
    if not can_have_hosts():
        print("SKIPPED: unshare --uts is refused (root is needed)")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        agent = os.path.join(folder, "agent")
        with open(agent, "w", encoding="utf-8") as file:
            file.write(AGENT)
        os.chmod(agent, 0o755)
        return subprocess.run([program, *head(agent), CHILD, *arguments], env=environment(**more), text=True, capture_output=True, timeout=LIMIT_S,
                              check=False)


def mpirun(*arguments, ranks=3, hosts="peerlane-a:1,peerlane-b:2", **more):
    return launch("mpirun.openmpi", "openmpi-bin", lambda agent: ["--host", hosts, "-mca", "plm_rsh_agent", agent, "-n", str(ranks)], arguments, **more)


def mpiexec(*arguments, ranks=3, hosts="peerlane-a:1,peerlane-b:2", options=(), **more):
    return launch("mpiexec.hydra", "mpich", lambda agent: ["-launcher", "ssh", "-launcher-exec", agent, "-hosts", hosts, *options, "-n", str(ranks)],
                  arguments, **more)


def met(done, *lines):
    """Hydra joins what ranks write at the same time, sometimes without the end of a line between them."""
    check(done.returncode == 0, done.stdout, done.stderr)
    said = re.sub("(?=met |the last)", "\n", done.stdout)
    check(sorted(filter(None, said.split("\n"))) == sorted(lines), done.stdout, done.stderr)


def several_hosts():
    met(mpirun("1", "30"), *["met 0 10 20"] * 3)


def each_meeting_is_its_own():
    met(mpirun("3", "30"), *["met 0 10 20"] * 3, *["met 1 11 21"] * 3, *["met 2 12 22"] * 3)


def a_rank_that_does_not_come():
    done = mpirun("1", "4", "2")
    check(done.returncode != 0, done.stdout)
    check("these did not connect to port" in done.stderr and "within 4 s: 2" in done.stderr, done.stderr)


def rank_0_does_not_come():
    done = mpirun("1", "4", "0")
    check(done.returncode != 0, done.stdout)
    check("rank 0 has published nothing at the launcher for 4 s" in done.stderr, done.stderr)


def a_secret_of_the_users_counts():
    with tempfile.TemporaryDirectory() as folder:
        secret = os.path.join(folder, "secret")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write("0123456789abcdef0123456789abcdef\n")
        met(mpirun("1", "30", PEERLANE_LINK_SECRET_FILE=secret), *["met 0 10 20"] * 3)
        os.chmod(secret, 0o644)
        done = mpirun("1", "30", PEERLANE_LINK_SECRET_FILE=secret)
        check(done.returncode != 0 and "chmod 600" in done.stderr, done.stderr)


def beside_mpi():
    for order in ("mpi-before", "mpi-after"):
        met(mpirun("2", "30", "-1", order), *["met 0 10 20"] * 3, *["met 1 11 21"] * 3)


def a_forked_child_ends():
    met(mpirun("2", "30", "-1", "fork"), *["met 0 10 20"] * 3, *["met 1 11 21"] * 3)


def hydra_several_hosts():
    met(mpiexec("1", "30"), *["met 0 10 20"] * 3)


def hydra_each_meeting_is_its_own():
    met(mpiexec("3", "30"), *["met 0 10 20"] * 3, *["met 1 11 21"] * 3, *["met 2 12 22"] * 3)


def hydra_a_rank_that_does_not_come():
    done = mpiexec("1", "4", "2")
    check(done.returncode != 0, done.stdout)
    check("has not reached the launcher's barrier within 4 s" in done.stderr, done.stderr)


def hydra_rank_0_does_not_come():
    done = mpiexec("1", "4", "0")
    check(done.returncode != 0, done.stdout)
    check("rank 0, or another rank, has not reached the launcher's barrier within 4 s" in done.stderr, done.stderr)


def hydra_beside_mpi():
    for order in ("mpi-before", "mpi-after"):
        met(mpiexec("2", "30", "-1", order), *["met 0 10 20"] * 3, *["met 1 11 21"] * 3)


def hydra_a_forked_child_ends():
    met(mpiexec("2", "30", "-1", "fork"), *["met 0 10 20"] * 3, *["met 1 11 21"] * 3)


def hydra_ranks_that_end_early():
    met(mpiexec("1", "30", "-1", "early"), *["met 0 10 20"] * 3, "the last rank has worked on")


def hydra_the_port_model_is_refused():
    done = mpiexec("1", "4", options=("-pmi-port",))
    check(done.returncode != 0 and "leave -pmi-port out" in done.stderr, done.stdout, done.stderr)


def main():
    global CHILD
    CHILD = os.path.abspath(sys.argv[1])
    cases = (several_hosts, each_meeting_is_its_own, a_rank_that_does_not_come, rank_0_does_not_come, a_secret_of_the_users_counts,
             beside_mpi, a_forked_child_ends, hydra_several_hosts, hydra_each_meeting_is_its_own, hydra_a_rank_that_does_not_come,
             hydra_rank_0_does_not_come, hydra_beside_mpi, hydra_a_forked_child_ends, hydra_ranks_that_end_early,
             hydra_the_port_model_is_refused)
    {case.__name__: case for case in cases}[sys.argv[2]]()


if __name__ == "__main__":
    main()
