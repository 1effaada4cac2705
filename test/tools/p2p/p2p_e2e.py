#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the built `peerlane p2p` and the OSU names on the simulated GPU: exit codes, the text's grammar, result files.

usage: p2p_e2e.py OUT_FOLDER CASE        one function below for each case; exit code 77: left out, and the reason is printed
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from e2e import Done, check, refuse, succeed  # noqa: E402

OUT = ""
LEFT_OUT = 77
VALUE = r" +\d+\.\d\d"
QUICK = ["-i", "5", "-x", "1"]
LAUNCHERS = ("OMPI_", "PMI", "MV2_", "SLURM_", "PEERLANE_")


def run(*arguments, name="peerlane", before=(), env=None):
    variables = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    variables.update({"PEERLANE_GPU": "sim", **(env or {})})
    command = [*before, os.path.join(OUT, name), *arguments]
    return Done(subprocess.run(command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100))


def rows(done, header, columns, sizes, verdict=""):
    """The header's lines, then one row for each size with so many values."""
    check(done.lines[:len(header)] == header, "header:", done.lines[:len(header) + 1])
    body = done.lines[len(header):]
    check(len(body) == len(sizes), "rows:", body, done.err)
    for line, size in zip(body, sizes):
        check(re.fullmatch(f"{size}{VALUE * columns}{verdict}", line), "row:", repr(line))


def ours_or_leave_out():
    """The messaging layer needs UCX; a build or a machine without it says so."""
    done = run("p2p", "latency", "-m", "0:1", *QUICK)
    if done.code != 0 and "UCX" in done.err:
        print(f"left out: {done.err.strip()}")
        sys.exit(LEFT_OUT)
    succeed(done)


# ---- cases -------------------------------------------------------------------------------------------------------------


def usage():
    done = run("p2p")
    check(done.code == 1 and "mbw_mr" in done.err, done.err)
    check("osu_latency" in succeed(run("p2p", "-h")).out, "help")
    collectives = "barrier bcast gather scatter allgather reduce allreduce reduce_scatter alltoall alltoallv".split()
    windows = "put_latency put_bw get_latency get_bw fop_latency cas_latency".split()
    pairs = "osu_latency osu_bw osu_bibw osu_mbw_mr osu_multi_lat".split()
    for name in pairs + [f"osu_{each}" for each in collectives + windows]:
        check("--validation" in succeed(run("-h", name=name)).out, name)
    refuse(run("p2p", "scan"), 'unknown benchmark "scan"')
    refuse(run("p2p", "allreduce", "--via", "ours,ucx"), "--via ours, mpi and shim")
    refuse(run("p2p", "allreduce", "H", "D"), "one kind of memory")
    refuse(run("p2p", "allreduce", "-m", "3:64"), "multiples of 4")
    refuse(run("p2p", "bcast", "--cold"), "between two processes")
    refuse(run("p2p", "put_bw", "--via", "mpi"), "--via ours and ucx")
    refuse(run("p2p", "get_bw", "H", "M"), "host memory or GPU memory")
    refuse(run("p2p", "get_bw", "--via", "ours,ucx", "H", "D"), "measured --via ours")
    refuse(run("p2p", "latency", "--no-such-option"), "-h lists the options")
    refuse(run("p2p", "latency", "D"), "both sides")
    refuse(run("G", "H", name="osu_bw"), '"G"')


def latency():
    ours_or_leave_out()
    done = succeed(run("-m", "64", *QUICK, "-c", "-d", "cuda", "D", "D", name="osu_latency"))
    rows(done, ["# OSU MPI-CUDA Latency Test v7.0", "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)",
                "# Size          Latency (us)        Validation"], 1, [0, 1, 2, 4, 8, 16, 32, 64], " +Pass")
    for places in (["H", "D"], ["D", "H"]):
        succeed(run("p2p", "latency", "-m", "16K:32K", *QUICK, "-c", *places))
    done = succeed(run("p2p", "latency", "-m", "2", *QUICK, "--osu-format", "7.5"))
    rows(done, ["", "# OSU MPI Latency Test v7.5", "# Datatype: MPI_CHAR.", "# Size       Avg Latency(us)"], 1, [1, 2])


