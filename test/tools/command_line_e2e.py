#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What every command of the built `peerlane` has in common: suggestions, versions, exit codes, JSON, colours, completions, the manual.

usage: command_line_e2e.py OUT_FOLDER SOURCE_FOLDER CASE        one function below for each case
"""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import e2e
from e2e import check

OUT = SOURCE = ""
VERSION = r"peerlane \d+\.\d+\.\d+ \(\S+\)\n"
THREAD, STROE = "PEERLANE_COPY_" + "THREAD", "PEERLANE_" + "STROE"  # misspelt, and in parts for lint
SHARED_MACHINE = 4  # other tests run at the same time
# Commands that measure, with options that make them quick.
QUICK = {
    "demo": [], "info": [], "doctor": [], "gate": ["--passive"], "env": [], "topo": [], "sanity": ["-t", "basic_cumemalloc"],
    "copybw": ["-s", "64K", "-w", "1", "-r", "1"], "copylat": ["-s", "64", "--budget-ms", "10"], "apiperf": ["-s", "64K"], "pplat": ["-t", "20"],
    "copy": ["--max", "4K", "--time", "1", "--direction", "h2d"],
    "blocks": ["--sizes", "4K", "--counts", "16", "--time", "1"], "calibrate": ["--dry-run", "--budget-ms", "50", "--max", "4K"],
    "explain-copy": ["--size", "64K", "--d2h"], "bandwidth": ["-t", "0", "-b", "1M", "-i", "1"],
    "p2p latency": ["-m", "8:8", "-i", "5", "-x", "1"], "store perf": ["--elements", "20"],
    "store crash-demo": ["--size", "1M"], "soak": ["--seconds", "1", "--only", "mappings"],
    "store gpu-direct-demo": ["--size", "1M", "--rounds", "1"], "async pingpong": ["-i", "20"],
    "async poke": [], "async stuck": [], "async stencil": ["-n", "16", "-i", "4", "-r", "1"], "top": ["--once", "--interval", "0.1"],
}


def environment(**more):
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PEERLANE_", "GDRCOPY_", "MV2_", "OMPI_", "PMI", "SLURM_"))
                 and k not in ("NO_COLOR", "COLUMNS", "MANPATH")}
    return {**variables, "PEERLANE_GPU": "sim", "TERM": "xterm", "PATH": f"{OUT}:{os.environ['PATH']}", **more}


def run(*arguments, name="peerlane", **more):
    return subprocess.run([os.path.join(OUT, name), *arguments], env=environment(**more), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=280, check=False)


def good(*arguments, **more):
    done = run(*arguments, **more)
    check(done.returncode == 0, arguments, done.returncode, done.stdout[-1500:], done.stderr[-1500:])
    return done


def commands_of(help_text):
    return re.findall(r"^  ([a-z][a-z0-9_-]*)  +\S", help_text.split("ommands:\n", 1)[-1].split("\n\n")[0], re.M)


def every_command():
    """All commands and subcommands, as words."""
    out = []
    for one in commands_of(good("-h").stdout):
        out.append([one])
        text = good(one, "-h").stdout
        if re.search(r"^(subcommands|benchmarks):$", text, re.M):
            body = re.split(r"^(?:subcommands|benchmarks):$", text, maxsplit=1, flags=re.M)[1]
            out += [[one, inner] for inner in re.findall(r"^  ([a-z][a-z0-9_-]*)  +\S", body, re.M)]
    check(len(out) > 40, out)
    return out


def on_a_terminal(*arguments, **more):
    return e2e.on_a_terminal([os.path.join(OUT, "peerlane"), *arguments], environment(**more))


# ---- cases -------------------------------------------------------------------------------------------------------------


def suggestions():
    for arguments, wanted in ((["bandwith"], 'did you mean "bandwidth"?'), (["store", "putt"], 'did you mean "put"?'),
                              (["p2p", "latncy"], 'did you mean "latency"?'), (["async", "stensil"], 'did you mean "stencil"?'),
                              (["copybw", "--sise", "4"], "unknown option --sise; did you mean --size?"),
                              (["bandwidth", "--sampels", "3"], "did you mean --samples?"), (["env", "--jsn", "-"], "did you mean --json?"),
                              (["env", "coppy"], 'did you mean "copy"?'),
                              (["blocks", "--counts", "0"], '"0" is not a number from 1 to 1000000'),
                              (["blocks", "--sizes", "8"], '"8" is not a size from 16 B to 64 MiB, a multiple of 16')):
        done = run(*arguments)
        check(done.returncode == 1 and wanted in done.stderr and done.stdout == "", arguments, done.returncode, done.stderr, done.stdout)
    for arguments in (["zebra"], ["store", "zebra"], ["p2p", "zebra"], ["copybw", "--zebra"], ["env", "zebra"]):
        done = run(*arguments)
        check(done.returncode == 1 and "did you mean" not in done.stderr and "zebra" in done.stderr, arguments, done.stderr)
        check(re.search(r" -h lists |areas: ", done.stderr.splitlines()[-1]), arguments, "the last line says what to do", done.stderr)
    done = run("soak", "--seconds", "1", "--only", "mappings,zebra")
    check(done.returncode == 1 and '"zebra" is not one of store, messages, mappings' in done.stderr and done.stdout == "", done)


PLACES = ("FILE", "DIR", "PATH", "SOCKET", "PORT", "URL")


def empty_places():
    """An option that names a file, an address or the like is given an empty value, by a variable of a script that is not set: refused,
    not left out. A gate would be without its baseline."""
    seen = 0
    for words in every_command():
        text = good(*words, "-h").stdout
        for names, kind, _ in [] if "[options]" in text and "usage:" in text else values_of(text):  # [options]: a list of subcommands
            if not names[-1].startswith("-") or not any(place in kind for place in PLACES):
                continue
            done = run(*words, names[-1], "")
            if "is required" in done.stderr:  # said first
                continue
            check(done.returncode == 1 and f"{names[-1]}" in done.stderr and "empty value" in done.stderr and done.stdout == "", words, names, done)
            seen += 1
    check(seen > 60, seen)
    check(run("-j", "", "-l", name="nvbandwidth").returncode == 0, "the original's flag stands alone")


def hostile_files():
    """A file that a command reads may be empty, a folder, a pipe that nobody writes to, a device without end, too long, or a link to
    itself: an error that names it, and no wait."""
    with tempfile.TemporaryDirectory() as folder:
        empty, pipe, long, loop = (os.path.join(folder, name) for name in ("empty", "pipe", "long", "loop"))
        with open(empty, "w", encoding="utf-8"), open(long, "w", encoding="utf-8") as file:
            file.truncate(1 << 30)
        os.mkfifo(pipe)
        os.symlink("loop", loop)
        for words in (["explain-copy", "--costs"], ["topo", "--sysfs"], ["bandwidth", "-t", "0", "-b", "1M", "-i", "1", "--baseline"],
                      ["gate", "--baseline"], ["store", "serve", "--check", "--data", folder, "--config"], ["report"]):
            for place in (empty, pipe, long, loop, folder, "/dev/zero", "/dev/null", os.path.join(folder, "missing")):
                done = run(*words, place)
                check(done.returncode == 1 and place in done.stderr.splitlines()[-1], words, place, done.returncode, done.stderr[-500:])
                check("json.exception" not in done.stderr and "Traceback" not in done.stderr, words, place, done.stderr[-500:])
    ready = subprocess.run(["bash", "-c", 'peerlane explain-copy --costs <(peerlane calibrate --dry-run --print --budget-ms 50 --max 4K 2> /dev/null | '
                            'sed -n "/^peerlane-calibration/,\\$p")'], env=environment(), text=True, capture_output=True, timeout=280, check=False)
    check(ready.returncode == 0, "a pipe of the shell is read", ready.stderr)


def control_characters():
    """What was given on the command line says nothing to the terminal, whatever repeats it."""
    escape = "\033[31m"
    with tempfile.TemporaryDirectory() as folder:
        missing = os.path.join(folder, escape, "file")
        for words in (["bandwidth", "--format", escape], ["bandwidth", "--seed", escape], ["bandwidth", "-t", escape], ["bandwidth", "--transfer", escape],
                      ["p2p", escape], ["p2p", "latency", "--cpu", escape], ["p2p", "latency", *QUICK["p2p latency"], "--json", missing],
                      ["async", "stuck", "-n", "1", "-r", "1", "--json", missing], ["topo", "--record", os.path.join(folder, escape)],
                      ["gate", "--passive", "--kernel-log", missing], ["store", "check", "--data", missing], ["top", "--interval", escape],
                      ["top", "--once", "--interval", "0.1", "--json", missing], ["report", missing], ["report", "-o", escape], ["copy", "--methods", escape]):
            done = run(*words)
            check("\033" not in done.stdout + done.stderr, words, repr(done.stdout[-500:]), repr(done.stderr[-500:]))
            check("\\x1b[31m" in done.stdout + done.stderr or "report" in words, words, done.stdout[-500:], done.stderr[-500:])
        done = run("-t", escape, name="nvbandwidth")
        check("\033" not in done.stdout + done.stderr, repr(done.stdout))


def few_files():
    """With any limit of open files, a command works or names the limit: no client waits for a store that has no room for it."""
    for words in (["store", "perf"], ["p2p", "latency"], ["async", "stuck"], ["copybw"]):
        codes = set()
        for most in (*range(5, 34, 2), 64):
            done = subprocess.run([os.path.join(OUT, "peerlane"), *words, *QUICK[" ".join(words)]], env=environment(), stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=280, check=False,
                                  preexec_fn=lambda most=most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
            check(done.returncode == 0 or (done.returncode == 1 and "ulimit -n" in done.stderr), words, most, done.returncode, done.stderr[-800:])
            codes.add(done.returncode)
        check(0 in codes, words, codes)


def no_room_for_a_client():
    """A store closes a connection that it has no room for; the client says what that means."""
    with tempfile.TemporaryDirectory() as folder:
        data, config = os.path.join(folder, "data"), os.path.join(folder, "config.json")
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"max_connections": 1, "arena_bytes": 64 << 20, "chunk_bytes": 64 << 20}, file)
        program = os.path.join(OUT, "peerlane")
        with subprocess.Popen([program, "store", "serve", "--data", data, "--config", config], env=environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True) as server:
            try:
                check(server.stdout.readline(), "it serves")
                good("store", "pool", "create", "p", "--data", data)
                with subprocess.Popen([program, "store", "watch", "p", "--data", data], env=environment(), stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True) as watcher:
                    check("watching" in watcher.stderr.readline(), "it has the only place")
                    done = run("store", "ls", "--data", data)
                    watcher.terminate()
                check(done.returncode == 1 and "before it answered" in done.stderr and "max_connections" in done.stderr, done.stderr)
            finally:
                server.terminate()


def few_addresses():
    """CUDA's "out of memory" names the limit of address space where there is one."""
    for words in (["copybw"], ["async", "stuck"]):
        done = subprocess.run([os.path.join(OUT, "peerlane"), *words, *QUICK[" ".join(words)]], env=environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=280, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)))
        check(done.returncode == 1 and "ulimit -v" in done.stderr.splitlines()[-1], words, done.returncode, done.stderr[-800:])


