#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Applies the mutants of docs/async-mutants.md one by one and demands that the test named there fails.

  python3 scripts/mutants.py BUILD_FOLDER [WORD...]

In place, on a tree without changes in the files concerned; each file is put back whatever happens. Exit code 1: a mutant survived, or an
entry does not fit the code any more."""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST = os.path.join(ROOT, "docs", "async-mutants.md")
ENTRY = re.compile(r"^## (?P<name>[^\n]+)\n`(?P<file>[^`]+)` · `(?P<test>[^`]+)`\n```diff\n(?P<diff>.*?)```", re.MULTILINE | re.DOTALL)
SECONDS = 120


def entries():
    with open(LIST, encoding="utf-8") as file:
        for found in ENTRY.finditer(file.read()):
            lines = found["diff"].splitlines()
            old = "\n".join(line[1:] for line in lines if line.startswith("-"))
            new = "\n".join(line[1:] for line in lines if line.startswith("+"))
            yield found["name"], os.path.join(ROOT, found["file"]), found["test"], old, new


def run(build, test):
    """Whether the test passed; None if the mutant does not compile."""
    built = subprocess.run(["ninja", "-C", build, "-j2", "stream_test"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if built.returncode != 0:
        print(built.stdout[-1500:])
        return None
    program = os.path.join(build, "test", "triggered", "stream_test")
    environment = dict(os.environ, PEERLANE_SIM_LOG="off")
    try:
        # A process of its own group: what a mutant leaves hanging goes with it.
        child = subprocess.Popen([program, "--gtest_filter=" + test], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 env=environment, start_new_session=True)
        return child.wait(timeout=SECONDS) == 0
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.wait()
        return False


def try_one(build, name, path, test, old, new):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.count(old) != 1:
        return f"does not fit {os.path.relpath(path, ROOT)} (found {text.count(old)} times)"
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))
        passed = run(build, test)
    finally:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    if passed is None:
        return "does not compile"
    return f"SURVIVED {test}" if passed else ""


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    build, words = os.path.abspath(sys.argv[1]), sys.argv[2:]
    failed = 0
    for name, path, test, old, new in entries():
        if words and not any(word in name for word in words):
            continue
        problem = try_one(build, name, path, test, old, new)
        print(f"{problem or 'caught':40}  {name}", flush=True)
        failed += bool(problem)
    subprocess.run(["ninja", "-C", build, "-j2", "stream_test"], stdout=subprocess.DEVNULL, check=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