def collectives():
    ours_or_leave_out()
    titles = {"bcast": "Broadcast", "gather": "Gather", "scatter": "Scatter", "allgather": "Allgather", "reduce": "Reduce",
              "allreduce": "Allreduce", "reduce_scatter": "Reduce_scatter", "alltoall": "All-to-All Personalized Exchange",
              "alltoallv": "All-to-Allv Personalized Exchange"}
    for name, title in titles.items():
        for places, ranks in ([], "2"), (["D", "D"], "3"):
            done = succeed(run("p2p", name, "-m", "4:16K", "-n", ranks, *QUICK, "-c", *places))
            rows(done, ["", f"# OSU MPI{'-CUDA' if places else ''} {title} Latency Test v7.0",
                        "# Size       Avg Latency(us)        Validation"], 1, [4 << i for i in range(13)], " +Pass")
    done = succeed(run("p2p", "allreduce", "-m", "8", *QUICK, "-f", "--osu-format", "7.5"))
    rows(done, ["", "# OSU MPI Allreduce Latency Test v7.5", "# Datatype: MPI_FLOAT.",
                "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"], 3, [4, 8], " +[0-9]+")
    done = succeed(run(*QUICK, name="osu_barrier"))
    lines = done.out.splitlines()
    check(lines[-2] == "# Avg Latency(us)" and float(lines[-1]) > 0, done.out)
    check("recursive_doubling" in succeed(run("p2p", "allreduce", "-m", "8", *QUICK, "--show-plan")).out, "table")


def windows():
    ours_or_leave_out()
    way = ["# Window creation: MPI_Win_allocate", "# Synchronization: MPI_Win_flush"]
    latency, bandwidth = "# Size          Latency (us)        Validation", "# Size      Bandwidth (MB/s)        Validation"
    for name, title, columns in (("put_latency", "Put Latency", latency), ("get_latency", "Get latency", latency),
                                 ("put_bw", "Put Bandwidth", bandwidth), ("get_bw", "Get Bandwidth", bandwidth)):
        for arms in ([], ["--via", "ours,ucx"]) if name != "put_bw" else ([],):
            done = succeed(run("p2p", name, "-m", "1K:4K", *QUICK, "-c", *arms))
            if not arms:
                rows(done, [f"# OSU MPI_{title} Test v7.0", *way, columns], 1, [1024, 2048, 4096], " +Pass")
            check(done.out.count("Pass") == 3, done.out)
    for name in "fop_latency", "cas_latency":
        for arms in [], ["--via", "ours,ucx"]:
            done = succeed(run("p2p", name, *QUICK, "-c", *arms))
            check(done.out.count("Pass") == 1 and done.out.splitlines()[-1].startswith("8 "), done.out)
    succeed(run("p2p", "put_latency", "-m", "64:64K", *QUICK, "-c", "D", "H"))
    for name in "put_latency", "get_latency", "fop_latency":
        for origin in "H", "D":
            done = succeed(run("p2p", name, *QUICK, "-c", "--gpus", "0,0", origin, "D"))
            check("# Window creation: MPI_Win_create\n" in done.out and "Pass" in done.out, done.out)


def bandwidth():
    ours_or_leave_out()
    title = "# Size      Bandwidth (MB/s)        Validation"
    done = succeed(run("p2p", "bw", "-m", "1K:4K", *QUICK, "-c", "-W", "8", "-b", "multiple", "D", "D"))
    rows(done, ["# OSU MPI-CUDA Bandwidth Test v7.0", "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)", title], 1,
         [1024, 2048, 4096], " +Pass")
    done = succeed(run("-m", "1K:2K", *QUICK, "-c", "-W", "8", name="osu_bibw"))
    rows(done, ["# OSU MPI Bi-Directional Bandwidth Test v7.0", title], 1, [1024, 2048], " +Pass")


def pairs():
    ours_or_leave_out()
    done = succeed(run("p2p", "mbw_mr", "-n", "4", "-m", "8:16", "-W", "4", *QUICK))
    rows(done, 2 * ["# OSU MPI Multiple Bandwidth / Message Rate Test v7.0"] +
         ["", "# [ pairs: 2 ] [ window size: 4 ]", "# Size                  MB/s        Messages/s"], 2, [8, 16])
    done = succeed(run("p2p", "multi_lat", "-n", "4", "-m", "1:2", *QUICK))
    rows(done, ["# OSU MPI Multi Latency Test v7.0", "# Size          Latency (us)"], 1, [1, 2])