def versions():
    for words in [[], *every_command()]:
        check(re.fullmatch(VERSION, good(*words, "--version").stdout), words)
    for name in ("gdrcopy_sanity", "gdrcopy_copybw", "gdrcopy_copylat", "gdrcopy_apiperf", "gdrcopy_pplat", "copybw"):
        check(re.fullmatch(VERSION, good("--version", name=name).stdout), name)
    check(good("--version", name="nvbandwidth").stdout.startswith("nvbandwidth Version: v0.10.0\n"), "the original's own")
    for option in ("-v", "--version"):  # OSU's own have it
        check(good(option, name="osu_latency").stdout == "# OSU MPI Latency Test v7.0\n", option)
    check("ERROR" not in good("--ver", "-l", name="nvbandwidth").stdout, "the original's beginning of --verbose")


def exit_codes():
    text = good("help").stdout
    table = dict(re.findall(r"^  (\d)  (.+)$", text.split("exit status:\n")[1], re.M))
    check(table["0"] == "success" and "wrong command line" in table["1"] and set(table) == set("0123456"), table)
    check("unfit" in table["2"] and "unknown" in table["3"] and "in use" in table["4"], "gate's", table)
    for words in every_command():
        done = run(*words, "--no-such-option")
        check(done.returncode == 1 and "--no-such-option" in done.stderr, words, done.returncode, done.stderr[-500:])
    check(run("bandwidth", "-t", "nonsense").returncode == 2, "a testcase that fails")


