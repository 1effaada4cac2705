#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The last line of `make test` has correct counts, and a run without tests is a failure."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import test_summary  # noqa: E402

PASSED = '<testcase name="a" status="run"/>'
FAILED = '<testcase name="b" status="fail"><failure message=""/></testcase>'
SKIPPED = """<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>[ RUN ]
x_test.cpp:7: Skipped
no GPU answers
</system-out></testcase>"""


def run(*reports):
    with tempfile.TemporaryDirectory() as folder:
        arguments = []
        for number, cases in enumerate(reports):
            path = Path(folder) / f"{number}.xml"
            if cases is not None:
                path.write_text(f"<testsuite>{cases}</testsuite>")
            arguments.append(f"p{number}={path}")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = test_summary.main(arguments)
        return code, output.getvalue().strip().split("\n")


class Summary(unittest.TestCase):
    def test_counts_over_all_reports(self):
        code, lines = run(PASSED + SKIPPED, PASSED)
        self.assertEqual((code, lines), (0, ["skipped: 1 x no GPU answers", "2 passed, 0 failed, 1 skipped"]))

    def test_failure(self):
        code, lines = run(PASSED + FAILED)
        self.assertEqual((code, lines), (1, ["failed: p0: b", "1 passed, 1 failed, 0 skipped"]))

    def test_what_was_left_out_is_named_once(self):
        case = '<testcase name="lint" status="run"><system-out>lint: NOT CHECKED: layout\nlint: 3 files</system-out></testcase>'
        self.assertEqual(run(case, case), (0, ["not checked: layout", "2 passed, 0 failed, 0 skipped"]))

    def test_what_no_time_was_left_for_is_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            for quarter in (1, 2):
                case = PASSED.replace('"a"', f'"a{quarter}"')
                (Path(folder) / f"junit-{quarter}.xml").write_text(f"<testsuite>{case}</testsuite>")
            (Path(folder) / "tests-left").write_text("7\n")
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                code = test_summary.main([f"p={folder}/junit-1.xml", f"p={folder}/junit-2.xml"])
        self.assertEqual((code, output.getvalue().split("\n")[:2]),
                         (0, ["skipped: 7 x p: no time was left for it (TEST_END_S)", "2 passed, 0 failed, 7 skipped"]))

    def test_second_tries_are_named(self):
        again = ['<testcase name="a" status="fail"><failure message=""/></testcase>', FAILED]
        with tempfile.TemporaryDirectory() as folder:
            first, second = Path(folder) / "junit.xml", Path(folder) / "junit-again.xml"
            first.write_text(f"<testsuite>{''.join(again)}{SKIPPED}</testsuite>")
            second.write_text(f"<testsuite>{PASSED}{FAILED}</testsuite>")
            for reports in ([first, second], [second, first]):
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    code = test_summary.main([f"p={path}" for path in reports])
                self.assertEqual(code, 1)
                self.assertEqual(output.getvalue().split("\n")[:4],
                                 ["failed: p: b", "passed at the second try only: p: a", "skipped: 1 x no GPU answers",
                                  "1 passed, 1 failed, 1 skipped"])

    def test_same_test_of_two_presets(self):
        code, lines = run(PASSED, '<testcase name="a" status="fail"><failure message=""/></testcase>')
        self.assertEqual((code, lines), (1, ["failed: p1: a", "1 passed, 1 failed, 0 skipped"]))

    def test_missing_report(self):
        code, lines = run(PASSED, None)
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_nothing_ran(self):
        self.assertEqual(run("")[0], 1)
        self.assertEqual(run(SKIPPED)[0], 1)


if __name__ == "__main__":
    unittest.main()
