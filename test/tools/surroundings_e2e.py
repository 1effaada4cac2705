#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built `peerlane` in unusual surroundings: without /proc, as a container's first process, with long paths, under filters.

usage: surroundings_e2e.py OUT_FOLDER CASE        one function below for each case
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from e2e import Done, check, clean_environment, refuse, succeed

OUT = ""
SKIPPED = 77


def program():
    return os.path.join(OUT, "peerlane")


def run(*words, within=(), **more):
    return Done(subprocess.run([*within, program(), *words], env={**clean_environment(), **more}, text=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False))


def name_spaces(*options):
    """The beginning of a command line; ends the test as skipped where there are none."""
    words = ["unshare", *options]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        print("SKIPPED: no name spaces here (root, or a kernel that lets users make them)")
        sys.exit(SKIPPED)
    return words


def child_of(process):
    for one in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{one}/stat", encoding="utf-8", errors="replace") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == process:
                    return int(one)
        except OSError:
            continue  # it has ended
    raise AssertionError("no child")


def no_proc():
    """The program finds itself and the simulated GPU; what needs /proc says so."""
    # The loader, too, finds what lies beside a program by /proc.
    within = [*name_spaces("--mount", "--propagation", "private"), "sh", "-c", 'umount -l /proc && LD_LIBRARY_PATH="$0" exec "$@"', OUT]
    done = succeed(run("info", within=within))
    check("Peerlane Simulated GPU" in done.out, done.out)
    refuse(run("store", "perf", "--elements", "20", within=within), "/proc")


def first_process():
    """A container's first process gets only signals that it has handlers for; ^C and `docker stop` must end it all the same."""
    within = name_spaces("--pid", "--fork", "--kill-child")
    with subprocess.Popen([*within, program(), "copybw", "-s", "64K", "-w", "1", "-r", "100000000"], env=clean_environment(), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as outer:
        line = outer.stdout.readline()  # it runs
        check(line, "it has ended", outer.stderr.read() if not line else "")
        inner = child_of(outer.pid)
        begin = time.monotonic()
        os.kill(inner, signal.SIGTERM)
        outer.wait(30)
        check(outer.returncode == 128 + signal.SIGTERM or outer.returncode == -signal.SIGTERM, outer.returncode)
        check(time.monotonic() - begin < 20, "took", time.monotonic() - begin)


def last_of_its_mounts():
    """`soak` leaves its mount namespace for a small disk of its own; workers start also where nobody else keeps the old one."""
    within = [*name_spaces("--mount", "--propagation", "private"), "sh", "-c", 'mount --bind "$0" "$0" && exec "$@"', OUT]
    done = succeed(run("soak", "--seconds", "1", "--only", "mappings", within=within))
    check("PASS" in done.out, done.out)


def long_paths():
    """The folder of temporary files may be too long for a socket in it: an error that says so, and no search for other reasons."""
    with tempfile.TemporaryDirectory() as folder:
        long = os.path.join(folder, "l" * 100)
        os.mkdir(long)
        for words in (["store", "perf", "--elements", "20"], ["soak", "--seconds", "1"]):
            refuse(run(*words, TMPDIR=long), "107 bytes", "TMPDIR")
        check(os.listdir(long) == [], os.listdir(long))


def no_home():
    """A report does not need a home: a container's user may have none."""
    done = run("report", "--no-such-option", HOME="", XDG_DATA_HOME="")
    check(done.code == 1 and "Traceback" not in done.err, done.err)
    code = "import sys; sys.path.insert(0, sys.argv[1])\n" \
           "from peerlane.report import plotly_script as p; import os; os.setuid(54321); del os.environ['HOME']; print(p.private_environment())"
    if os.geteuid() != 0:
        print("SKIPPED: only root can become a user that is in no list")
        sys.exit(SKIPPED)
    done = subprocess.run([sys.executable, "-c", code, os.path.join(OUT, "python")], env={**clean_environment(), "HOME": "/root"}, text=True,
                          capture_output=True, check=False)
    check(done.stdout == "None\n", done.stdout, done.stderr)


if __name__ == "__main__":
    OUT = os.path.abspath(sys.argv[1])
    globals()[sys.argv[2]]()