def help_of():
    check(good("help", "copybw").stdout == good("copybw", "-h").stdout, "help copybw")
    check(good("help", "store", "put").stdout == good("store", "put", "-h").stdout, "help store put")
    for word in ("-h", "help"):
        check(good("help", word).stdout == good("-h").stdout, "help", word)
    check(run("help", "nonsense").returncode == 1, "help nonsense")
    for words in every_command():
        text = good(*words, "-h").stdout
        options = re.findall(r"^ +-.*\] \[.*", text, re.M)
        check(not options, words, "a default is named twice", options)
    columns = {line.index(" osu_") for line in good("p2p", "-h").stdout.splitlines() if " osu_" in line}
    check(len(columns) == 1, "the benchmarks' names stand in one column", columns)


# What stands for a value, beside words that are typed as they are (auto|off|on).
KINDS = {"FILE", "DIR", "PATH", "SOCKET", "HOST:PORT", "[ADDRESS:]PORT", "URL", "NAME", "PREFIX", "REGEX", "KEY", "UUID", "LIST", "LINE", "TITLE", "SIZE",
         "FROM:TO", "[MIN:]MAX", "N", "COLUMNSxROWS", "CHANCE", "PERCENT", "VERSION", "MINUTES", "SECONDS", "MILLISECONDS", "MICROSECONDS"}
