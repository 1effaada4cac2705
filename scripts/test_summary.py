#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up ctest's JUnit reports: names the failed tests, the reasons of skips, and ends with one line of counts.

    scripts/test_summary.py PRESET=REPORT.xml...      exit 1 if a test failed, a report is missing, or nothing ran

A test that is in several reports of a preset was repeated; it passed if it passed in one of them, which is printed. The file tests-left
beside a report contains the number of tests of the preset that were not started.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

MAX_NAMED = 20  # failures that are listed by name; the log above shows the others


def skip_reason(case):
    """The sentence that the test printed: GoogleTest's text after `Skipped`, or our `SKIP: ...` line."""
    output = case.findtext("system-out") or ""
    for pattern in (r"^SKIP(?:PED)?: (.+)$", r": Skipped\n(.+)$"):
        found = re.search(pattern, output, re.M)
        if found:
            return found.group(1).strip()
    return (case.find("skipped").get("message") if case.find("skipped") is not None else "") or "no reason given"


def outcome_of(case):
    """Passed, failed, skipped, or None for a disabled test."""
    if case.find("failure") is not None or case.get("status") == "fail":
        return "failed"
    if case.find("skipped") is not None or case.get("status") == "notrun":
        return "skipped"
    return None if case.get("status") == "disabled" else "passed"


def read_report(path, outcomes, skips, unchecked):
    """Adds to a preset's outcomes: for each test's name, the outcomes of its tries in order."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        # A test may pass and still report that it skipped a part, such as lint without clang-format.
        unchecked.update(re.findall(r"NOT CHECKED: (.+)$", case.findtext("system-out") or "", re.M))
        outcome = outcome_of(case)
        if outcome is not None:
            outcomes.setdefault(case.get("name"), []).append(outcome)
        if outcome == "skipped":
            skips[skip_reason(case)] += 1


def main(arguments):
    counts, failures, retried, skips, unchecked, presets = Counter(), [], [], Counter(), set(), {}
    for argument in arguments:
        preset, _, path = argument.partition("=")
        if Path(path).is_file():
            outcomes, _ = presets.setdefault(preset, ({}, Path(path).parent))
            read_report(path, outcomes, skips, unchecked)
        else:
            counts["failed"] += 1
            failures.append(f"{preset}: no report was written: ctest did not run")
    for preset, (outcomes, folder) in presets.items():
        for name, tries in outcomes.items():
            outcome = "failed" if set(tries) == {"failed"} else "passed" if "passed" in tries else "skipped"
            counts[outcome] += 1
            if outcome == "failed":
                failures.append(f"{preset}: {name}")
            elif "failed" in tries:
                retried.append(f"{preset}: {name}")
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
