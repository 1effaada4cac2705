#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Backups, restores and repairs that end early: by kill -9, and on disks that are too small. What is left is no store.

usage: copies_e2e.py OUT_FOLDER CASE        one function below for each case
"""
import os
import subprocess
import sys
import tempfile
import time

import store_e2e
from store_e2e import Server, check, environment, good, run

OUT = ""


def make_stores(top):
    """A stopped store, its backup and its keys."""
    source = os.path.join(top, "in")
    with Server(top, "--extent-file", "4M") as server:
        for number in range(12):
            with open(source, "wb") as file:
                file.write(os.urandom(1_000_000))
            good("put", "--make-pool", "models", f"key{number}", source, "--socket", server.socket)
    backup = os.path.join(top, "backup")
    good("backup", "--data", server.data, "--to", backup)
    return server.data, backup


def copies(data, backup, target):
    return {"backup": ["backup", "--data", data, "--to", target], "restore": ["restore", "--from", backup, "--data", target],
            "repair": ["repair", "--data", data, "--to", target]}


def expect_all_or_none(data, backup, target, name, ended_well):
    """The copy is whole, or everything that could take it for one refuses it by name."""
    if not ended_well and (not os.path.isdir(target) or not os.listdir(target)):
        return
    if name == "backup" and ended_well:
        target2 = target + ".restored"
        good("restore", "--from", target, "--data", target2)
        subprocess.run(["rm", "-rf", target2], check=True)
    elif ended_well:
        check("12 keys, 12 values" in good("check", "--data", target).out)
    else:
        for words in (["check", "--data", target], ["backup", "--data", target, "--to", target + ".x"],
                      ["repair", "--data", target, "--to", target + ".x"], ["restore", "--from", target, "--data", target + ".x"],
                      ["serve", "--data", target, "--check"], ["serve", "--data", target]):
            done = run(*words)
            check(done.code == 1 and "has not finished, or was interrupted: remove the folder" in done.err, words, done.code, done.out, done.err)
            check(not os.path.exists(target + ".x"), words)
        done = run(*copies(data, backup, target)[name])
        check(done.code == 1 and "has not finished, or was interrupted: remove the folder" in done.err, done.err)


def killed():
    with tempfile.TemporaryDirectory() as top:
        data, backup = make_stores(top)
        target = os.path.join(top, "target")
        for name, words in copies(data, backup, target).items():
            began = time.monotonic()
            good(*words)
            whole = time.monotonic() - began
            expect_all_or_none(data, backup, target, name, True)
            killed_early = 0
            for part in range(1, 16):
                subprocess.run(["rm", "-rf", target], check=True)
                command = subprocess.Popen([os.path.join(OUT, "peerlane"), "store", *words], env=environment(), stdout=subprocess.DEVNULL)
                time.sleep(whole * part / 16)
                command.kill()
                ended_well = command.wait() == 0
                killed_early += not ended_well and os.path.exists(os.path.join(target, "unfinished"))
                expect_all_or_none(data, backup, target, name, ended_well or (os.path.isdir(target) and os.listdir(target) and
                                                                              not os.path.exists(os.path.join(target, "unfinished"))))
            subprocess.run(["rm", "-rf", target], check=True)
            check(killed_early > 0, name, "was never killed in the middle")


def small_disk():
    """Each copy onto disks of every size around its own: it says that there is no room and leaves nothing, or it is whole."""
    with tempfile.TemporaryDirectory() as top:
        mounted = os.path.join(top, "disk")
        os.mkdir(mounted)
        unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-m", "--map-root-user"]
        probe = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", mounted], stderr=subprocess.PIPE, text=True)
        if probe.returncode != 0:
            print("SKIPPED: no mount namespace of its own here:", probe.stderr.strip())
            sys.exit(77)
        check(subprocess.run([*unshare, sys.executable, __file__, OUT, "on_small_disks", mounted]).returncode == 0, "on_small_disks")


def on_small_disks():
    mounted = sys.argv[3]
    with tempfile.TemporaryDirectory() as top:
        data, backup = make_stores(top)
        target = os.path.join(mounted, "copy")
        for name, words in copies(data, backup, target).items():
            subprocess.run(["mount", "-t", "tmpfs", "none", mounted], check=True)
            good(*words)
            pages = int(subprocess.run(["du", "-s", "-B", "4096", mounted], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[0])
            subprocess.run(["umount", mounted], check=True)
            outcomes = set()
            for size in [1, 64, pages // 2, *range(pages - 12, pages + 4), pages + 200, 4 * pages]:
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size * 4}k", "none", mounted], check=True)
                done = run(*words)
                outcomes.add(done.code)
                check(done.code in (0, 1), size, done.code, done.err)
                if done.code == 1:
                    check("No space left" in done.err or "free" in done.err or "repair" in name, size, done.out, done.err)
                    check(not os.path.isdir(target) or not os.listdir(target), size, os.listdir(target) if os.path.isdir(target) else "", done.err)
                else:
                    expect_whole_elsewhere(name, target, top)
                subprocess.run(["umount", mounted], check=True)
            check(outcomes == {0, 1}, name, outcomes)


def expect_whole_elsewhere(name, target, top):
    if name != "backup":
        return check("12 keys, 12 values" in good("check", "--data", target).out)
    restored = os.path.join(top, "restored")
    good("restore", "--from", target, "--data", restored)
    subprocess.run(["rm", "-rf", restored], check=True)


def within():
    """A copy within its source would become part of it."""
    with tempfile.TemporaryDirectory() as top:
        data, backup = make_stores(top)
        os.symlink(data, os.path.join(top, "link"))
        os.mkdir(os.path.join(data, "empty"))
        for place in (data + "/copy", data + "/a/b", data + "/empty", data + "/../data/copy", top + "/link/copy", data, top + "/link"):
            for words in (["backup", "--data", data, "--to", place], ["repair", "--data", top + "/link", "--to", place]):
                done = run(*words)
                check(done.code == 1 and f"{place} is " in done.err and "or is inside it: name a directory outside" in done.err, words, done.err)
        done = run("restore", "--from", backup, "--data", backup + "/copy")
        check(done.code == 1 and "is inside it" in done.err, done.err)
        check("12 keys, 12 values of 12000000 bytes read, 0 problems" in good("check", "--data", data).out)
        good("backup", "--data", data, "--to", data + "copy")  # beside it, with a name that begins alike


if __name__ == "__main__":
    OUT = store_e2e.OUT = sys.argv[1]
    globals()[sys.argv[2]]()