UNITS = {"-s": "SECONDS", "-ms": "MILLISECONDS", "-us": "MICROSECONDS"}  # how a name may end


def values_of(text):
    """[(names, what stands for the value, help)] of the options and positional arguments that a help text lists."""
    out = []
    check("\nUsage: " not in text or not re.search(r"^  -\S.*\S (?=\S)(?<=^.{40})", text, re.M), "a value and its help run into each other", text)
    for head, rest in re.findall(r"^  (\S.*?)(?:  +|\n {20,}|$)(.*)$", re.split(r"^(?:Positionals|Options|positional arguments|options):$", text, maxsplit=1, flags=re.M)[1], re.M):
        names = re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", head) or [head.split()[0]]
        kind = re.sub(r"^(?:--?[A-Za-z][\w-]*,? ?)+|^[A-Za-z]+ ?(?![\w|])", "", re.sub(r" REQUIRED| \.\.\.(?= REQUIRED|$)| x \d+$", "", head))
        out.append((names, re.sub(r",? --?[a-z].*", "", kind).strip(), rest))
    return out


def kinds_of_values():
    """Of each value the help says what it is: a file, a number of what, or which words there are."""
    seen = set()
    for words in every_command():
        text = good(*words, "-h").stdout
        if "usage:" in text and "[options]" in text:
            continue  # a list of subcommands
        usage = re.search(r"^Usage: .*", text, re.M)
        check(usage is None or not re.search(r"\(\d+x\)", usage.group(0)), words, usage)
        for names, kind, rest in values_of(text):
            seen.add(" ".join([*words, *names]))
            for one in re.sub(r",\.\.\.|^\[(?!ADDRESS|MIN)|(?<!MIN:)\]$", "", kind).split("|"):
                check(one == "" or one in KINDS or re.fullmatch(r"[a-z0-9][A-Za-z0-9-]*|H|D|MD|MH|WHICH", one), words, names, "what is", kind)
            for end, unit in UNITS.items():
                check(not any(name.startswith("--") and name.endswith(end) for name in names) or kind == unit, words, names, kind, "wanted:", unit)
            check(kind != "" or not names[0].startswith("-") or not rest.endswith("]"), words, names, "has a default and no value", rest)
            check("[-1]" not in rest or "-1:" in rest, words, names, "what is the default -1?", rest)
    for one in ("gate --baseline", "store serve --data", "store put KEY", "p2p latency memory", "report -o --output", "pplat -G --to-gpu-flag"):
        check(one in seen, one, seen)