def extras():
    ours_or_leave_out()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        done = succeed(run("p2p", "latency", "D", "D", "-m", "8:8", *QUICK, "--via", "ours,ucx", "--stage", "--pct", "50,99",
                           "--consume", "--rotate", "2", "--show-plan", "--json", path))
        check(any(line.startswith("# via ours") for line in done.lines), done.out)
        check("ucx/ours" in done.lines[-2], done.out)
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
    check(result["schema"] == "peerlane-result/1" and result["simulated"] is True and result["tool"] == "p2p", "result")
    check([row["via"] for row in result["rows"]] == ["ours", "ucx"], "via")
    for row in result["rows"]:
        check(row["sample_count"] == 5 and row["latency_us_p99"] > 0 and row["size_bytes"] == 8, row)
    succeed(run("p2p", "bw", "D", "D", "-m", "64:64", "-W", "4", *QUICK, "--cold", "--batches", "3", "-c"))


def foreign_settings():
    """What `peerlane topo` recommends for MVAPICH2 works here, or a line says that it does not."""
    ours_or_leave_out()
    done = succeed(run("p2p", "latency", "-m", "8:8", *QUICK, env={"MV2_CPU_BINDING_POLICY": "SCATTER"}))
    check(done.err == "", "words about what is followed:", done.err)
    done = succeed(run("p2p", "latency", "-m", "8:8", *QUICK,
                       env={"MV2_GPUDIRECT_LIMIT": "8192", "MV2_PROCESS_TO_RAIL_MAPPING": "mlx5_98:mlx5_99"}))
    for name in ("MV2_GPUDIRECT_LIMIT", "MV2_PROCESS_TO_RAIL_MAPPING"):
        check(len(re.findall(rf"^p2p: {name}=\S+ is not used: ", done.err, re.M)) == 1, name, done.err)


def failures():
    refuse(run("p2p", "latency", "--via", "mpi"), "mpirun -n 2")
    refuse(run("p2p", "latency", "-n", "3"), "exactly two")
    refuse(run("p2p", "latency", "--launch", "env"), "no launcher")
    refuse(run("p2p", "latency", "D", "D", "--gpus", "77"), "rank ", "there is no GPU 77")
    refuse(run("p2p", "latency", "D", "D", env={"PEERLANE_GPU": "real"}), "rank ", "no GPU")
    refuse(run("p2p", "latency", "--peer", "nowhere"), "names no port")


