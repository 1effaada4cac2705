#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Applies the mutants of docs/async-mutants.md and test/mutants/*.md, and checks that the test named there fails.

  python3 scripts/mutants.py BUILD_FOLDER [--results FILE] [WORD...]

Changes statements of the product in place; the files concerned must have no uncommitted changes, and are always restored. A mutant is a
whole statement, or an expression if its header says so. Many are built together, each selected by `PL_MUTANT=<number>`; one whose header
ends with `alone` (a declaration) is built by itself. Each test runs without its mutant first and must pass. A test is a filter of
the named program, `FILE.py::NAME` of pytest, or `ctest:NAME`, for which the program is built. WORDs choose the entries whose file, name,
program or test contains one of them. FILE gets a line for each mutant; lines of other mutants stay. Exit code 1: a mutant survived, or an
entry does not match the code."""

import argparse
import collections
import glob
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENTRY = re.compile(r"^## (?P<name>[^\n]+)\n`(?P<file>[^`]+)`(?: · `(?P<program>[^`.]+)`)? · `(?P<test>[^`]+)`(?: · (?P<mode>alone|expression))?\n"
                   r"```diff\n(?P<diff>.*?)```", re.MULTILINE | re.DOTALL)
SECONDS = 240
SWITCH = """#ifndef PL_MUTANT_SWITCH
#define PL_MUTANT_SWITCH
#include <cstdlib>
#include <cstring>
inline bool pl_mutant(const char* number) {
  const char* chosen = std::getenv("PL_MUTANT");
  return chosen != nullptr && std::strcmp(chosen, number) == 0;
}
#endif
"""

Mutant = collections.namedtuple("Mutant", "page name file program test mode old new")


def pages():
    return [os.path.join(ROOT, "docs", "async-mutants.md")] + sorted(glob.glob(os.path.join(ROOT, "test", "mutants", "*.md")))


def entries_of(page, text):
    for found in ENTRY.finditer(text):
        lines = found["diff"].splitlines()
        yield Mutant(page, found["name"], found["file"], found["program"] or "stream_test", found["test"],
                     found["mode"] or ("statement" if found["program"] else "alone"),
                     "\n".join(line[1:] for line in lines if line.startswith("-")),
                     "\n".join(line[1:] for line in lines if line.startswith("+")))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def mutate(text, changes):
    """`text` with each (old, new) replaced; None if one does not occur exactly once, or two overlap."""
    places = []
    for old, new in changes:
        if text.count(old) != 1:
            return None
        begin = text.index(old)
        places.append((begin, begin + len(old), new))
    places.sort(reverse=True)
    for later, earlier in zip(places, places[1:]):
        if earlier[1] > later[0]:
            return None
    for begin, end, new in places:
        text = text[:begin] + new + text[end:]
    return text


def switched(number, one):
    if one.mode == "expression":
        return f'(pl_mutant("{number}") ? ({one.new}) : ({one.old}))'
    return f'if (pl_mutant("{number}")) {{\n{one.new}\n}} else {{\n{one.old}\n}}'


def batches(mutants):
    """Lists of (number, mutant) that are built together."""
    together, alone = [], []
    for number, one in enumerate(mutants, 1):
        if one.mode == "alone":
            alone.append([(number, one)])
            continue
        for batch in together:
            same = [(other.old, "") for _, other in batch if other.file == one.file] + [(one.old, "")]
            if batch[0][1].program == one.program and mutate(read(os.path.join(ROOT, one.file)), same) is not None:
                batch.append((number, one))
                break
        else:
            together.append([(number, one)])
    return together + alone


def run(build, one, number):
    """Whether the test passes, or None where it was not found."""
    if "::" in one.test:  # Python
        command = [os.path.join(ROOT, ".venv", "bin", "python"), "-m", "pytest", "-q", "-x", "-c", os.path.join(ROOT, "pyproject.toml"),
                   os.path.join(ROOT, one.test)]
    elif one.test.startswith("ctest:"):  # tests with more than one program
        command = ["ctest", "--test-dir", build, "--output-on-failure", "-R", f"^{re.escape(one.test[len('ctest:'):])}$"]
    else:
        programs = [path for path in glob.glob(os.path.join(build, "test", "**", one.program), recursive=True) if os.path.isfile(path)]
        if not programs:
            return None
        command = [programs[0], "--gtest_filter=" + one.test]
    environment = dict(os.environ, PEERLANE_SIM_LOG="off", PYTHONPATH=os.path.join(build, "out", "python"), PYTHONDONTWRITEBYTECODE="1")
    environment.pop("PL_MUTANT", None)
    if number is not None:
        environment["PL_MUTANT"] = str(number)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, errors="replace",
                          cwd=build, start_new_session=True) as child:
        try:
            said, _ = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)  # also ends what a mutant left hanging
            child.communicate()
            return False
    passed = child.returncode == 0
    return passed if not passed or re.search(r"\[  PASSED  \] [1-9]|[1-9]\d* passed|0 tests failed out of [1-9]", said) else None


def build_and_run(build, batch):
    changes = collections.defaultdict(list)
    for number, one in batch:
        changes[one.file].append((one.old, one.new if one.mode == "alone" else switched(number, one)))
    texts = {file: read(os.path.join(ROOT, file)) for file in changes}
    mutated = {file: mutate(texts[file], parts) for file, parts in changes.items()}
    unfit = {file for file, text in mutated.items() if text is None}
    for number, one in batch:
        if one.file in unfit:
            yield number, one, "does not fit", 0.0
    batch = [(number, one) for number, one in batch if one.file not in unfit]
    if not batch:
        return
    try:
        for file, text in mutated.items():
            if text is not None:
                write(os.path.join(ROOT, file), ("" if all(one.mode == "alone" for _, one in batch) else SWITCH) + text)
        target = [batch[0][1].program]
        built = subprocess.run(["ninja", "-C", build, "-j2", *target], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               check=False)
        if built.returncode != 0:
            print(built.stdout[-4000:])
        for number, one in batch:
            if built.returncode != 0:
                yield number, one, "does not compile", 0.0
                continue
            began = time.monotonic()
            passes = True if one.mode == "alone" else run(build, one, None)
            outcome = "no such test" if passes is None else "fails without it, too"
            if passes:
                with_it = run(build, one, None if one.mode == "alone" else number)
                outcome = "no such test" if with_it is None else "SURVIVED" if with_it else "caught"
            yield number, one, outcome, time.monotonic() - began
    finally:
        for file, text in texts.items():
            write(os.path.join(ROOT, file), text)


def keep(path, outcomes):
    """The file's lines by mutant, with those of this run replaced."""
    rows = {}
    if os.path.exists(path):
        for line in read(path).splitlines()[1:]:
            rows[line.split("\t")[0]] = line
    for one, outcome in outcomes:
        rows[one.name] = "\t".join((one.name, one.file, one.program, one.test, outcome))
    order = {one.name: place for place, one in enumerate(everything())}
    kept = sorted((name for name in rows if name in order), key=order.get)
    write(path, "\n".join(["mutant\tfile\tprogram\ttest\toutcome"] + [rows[name] for name in kept]) + "\n")


def everything():
    return [one for page in pages() for one in entries_of(page, read(page))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--results")
    parser.add_argument("word", nargs="*")
    given = parser.parse_intermixed_args()
    build = os.path.abspath(given.build)
    chosen = [one for one in everything()
              if not given.word or any(word in text for word in given.word for text in (one.page, one.name, one.file, one.program, one.test))]
    outcomes = []
    for batch in batches(chosen):
        for _, one, outcome, seconds in build_and_run(build, batch):
            print(f"{outcome:22} {seconds:6.1f} s  {one.name}  ({one.test})", flush=True)
            outcomes.append((one, outcome))
            if given.results:
                keep(given.results, outcomes)
    for program in sorted({one.program for one, _ in outcomes}):
        subprocess.run(["ninja", "-C", build, "-j2", program], stdout=subprocess.DEVNULL, check=False)
    return 1 if any(outcome != "caught" for _, outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
