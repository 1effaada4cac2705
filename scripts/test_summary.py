#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up ctest's JUnit reports: names what failed, why tests were skipped, and ends with one line of counts.

    scripts/test_summary.py PRESET=REPORT.xml...      exit 1 if a test failed, a report is missing, or nothing ran

Beside a report, ctest.log (if there is one) tells which tests passed at their second try only: they are named too; and
tests-left how many tests of the preset were not begun.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

MAX_NAMED = 20  # failures listed by name; more are a pattern that the log above shows


def skip_reason(case):
    """The sentence that the test printed: GoogleTest's text after `Skipped`, or our `SKIP: ...` line."""
    output = case.findtext("system-out") or ""
    for pattern in (r"^SKIP(?:PED)?: (.+)$", r": Skipped\n(.+)$"):
        found = re.search(pattern, output, re.M)
        if found:
            return found.group(1).strip()
    return (case.find("skipped").get("message") if case.find("skipped") is not None else "") or "no reason given"


def add_report(preset, path, counts, failures, skips, unchecked):
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        # A test may pass and still say that it left something out, such as lint without clang-format.
        unchecked.update(re.findall(r"NOT CHECKED: (.+)$", case.findtext("system-out") or "", re.M))
        if case.find("failure") is not None or case.get("status") == "fail":
            counts["failed"] += 1
            failures.append(f"{preset}: {case.get('name')}")
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            counts["skipped"] += 1
            skips[skip_reason(case)] += 1
        elif case.get("status") != "disabled":
            counts["passed"] += 1


def second_tries(preset, log, failures):
    """Those that the log says failed and the report does not."""
    failed = re.findall(r" Test +#\d+: (.+?) \.*\*\*\*(?!Skipped|Not Run)", log.read_text(errors="replace")) if log.is_file() else []
    return [name for name in (f"{preset}: {one}" for one in dict.fromkeys(failed)) if name not in failures]


def main(arguments):
    counts, failures, skips, unchecked, folders = Counter(), [], Counter(), set(), {}
    for argument in arguments:
        preset, _, path = argument.partition("=")
        if Path(path).is_file():
            add_report(preset, path, counts, failures, skips, unchecked)
            folders[preset] = Path(path).parent
        else:
            counts["failed"] += 1
            failures.append(f"{preset}: no report was written: ctest did not run")
    retried = []
    for preset, folder in folders.items():
        retried += second_tries(preset, folder / "ctest.log", failures)
        if (folder / "tests-left").is_file():
            left = int((folder / "tests-left").read_text())
            counts["skipped"] += left
            skips[f"{preset}: no time was left for it (TEST_END_S)"] += left
    for name in failures[:MAX_NAMED]:
        print(f"failed: {name}")
    if len(failures) > MAX_NAMED:
        print(f"failed: ... and {len(failures) - MAX_NAMED} more")
    for name in retried:
        print(f"passed at the second try only: {name}")
    for text in sorted(unchecked):
        print(f"not checked: {text}")
    for reason, count in sorted(skips.items()):
        print(f"skipped: {count} x {reason}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