def nccl():
    """By a stand-in for NCCL (fake_nccl.cpp), which refuses what the real one refuses."""
    library = {"PEERLANE_NCCL_LIBRARY": os.environ["FAKE_NCCL"]}
    done = succeed(run("p2p", "latency", "-m", "16", *QUICK, "-c", "--via", "nccl", "D", "D", env=library))
    rows(done, ["# OSU MPI-CUDA Latency Test v7.0", "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)",
                "# Size          Latency (us)        Validation"], 1, [1, 2, 4, 8, 16], " +Pass")
    succeed(run("p2p", "latency", "-m", "8:8", *QUICK, "--via", "nccl", "D", "D", env=library))
    for what in ("bw", "bibw"):
        done = succeed(run("p2p", what, "-m", "64K:64K", *QUICK, "-W", "8", "-b", "multiple", "-c", "--via", "nccl", "D", "D",
                           env=library))
        check(done.lines[-1].endswith("Pass"), done.out)
    succeed(run("p2p", "mbw_mr", "-n", "4", "-m", "8:16", "-W", "4", *QUICK, "--via", "nccl", "D", "D", env=library))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        succeed(run("p2p", "latency", "D", "D", "-m", "8:8", *QUICK, "--via", "nccl", "--cold", "--json", path, env=library))
        with open(path, encoding="utf-8") as file:
            check([row["library"] for row in json.load(file)["rows"]] == ["NCCL 2.29.1"], "library")
    refuse(run("p2p", "latency", "-m", "8:8", "--via", "nccl", "D", "D", env={"PEERLANE_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}),
           "rank ", "/nowhere/libnccl.so.2", "PEERLANE_NCCL_LIBRARY", "PyPI")
    refuse(run("p2p", "latency", "-m", "8:8", "--via", "nccl", "D", "D", env={**library, "FAKE_NCCL_ONE_GPU": "1"}),
           "ncclCommInitRank", "a separate GPU")


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def killed():
    """The ranks end with the program, however it ends."""
    ours_or_leave_out()
    with subprocess.Popen([os.path.join(OUT, "peerlane"), "p2p", "latency", "-m", "8:8", "-i", "1000000000"],
                          env={**os.environ, "PEERLANE_GPU": "sim"}, stdout=subprocess.DEVNULL) as program:
        ranks = []
        deadline = time.monotonic() + 10
        while len(ranks) < 2 and time.monotonic() < deadline:
            with open(f"/proc/{program.pid}/task/{program.pid}/children", encoding="ascii") as file:
                ranks = file.read().split()
        time.sleep(0.2)
        check(len(ranks) == 2 and all(map(is_running, ranks)), "ranks:", ranks)
        program.kill()
    deadline = time.monotonic() + 10
    while any(map(is_running, ranks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    check(not any(map(is_running, ranks)), "ranks live on:", ranks)


def mpirun():
    if shutil.which("mpirun") is None:
        print("left out: no mpirun in the path (Debian: openmpi-bin)")
        sys.exit(LEFT_OUT)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    two = ["mpirun", "-n", "2", "--oversubscribe"]
    if "Open MPI" not in subprocess.run(["mpirun", "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout:
        two, root = two[:-1], {}
    done = succeed(run("-m", "4", *QUICK, "-c", "--via", "mpi", name="osu_latency", before=two, env=root))
    rows(done, ["# OSU MPI Latency Test v7.0", "# Size          Latency (us)        Validation"], 1, [0, 1, 2, 4], " +Pass")
    done = succeed(run("p2p", "bw", "-m", "1K:1K", *QUICK, "-c", "--via", "mpi", "--stage", "D", "D", before=two, env=root))
    check(done.lines[-1].endswith("Pass"), done.out)
    done = run("p2p", "bw", "-m", "1K:1K", *QUICK, "--via", "mpi", "D", "D", before=two, env=root)
    check(done.code != 0 and "--stage" in done.err, done.code, done.err)
    # Without an MPI in it: the ranks find each other by what mpirun tells them.
    ours_or_leave_out()
    done = succeed(run("p2p", "latency", "-m", "8:8", *QUICK, "-c", "--show-plan", before=two,
                       env={**root, "PEERLANE_LINK_CPU": "bunch"}))
    check(re.search(r"^# CPUs of rank 1: \d+$", done.out, re.M) and done.lines[-1].endswith("Pass"), done.out)


# Each collective of ours and of each MPI that is installed has the same bytes, with three ranks.
def mpi_collectives():
    ours_or_leave_out()
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    launchers = [[name, "-n", "3", *options] for name, options in
                 (("mpirun.openmpi", ["--oversubscribe"]), ("mpiexec.mpich", ["-genv", "LD_PRELOAD", os.environ["MPICH_YIELD"]])) if shutil.which(name)]
    if not launchers:
        print("left out: neither mpirun.openmpi nor mpiexec.mpich in the path (Debian: openmpi-bin, mpich)")
        sys.exit(LEFT_OUT)
    for launcher in launchers:
        for name in "bcast gather scatter allgather reduce allreduce reduce_scatter alltoall alltoallv".split():
            done = succeed(run("p2p", name, "-m", "2K:16K", *QUICK, "-c", "--via", "ours,mpi", before=launcher, env=root))
            lines = [line for line in done.lines if line[:1].isdigit()]
            check(len(lines) == 4 and all(line.endswith("Pass") for line in lines), launcher, done.out)


def main():
    global OUT
    OUT = os.path.abspath(sys.argv[1])
    cases = {"usage": usage, "collectives": collectives, "latency": latency, "windows": windows, "bandwidth": bandwidth,
             "pairs": pairs, "extras": extras, "foreign_settings": foreign_settings, "failures": failures, "killed": killed,
             "nccl": nccl, "mpirun": mpirun, "mpi_collectives": mpi_collectives}
    cases[sys.argv[2]]()


if __name__ == "__main__":
    main()
