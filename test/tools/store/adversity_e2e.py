#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`peerlane store` where the machine or another program takes something away: one clear line and an exit code, nothing half done.

usage: adversity_e2e.py OUT_FOLDER CASE UNREADABLE_FILES_LIBRARY        one function below for each case
"""
import os
import signal
import subprocess
import sys
import tempfile

import store_e2e  # finds e2e
import e2e
from store_e2e import Server, check, environment, good, run

OUT = ""


def start(*arguments, **more):
    return subprocess.Popen([os.path.join(OUT, "peerlane"), "store", *arguments], env=environment(), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)


def maps(process, path):
    try:
        with open(f"/proc/{process.pid}/maps", encoding="utf-8", errors="replace") as file:
            return path in file.read()
    except OSError:
        return False


def cut_off():
    """A file that becomes shorter while it is put."""
    mapped = 256 << 20  # larger files are not copied
    with tempfile.TemporaryDirectory() as folder, Server(folder) as server:
        good("pool", "create", "models", "--socket", server.socket)
        source = os.path.realpath(os.path.join(folder, "in"))
        for size, rest in ((mapped + 4096, 0), (mapped + 8, mapped + 1)):
            for where in (["--socket", server.socket], ["--connect", server.tcp]):
                with open(source, "wb") as file:
                    file.truncate(size)
                server.process.send_signal(signal.SIGSTOP)  # the command waits for its connection
                try:
                    command = start("put", "models", "k", source, *where)
                    store_e2e.until(lambda of=command: maps(of, source) or of.poll() is not None, "the file is mapped")
                    os.truncate(source, rest)
                finally:
                    server.process.send_signal(signal.SIGCONT)
                out, err = command.communicate(timeout=60)
                check(command.returncode == 1 and f"{source}: it became shorter" in err and out == "", size, command.returncode, out, err)
                if rest == 0:
                    check("no key" in run("stat", "models", "k", *where).err, "nothing is stored")
                run("rm", "-f", "models", "k", *where)
        with open(source, "wb") as file:
            file.write(b"0123456789")
        with open(source, "rb") as file:
            file.seek(4)
            command = start("put", "models", "k", "-", "--socket", server.socket, stdin=file)
            check("6 bytes" in command.communicate(timeout=60)[0], "from where standard input is")


def unreadable():
    """A disk that does not give some sectors: what works on folders says so, and repair saves the rest."""
    preload = {"LD_PRELOAD": sys.argv[3], "ASAN_OPTIONS": "verify_asan_link_order=0"}
    with tempfile.TemporaryDirectory() as top:
        source, new = os.path.join(top, "in"), os.path.join(top, "new")
        with Server(top) as server:
            for number in range(30):
                with open(source, "wb") as file:
                    file.write(os.urandom(5000))
                good("put", "--make-pool", "models", f"key{number}", source, "--socket", server.socket)
            server.process.kill()  # so that everything is in the index's log
            server.process.wait()
        log = max((one for one in os.listdir(os.path.join(server.data, "index")) if one.endswith(".log")),
                  key=lambda one: os.path.getsize(os.path.join(server.data, "index", one)))

        def tried(words, path, begin, size):
            return run(*words, **preload, UNREADABLE_PATH=path, UNREADABLE_FROM=str(begin), UNREADABLE_BYTES=str(size))

        check_it, repair_it = ["check", "--data", server.data], ["repair", "--data", server.data, "--to", new]
        done = tried(check_it, "/data/index/" + log, 3000, 500)
        check(done.code == 1 and f"{log}: EIO" in done.out and "29 keys, 29 values" in done.out, done.out, done.err)
        done = tried(repair_it, "/data/index/" + log, 3000, 500)
        check(done.code == 1 and "key 'key0': a damaged change of the index's log" in done.out and "29 values" in done.out, done.out, done.err)
        check("29 keys, 29 values" in good("check", "--data", new).out)
        subprocess.run(["rm", "-rf", new], check=True)
        done = tried(["serve", "--data", server.data, "--listen", "none"], "/data/index/" + log, 3000, 500)
        check(done.code == 1 and f"{log}: EIO" in done.err, "the server says which file", done.err)
        # A server that stops cleanly leaves a copy of the manifest. Each of the three is enough.
        with Server(top) as server:
            server.stop()
        index = os.path.join(server.data, "index")
        manifest = next(one for one in os.listdir(index) if one.startswith("MANIFEST-"))
        for path in ("/data/manifest.copy", "/data/index/" + manifest, "/data/index/CURRENT", "/data/commit.mark"):
            done = tried(repair_it, path, 0, 1 << 40)
            check(done.code == 0 and "30 values" in done.out, path, done.code, done.out, done.err)
            subprocess.run(["rm", "-rf", new], check=True)
            done = tried(check_it, path, 0, 1 << 40)
            check("30 keys, 30 values" in done.out, path, done.code, done.out, done.err)
        backup = os.path.join(top, "backup")
        good("backup", "--data", server.data, "--to", backup)
        done = tried(["restore", "--from", backup, "--data", new], "/backup/backup.list", 0, 1)
        check(done.code == 1 and "backup.list: EIO" in done.err and not os.path.exists(new), done.err)


def names():
    """Keys and pools of any byte say nothing to the terminal of who lists, reads or mistypes them."""
    keys = [b"a\x1b]0;x\x07", b"b\x1b[2J\r", b"c\x9b\xc2\x9b31m\x7f", b"d\xff\xfe", b"e\nf"]
    with tempfile.TemporaryDirectory() as folder, Server(folder) as server:
        source, target = os.path.join(folder, "in"), os.path.join(folder, "out")
        with open(source, "wb") as file:
            file.write(b"value")
        where = ["--socket", server.socket]
        good("pool", "create", "models", *where)
        # One word for each key: "KEY" stands for it.
        for words in (["pool", "create", "KEY"], ["put", "models", "KEY", source], ["get", "models", "KEY", target], ["get", "models", "KEY", "KEY/x"],
                      ["exists", "models", "KEY"], ["exists", "models", "KEYx"], ["put", "models", "KEY", source, "--if-version", "9"],
                      ["rm", "models", "KEYx"], ["get", "models", "KEYx", target], ["get", "KEYx", "k", target], ["find", "models", "--regex", "(KEY"], ["ls", "KEYx"],
                      ["stat", "models", "KEYx"], ["--KEY"], ["put", "models", "k", source, "--KEY"], ["ls"], ["ls", "models", "-l"], ["top", "--once", "--interval-ms", "50"]):
            for key in keys:
                given = [one.encode().replace(b"KEY", key) for one in words]
                _, text = e2e.on_a_terminal([os.path.join(OUT, "peerlane"), "store", *given, *(where if len(words) > 1 or words == ["ls"] else [])],
                                            store_e2e.environment())
                shown = text.replace("\r\n", "\n").replace("\x1b[H\x1b[2J", "")
                check(all(c == "\n" or (c >= " " and c != "\x7f" and not "\x80" <= c < "\xa0") for c in shown), words, repr(text))
        check(run("exists", "models", keys[1], *where).out.startswith("b\x1b[2J"), "a pipe gets the bytes themselves")


def scarce_memory():
    """ulimit -d: a reason and no signal, also where the simulated GPU's threads find no memory."""
    reasons = set()
    for words in (["async", "pingpong"], ["async", "stencil"], ["store", "perf", "--elements", "10"]):
        for limit in range(50, 101, 10):
            done = subprocess.run(["prlimit", f"--data={limit << 20}", os.path.join(OUT, "peerlane"), *words], env=environment(), text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
            check(done.returncode in (0, 1) and "signal" not in done.stderr and "terminate" not in done.stderr and "bad_alloc" not in done.stderr,
                  words, limit, done.returncode, done.stderr[-800:])
            reasons |= set(done.stderr.splitlines()[-1:]) if done.returncode else set()
    for words in (["top", "--once"], ["report", "missing.json"], ["store", "ls", "--socket", "missing"]):
        done = subprocess.run(["prlimit", "--stack=65536:65536", os.path.join(OUT, "peerlane"), *words], env=environment(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
        check(done.returncode == 1 and "ulimit -s" in done.stderr, words, done.returncode, done.stderr)
    check(reasons, "the limits were too large for this test")


if __name__ == "__main__":
    OUT = store_e2e.OUT = sys.argv[1]
    globals()[sys.argv[2]]()