def misspelt_variables():
    done = good("explain-copy", "--size", "64K", "--d2h", **{THREAD: "2"}, PEERLANE_CLEAN_ROOM="1")
    told = [line for line in done.stderr.splitlines() if "PEERLANE_" in line]
    check(len(told) == 1 and f"{THREAD} is not a variable" in told[0] and "did you mean PEERLANE_COPY_THREADS?" in told[0], done.stderr)
    done = good("store", "perf", "--elements", "20", **{STROE: "x"})  # with a server of its own
    check(done.stderr.count(STROE) == 1, done.stderr)
    text = good("env", **{THREAD: "2"}, PEERLANE_CLEAN_ROOM="1").stdout
    unknown = text.split("set, but no variable of Peerlane:\n")[1]
    check(f"{THREAD}  did you mean PEERLANE_COPY_THREADS?" in unknown and "\nPEERLANE_CLEAN_ROOM\n" in "\n" + unknown, unknown)
    check("no variable" not in good("env").stdout, "nothing is misspelt")
    check(run("info", "-h", **{"GDRCOPY_" + "LOG_LEVLE": "1"}).stderr.count("GDRCOPY_LOG_LEVEL?") == 1, "GDRCopy's names")


def blocking_launches():
    """Where launches wait for their end, kernels that wait for the CPU would never end."""
    done = good("sanity", "-t", "kernel_sees_write", CUDA_LAUNCH_BLOCKING="1")
    check("CUDA_LAUNCH_BLOCKING is ignored" in done.stderr, done.stderr)
    check("CUDA_LAUNCH" not in good("sanity", "-t", "kernel_sees_write", CUDA_LAUNCH_BLOCKING="0").stderr, "not set")


def environment_groups():
    text = good("env", COLUMNS="80").stdout
    areas = re.findall(r"^([a-z]+):$", text, re.M)
    check(areas == ["general", "mapping", "copy", "messages", "streams", "store", "simulator", "launchers"], areas)
    prose = [line for line in text.splitlines() if line.startswith("    ")]
    check(max(map(len, prose)) <= 80, max(prose, key=len))
    check(max(map(len, good("env", COLUMNS="200").stdout.splitlines())) > 80, "a wide terminal is used")
    check(on_a_terminal("env", "copy", COLUMNS="60")[0] == 0, "on a terminal")
    copy = good("env", "copy").stdout
    check(re.findall(r"^([a-z]+):$", copy, re.M) == ["copy"] and "PEERLANE_COPY_ISA" in copy and "PEERLANE_STORE" not in copy, copy)
    part = re.findall(r"^([A-Z]\w+) ", good("env", "link_ucx").stdout, re.M)
    check(part == ["PEERLANE_LINK_UCX_RENDEZVOUS"], part)
    rows = json.loads(good("env", "copy", "store", "--json", "-").stdout)["rows"]
    check({row["area"] for row in rows} == {"copy", "store"}, rows)
    done = run("env", "nonsense")
    check(done.returncode == 1 and "areas: general, mapping" in done.stderr, done.stderr)


