#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of `peerlane bandwidth` as processes on the simulated GPU: with MPI, with a rendezvous, and with one of them dying.

usage: multinode_e2e.py OUT_FOLDER CASE        one function below for each case; CMakeLists.txt lists them
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

OUT = ""
SKIPPED = 77
LIMIT_S = 150
LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "MPI_")
PAIRS = ("multinode_device_to_device_memcpy_read_ce", "multinode_device_to_device_bidirectional_memcpy_write_ce",
         "multinode_device_to_device_all_to_one_write_sm", "multinode_bisect_write_ce")

MULTICAST = ("multinode_device_to_device_broadcast_one_to_all_sm", "multinode_device_to_device_broadcast_all_to_all_sm")


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PEERLANE_", *LAUNCHERS))}
    return {**kept, "PEERLANE_GPU": "sim", "PEERLANE_SIM_DEVICES": "4", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}


def check(condition, *facts):
    if not condition:
        raise AssertionError(" | ".join(str(fact) for fact in facts))


RESERVED = []  # a socket for each port given, so that nobody else gets it before rank 0 listens there


def free_port():
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    RESERVED.append(probe)
    return probe.getsockname()[1]


def command(*arguments):
    size = [] if "-b" in arguments else ["-b", "1M"]
    return [os.path.join(OUT, "peerlane"), "bandwidth", *size, "-i", "2", "--no-judge", *arguments]


class Ranks:
    """Processes started by hand; those still there at the end are killed."""

    def __init__(self, count, *arguments, nodes=None, **more):
        endpoint = f"127.0.0.1:{free_port()}"
        self.processes = [
            subprocess.Popen(command(*arguments, "--nodes", str(nodes or count), "--rank", str(rank), "--rendezvous", endpoint),
                             env=environment(**more), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for rank in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.processes:
            if one.poll() is None:
                one.kill()
            one.communicate()

    def finish(self):
        ended = time.monotonic() + LIMIT_S
        return [(one.communicate(timeout=max(1, ended - time.monotonic())), one.returncode) for one in self.processes]


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def check_cells(path, ranks):
    rows = rows_of(path)
    for key, cells in zip(PAIRS, (ranks * (ranks - 1), 3 * ranks * (ranks - 1), ranks, ranks)):
        measured = [row for row in rows if key in row.values() and row.get("value", 0) > 0]
        check(len(measured) == cells, key, len(measured), cells, rows[:2])


def tests():
    return ["-t", *PAIRS]


def rendezvous():
    with tempfile.TemporaryDirectory() as folder:
        lines = os.path.join(folder, "lines")
        with Ranks(4, *tests(), "--jsonl", lines) as ranks:
            for rank, ((out, err), code) in enumerate(ranks.finish()):
                check(code == 0, rank, code, out, err)
                check(rank == 0 or out == "", "only rank 0 prints", rank, out)
                check(rank != 0 or "4 processes, TCP" in out, out)
        check_cells(lines, 4)


def mpirun(*arguments, ranks=4, **more):
    if shutil.which("mpirun") is None:
        print("skipped: mpirun is not installed (apt-get install openmpi-bin)")
        sys.exit(SKIPPED)
    if "library" not in more and not os.path.exists(os.path.join(OUT, "libpeerlane_mpi.so")):
        print("skipped: libpeerlane_mpi.so was not built (apt-get install libopenmpi-dev)")
        sys.exit(SKIPPED)
    more.pop("library", None)
    done = subprocess.run(["mpirun", "--oversubscribe", "-n", str(ranks), *command(*arguments)], env=environment(**more), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    return done


def by_mpi():
    with tempfile.TemporaryDirectory() as folder:
        lines = os.path.join(folder, "lines")
        done = mpirun(*tests(), "--jsonl", lines)
        check(done.returncode == 0, done.stdout, done.stderr)
        check("4 processes, MPI: " in done.stdout, done.stdout)
        check_cells(lines, 4)


def mpirun_without_the_bridge():
    global OUT
    with tempfile.TemporaryDirectory() as folder:
        lines = os.path.join(folder, "lines")
        bare = os.path.join(folder, "out")
        shutil.copytree(OUT, bare, symlinks=True, ignore=shutil.ignore_patterns("libpeerlane_mpi.so"))
        OUT = bare
        done = mpirun(*tests(), "--jsonl", lines, ranks=2, library=None)
        check(done.returncode == 0, done.stdout, done.stderr)
        check("2 processes, local sockets" in done.stdout, done.stdout)
        check_cells(lines, 2)


def by_fabric_handles():
    with Ranks(2, "-t", PAIRS[0], PEERLANE_SIM_FABRIC="on") as ranks:
        for (out, err), code in ranks.finish():
            check(code == 0, code, out, err)


def without_the_fabric_service():
    with Ranks(2, "-t", PAIRS[0], PEERLANE_SIM_FABRIC="no_imex") as ranks:
        for (out, err), code in ranks.finish():
            check(code == 0, code, out, err)


def ranks_may_share_a_gpu():
    with Ranks(3, "-t", PAIRS[0], PEERLANE_SIM_DEVICES="2") as ranks:
        for (out, err), code in ranks.finish():
            check(code == 0, code, out, err)


def multicast():
    """Both testcases, every byte checked on every GPU; by descriptors, fabric handles, and without the fabric's service."""
    for fabric in ("off", "on", "no_imex"):
        with tempfile.TemporaryDirectory() as folder:
            lines = os.path.join(folder, "lines")
            with Ranks(3, "-t", *MULTICAST, "--multicast", "-b", "65540B", "--jsonl", lines, PEERLANE_SIM_FABRIC=fabric) as ranks:
                for (out, err), code in ranks.finish():
                    check(code == 0, fabric, code, out, err)
            rows = rows_of(lines)
            for key, cells in zip(MULTICAST, (3, 1)):
                measured = [row for row in rows if row.get("testcase") == key and row.get("value", 0) > 0]
                check(len(measured) == cells, fabric, key, rows)


def waived(ranks, words):
    (out, err), code = ranks.finish()[0]
    check(code == 5, code, out, err)
    check(out.count(words) == 2, words, out, err)


def multicast_is_not_made_unasked():
    with Ranks(2, "-t", *MULTICAST) as ranks:
        waived(ranks, "add --multicast")


def multicast_where_there_is_none():
    with Ranks(2, "-t", *MULTICAST, "--multicast", PEERLANE_SIM_MULTICAST="0") as ranks:
        waived(ranks, "CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED")
    with Ranks(2, "-t", *MULTICAST, "--multicast", PEERLANE_SIM_DEVICES="1") as ranks:
        waived(ranks, "a GPU can be in a multicast object once")


def a_killed_rank_is_named():
    with Ranks(3, "-p", "multinode", "--loopCount", "2000") as ranks:
        time.sleep(3)
        victim = ranks.processes[2]
        check(victim.poll() is None, "the run ended before the kill")
        victim.send_signal(signal.SIGKILL)
        begin = time.monotonic()
        ended = ranks.finish()
        check(time.monotonic() - begin < 60, "not at once")
        for (out, err), code in ended[:2]:
            check(code not in (0, None), code, out, err)
        check("rank 2 (" in ended[0][0][0] + ended[0][0][1], ended[0])


def main(folder, case):
    global OUT
    OUT = os.path.abspath(folder)
    cases = (rendezvous, by_mpi, mpirun_without_the_bridge, by_fabric_handles, without_the_fabric_service, ranks_may_share_a_gpu,
             a_killed_rank_is_named, multicast, multicast_is_not_made_unasked, multicast_where_there_is_none)
    {one.__name__: one for one in cases}[case]()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