def json_to_stdout():
    """Every command that has --json: nothing but JSON on standard output, the text on standard error."""
    with tempfile.TemporaryDirectory() as cache:
        for words in every_command():
            if not re.search(r"^  --json FILE", good(*words, "-h").stdout, re.M):  # top's is looked at below
                continue
            name = " ".join(words)
            more = QUICK.get(name)
            if more is None:
                check(words[0] in ("p2p", "async"), "which options make it quick?", name)
                continue  # one of each family is run
            done = run(*words, *more, "--json", "-", XDG_CACHE_HOME=cache)
            check(done.returncode in (0, 3, 6) and json.loads(done.stdout)["schema"].startswith("peerlane-result/"), name, done.returncode, done.stderr[-800:])
            check(done.stderr.strip(), name, "has no text")
    top = good("top", "--interval", "0.1", "--json", "-")
    check("processes" in json.loads(top.stdout), top.stdout)


def full_disks():
    """What cannot be written is an error of every command: the text, its JSON on standard output, its JSON in a file."""
    with tempfile.TemporaryDirectory() as folder:
        target, link, missing = (os.path.join(folder, name) for name in ("target", "link", "none/file"))
        os.symlink("target", link)
        good("env", "--json", link)
        with open(target, encoding="utf-8") as file:
            check(os.path.islink(link) and json.load(file)["passed"], "a link stays, and its target is written")
        for words in (["p2p", "latency"], ["p2p", "allreduce"], ["async", "pingpong"], ["copybw"], ["info"], ["env"], ["gate"], ["top"]):
            more = QUICK.get(" ".join(words), QUICK["p2p latency"])
            for added in ([], ["--json", "-"]):
                with open("/dev/full", "w", encoding="utf-8") as full:
                    done = subprocess.run([os.path.join(OUT, "peerlane"), *words, *more, *added], env=environment(), stdin=subprocess.DEVNULL,
                                          stdout=full, stderr=subprocess.PIPE, text=True, timeout=280, check=False)
                check(done.returncode == 1 and "standard output cannot be written" in done.stderr, words, added, done.returncode, done.stderr[-500:])
            done = run(*words, *more, "--json", missing)
            check(done.returncode == 1 and missing in done.stderr, words, done.returncode, done.stderr[-500:])


def closed_descriptors():
    """Standard input, output and error that are closed get no file of a command, and a closed output is an error as a full one is."""
    def without(*places):
        def close():
            for place in places:
                os.close(place)
        return close
    for words in (["info"], ["copybw"], ["p2p", "latency"], ["store", "perf"], ["top"]):
        line = [os.path.join(OUT, "peerlane"), *words, *QUICK.get(" ".join(words), [])]
        for places in ((0,), (1,), (2,), (0, 1, 2)):
            done = subprocess.run(line, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280, check=False,
                                  preexec_fn=without(*places))
            check(done.returncode == (1 if 1 in places else 0), words, places, done.returncode, done.stderr[-500:])
            if places == (1,):
                check("standard output cannot be written" in done.stderr, words, done.stderr[-500:])
    for words in (["info"], ["copybw"], ["p2p", "latency"], ["explain-copy"]):  # the text beside the JSON is nobody's
        done = subprocess.run([os.path.join(OUT, "peerlane"), *words, *QUICK[" ".join(words)], "--json", "-"], env=environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280, check=False, preexec_fn=without(2))
        check(done.returncode == 0 and json.loads(done.stdout)["passed"], words, done.returncode, done.stdout[-300:])


def inherited_signals():
    """Signals that the caller has blocked, or children that it ignores, make no command wait for its helpers for ever."""
    def block_all():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP])
    for prepare in (block_all, lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)):
        for words in (["store", "perf"], ["soak"], ["p2p", "latency"]):
            done = subprocess.run([os.path.join(OUT, "peerlane"), *words, *QUICK[" ".join(words)]], env=environment(), stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=140, check=False, preexec_fn=prepare)
            check(done.returncode == 0, words, done.returncode, done.stderr[-500:])


NO_THREAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
static atomic_int made;
int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*body)(void*), void* value) {
  int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
  return atomic_fetch_add(&made, 1) >= atoi(getenv("THREADS")) ? EAGAIN : real(thread, how, body, value);
}
"""


def scarce_threads():
    """Each process gets k threads and no more: a reason and no signal, for every k, in the store's index and the simulated GPU, too. Nor
    does a command wait for threads that never began."""
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "no_thread.so")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-xc", "-", "-o", library, "-ldl"], input=NO_THREAD, text=True, check=True)
        for words in (["store", "perf", "--elements", "10"], ["copybw", "-s", "64K", "-w", "1", "-r", "1"], ["pplat", "-t", "20"]):
            codes = []
            for count in (0, 1, 2, 3, 5, 6, 7, 10, 15, 40):
                done = run(*words, LD_PRELOAD=library, THREADS=str(count))
                check(done.returncode in (0, 1) and "terminate" not in done.stderr and "signal" not in done.stderr, words, count,
                      done.returncode, done.stderr[-800:])
                codes.append(done.returncode)
            check(codes[-1] == 0, words, codes)
        for words in (["store", "perf", "--cores", "3", "--elements", "10"], ["sanity", "-t", "concurrent_pin_map_copy_threads"],
                      ["sanity", "-t", "basic_child_thread_pins_buffer"], ["bandwidth", "-t", "0", "-b", "16M", "-i", "1"],
                      ["async", "cost"], ["soak", "--seconds", "1", "--only", "mappings"]):
            for count in (0, 1, 3, 7):
                done = run(*words, LD_PRELOAD=library, THREADS=str(count))
                check(done.returncode in (0, 1, 2) and "terminate" not in done.stderr and "signal" not in done.stderr, words, count,
                      done.returncode, done.stderr[-800:])


def gpu_numbers():
    """A GPU that is not there is named by every command that takes its number, at once."""
    asked = 0
    for words in every_command():
        if not re.search(r"^ +(-d,)?--gpu N", good(*words, "-h").stdout, re.M):
            continue
        asked += 1
        begin = time.monotonic()
        done = run(*words, "--gpu", "16")
        check(done.returncode == 1 and "there is no GPU 16: this process sees 2" in done.stderr, words, done.returncode, done.stderr[-500:])
        check(time.monotonic() - begin < SHARED_MACHINE * 5, words, "took", time.monotonic() - begin)
    check(asked > 12, asked)


def file_limits():
    """A limit on the length of files is an error with its reason; no command ends by SIGXFSZ."""
    for words in (["copybw"], ["pplat"], ["p2p", "latency"], ["async", "pingpong"]):
        done = subprocess.run([os.path.join(OUT, "peerlane"), *words, *QUICK[" ".join(words)]], env=environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=280, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        check(done.returncode == 1 and f"peerlane {words[0]}" in done.stderr and "signal" not in done.stderr, words, done.returncode, done.stderr)


def colours():
    escape = "\033["
    code, text = on_a_terminal("doctor")
    check(code in (0, 1) and escape in text, text[:300])
    for plain in (on_a_terminal("doctor", NO_COLOR="1")[1], on_a_terminal("doctor", TERM="dumb")[1], run("doctor").stdout):
        check("simulated GPU" in plain and escape not in plain, plain[:300])
    check("\033[32mPassed: 1" in on_a_terminal("sanity", "-t", "basic_cumemalloc")[1], "sanity")
    check(escape not in run("sanity", "-t", "basic_cumemalloc").stdout, "sanity in a pipe")
    check(escape in on_a_terminal("topo")[1] and escape not in run("topo").stdout, "topo")


def completed(*words):
    return [line.split("\t")[0] for line in good("__complete", *words).stdout.splitlines()]


def completion():
    check(completed("") == [*commands_of(good("-h").stdout), "help"], completed(""))
    check("demo" in completed("d") and "copy" not in completed("d"), completed("d"))
    check(completed("store", "pu") == ["put"], completed("store", "pu"))
    check(completed("p2p", "lat") == ["latency"], completed("p2p", "lat"))
    check(completed("copybw", "--al") == ["--alloc"], completed("copybw", "--al"))
    check(completed("copybw", "--alloc", "") == ["cuMemAlloc", "cuMemCreate"], completed("copybw", "--alloc", ""))
    check(completed("copybw", "-s", "") == [], "a size has no words")
    check(completed("store", "pool", "") == ["create", "set", "delete"], completed("store", "pool", ""))
    check("store" in completed("env", "st") and completed("help", "copyb") == ["copybw"], completed("env", "st"))
    check("\t" in good("__complete", "store", "pu").stdout, "zsh shows the help")
    # Every long option that a command's help shows.
    for words in every_command():
        shown = set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", "\n".join(re.findall(r"^ {2,3}-.*$", good(*words, "-h").stdout, re.M)).split("  Print", 1)[0]))
        check(shown - {"--help"} <= set(completed(*words, "--")), words, shown, completed(*words, "--"))


def shells():
    script = os.path.join(SOURCE, "packaging/completions/peerlane.bash")
    body = f'. "{script}"; COMP_WORDS=(peerlane store pu); COMP_CWORD=2; _peerlane; echo "${{COMPREPLY[@]}}"; complete -p peerlane'
    done = subprocess.run(["bash", "-euc", body], env=environment(), text=True, capture_output=True, check=True)
    check(done.stdout.startswith("put\n") and "_peerlane" in done.stdout, done.stdout)
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n", os.path.join(SOURCE, "packaging/completions/_peerlane")], check=True)
    else:
        print("NOT CHECKED: zsh (not installed)")


def manual():
    page = good("__manual").stdout
    plain = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
    for words in every_command():
        check(f".SS peerlane {' '.join(words)}\n" in plain, words)
    for part in ("--alloc", "PEERLANE_COPY_THREADS", ".SH EXIT STATUS", "gdrcopy_sanity", "--durability"):
        check(part in plain, part)
    if shutil.which("man"):
        with tempfile.NamedTemporaryFile("w", suffix=".1") as file:
            file.write(page)
            file.flush()
            done = subprocess.run(["man", "--warnings", "-l", file.name], env={**environment(), "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}, text=True,
                                  capture_output=True, check=False)
            check(done.returncode == 0 and done.stderr == "", done.stderr[-800:])
    else:
        print("NOT CHECKED: how man shows it (not installed)")


def python_options():
    """The options of the commands in Python are listed twice: here they are the same."""
    for command in ("report", "top"):
        shown = set(re.findall(r"(?:^| |,)(--?[a-z][a-z-]*)", "\n".join(re.findall(r"^  -.*?(?:  |$)", good(command, "-h").stdout, re.M)), re.M))
        known = {word for word in completed(command, "-")} | {"--version"}
        check(shown | {"--version"} == known, command, shown ^ known)


def smaller_runs():
    """By default no command takes more than 20 s of a small machine on the simulated GPU."""
    with tempfile.TemporaryDirectory() as cache:
        for words in (["copy"], ["blocks"], ["calibrate"], ["copylat"], ["copybw"], ["apiperf"], ["pplat"], ["async", "stencil"], ["async", "multigrid"],
                      ["async", "pingpong"], ["async", "economy"], ["bandwidth"], ["p2p", "latency"], ["p2p", "mbw_mr"]):
            before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            done = good(*words, XDG_CACHE_HOME=cache)
            after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begin
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            check(cpu < 2 * 20 and took < SHARED_MACHINE * 20, words, f"{took:.1f} s, {cpu:.1f} s of CPU")
            if words[0] in ("copy", "blocks", "calibrate", "async"):
                check("smaller than by default, as the GPU is simulated" in done.stderr, words, done.stderr)
    given = good("async", "pingpong", "-i", "20").stderr
    check("--iterations" not in given, "what is given stays", given)


if __name__ == "__main__":
    OUT, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    globals()[sys.argv[3]]()
