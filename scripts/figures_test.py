#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""figures.py finds a number that differs from its file, a number without a proof, and a proof that matches nothing."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import figures  # noqa: E402
import plots  # noqa: E402

ROWS = [
    {"who": "ours", "size": 8, "ns": 1823.4, "simulated": False},
    {"who": "ours", "size": 65536, "ns": 7000.0},
    {"who": "UCX, tuned", "size": 8, "ns": 9430.0},
    {"who": "UCX, tuned", "size": 65536, "ns": 9800.0},
]
RESULT = json.dumps({"rows": ROWS, "parameters": {"rounds": 5, "name": "x"}, "machine": {"cpu_count": 32}})
PROOF = """# remark
file lat a/lat.json
let L(who, size) = lat[who=$who size=$size].ns / 1000
8 B: {} us, UCX {}
    L(ours, 8); L("UCX, tuned", 8)
"""
PAGE = "# Title\n\nMessages of 8 B: 1.82 us, UCX\n9.4 ([file](a/lat.json)).\n"


def files(page=PAGE, proof=PROOF, **more):
    found = {"README.md": page, "docs/results/a/lat.json": RESULT, "docs/results/a/log.txt": "passed 12 in 3.5 s\npassed 14\n", **more}
    return {**found, "docs/figures/README.txt": proof} if proof is not None else found


def check(*arguments, **named):
    tree = files(*arguments, **named)
    findings, changes = figures.check(tree, figures.reader(tree.__getitem__))
    return [f"{f.path}:{f.line}: {f.text}" for f in findings], changes


def value(expression, *definitions):
    tree = files()
    proof = figures.parse_proof("p", "\n".join(["file lat a/lat.json", "file log a/log.txt", *definitions]))
    return figures.Expression(expression, proof, figures.reader(tree.__getitem__)).value()


class Expressions(unittest.TestCase):
    def test_arithmetic(self):
        self.assertEqual(value("2 + 3 * (4 - 1) / 2 - -1"), 7.5)

    def test_rows_by_field_value(self):
        self.assertEqual(value("lat[who=ours size=8].ns"), 1823.4)
        self.assertEqual(value('lat[who="UCX, tuned" size=64K].ns'), 9800)
        self.assertEqual(value("lat[who~^UCX size>8].ns"), 9800)
        self.assertEqual(value("lat[who!=ours size<=8].ns"), 9430)

    def test_other_fields_and_text(self):
        self.assertEqual(value("lat.parameters.rounds * lat.machine.cpu_count"), 160)
        self.assertEqual(value(r"log/in ([\d.]+) s/"), 3.5)
        self.assertEqual(value(r"max(log/passed (\d+)/)"), 14)

    def test_several_rows(self):
        self.assertEqual(value("min(lat[who=ours].ns)"), 1823.4)
        self.assertEqual(value("median(lat[size=8].ns)"), (1823.4 + 9430) / 2)
        self.assertEqual(value("count(lat[size>=8].ns)"), 4)
        self.assertAlmostEqual(value("max(lat[who~UCX].ns / lat[who=ours].ns)"), 9430 / 1823.4)
        self.assertEqual(value("sum(lat[size=8].ns, 1)"), 1823.4 + 9430 + 1)

    def test_abbreviations(self):
        self.assertEqual(value("2 * ns(8)", "let ns(size) = lat[who=ours size=$size].ns + half", "let half = 1 / 2"), 2 * 1823.9)

    def test_what_cannot_be_one_number(self):
        for wrong in ("lat[size=8].ns", "lat[size=9].ns", "lat[size=8 who=ours].us", "lat[size=8 who=ours].who", "other[x=1].ns", "2 +", "(2", "2 2",
                      "lat[who=ours].ns / lat[size>0].ns", "min()", "lat[size=8 who=ours].simulated", "log/no such line/", "lat"):
            with self.subTest(wrong), self.assertRaises(figures.Fault):
                value(wrong)

    def test_abbreviations_that_name_each_other_end(self):
        with self.assertRaises(figures.Fault):
            value("a", "let a = b", "let b = a")


class Pages(unittest.TestCase):
    def test_right_numbers_pass(self):
        self.assertEqual(check()[0], [])

    def test_a_wrong_number_is_found_and_mended(self):
        page = PAGE.replace("1.82", "1.6")
        findings, changes = check(page)
        self.assertEqual(len(findings), 1)
        self.assertIn("README.md:3: 1.6 in", findings[0])
        mended = figures.update(page, changes["README.md"])
        self.assertEqual(mended, PAGE.replace("1.82", "1.8"))
        self.assertEqual(check(mended)[0], [])

    def test_a_number_without_proof(self):
        for line in ("A read takes 5 us.", "It moves 12 to 14 GB/s.", "47 million a second.", "At 4400 sleeps a second.", "3.5 times as fast.", "Then 98 % of it."):
            with self.subTest(line):
                findings, _ = check(PAGE + line + "\n")
                self.assertTrue(findings and all("no proof in docs/figures/README.txt" in f for f in findings))

    def test_both_ends_of_a_range_need_proof(self):
        self.assertEqual(len(check(PAGE + "It moves 12 to 14 GB/s.\n")[0]), 2)

    def test_numbers_alone_in_a_cell(self):
        self.assertEqual(len(check(PAGE + "\n| a | b |\n|---|---|\n| 64 | 0.15 |\n")[0]), 2)
        self.assertEqual(check(PAGE + "\n| option | default |\n|---|---|\n| 64 | 128 |\n")[0], [])

    def test_decimals_beside_a_measured_number(self):
        findings, _ = check(PAGE + "Ours takes `f` 5 us, theirs 9.5.\n")
        self.assertEqual(len(findings), 2)
        self.assertIn("9.5: no proof", findings[1])

    def test_what_is_no_measurement(self):
        for line in ("Up to 64 KiB.", "CUDA 13.3 and UCX 1.22.", "`wait(10 ms)` and `PEERLANE_LOG=5 us`", "<!-- 5 us -->", "```\nit took 5 us\n```",
                     "[a](b-5us.md)", "Messages of 64 B a second time."):
            with self.subTest(line):
                self.assertEqual(check(PAGE + line + "\n")[0], [])

    def test_said_to_be_no_measurement(self):
        page = PAGE + "It looks again after 5 ms, and looks again after 7 ms.\n"
        self.assertEqual(check(page, PROOF + "looks again after {} ms\n    not measured: a setting\n")[0], [])

    def test_an_excuse_needs_words_and_a_reason(self):
        self.assertIn("would excuse", check(PAGE, PROOF + "{} ms\n    not measured: a setting\n")[0][0])
        self.assertTrue(check(PAGE + "looks again after 5 ms\n", PROOF + "looks again after {} ms\n    not measured: \n")[0])

    def test_words_that_are_not_there_or_twice(self):
        self.assertIn("stands 0 times", check(PAGE, PROOF + "9 B: {} us\n    1\n")[0][0])
        self.assertIn("stands 2 times", check(PAGE + PAGE)[0][0])

    def test_as_many_expressions_as_numbers(self):
        self.assertIn("2 numbers and 1 expressions", check(PAGE, PROOF.replace('; L("UCX, tuned", 8)', ""))[0][0])

    def test_bounds_and_digits(self):
        page = PAGE + "It needs under 2 us and 390 000 op/s.\n"
        proof = PROOF + "under {<} us and {2} op/s\n    L(ours, 8); 390183\n"
        self.assertEqual(check(page, proof)[0], [])
        self.assertEqual(len(check(page.replace("under 2", "under 1"), proof)[0]), 1)
        findings, changes = check(page.replace("390 000", "380 000"), proof)
        self.assertEqual(len(findings), 1)
        self.assertEqual(figures.update(page.replace("390 000", "380 000"), changes["README.md"]), page)

    def test_a_missing_file_and_an_orphan(self):
        self.assertIn("does not exist", check(PAGE, PROOF.replace("a/lat.json", "a/none.json"))[0][0])
        self.assertIn("belongs to no page", check(**{"docs/figures/none.txt": ""})[0][0])

    def test_tables_of_a_result_folder_may_be_proved_in_part(self):
        page = "One: 1.82 us. Two: 5 us.\n"
        proof = "partial: the rest is text\nfile lat a/lat.json\nOne: {} us\n    lat[who=ours size=8].ns / 1000\n"
        more = {"docs/results/a/README.md": page, "docs/figures/results/a/README.txt": proof}
        self.assertEqual(check(**more)[0], [])
        self.assertEqual(len(check(**{**more, "docs/results/a/README.md": page.replace("1.82", "1.9")})[0]), 1)


class Everywhere(unittest.TestCase):
    def test_pages_that_nobody_wrote_a_proof_for(self):
        for page in ("CHANGELOG.md", "docs/design/0001-x.md", "docs/results/b/README.md"):
            with self.subTest(page):
                findings, _ = check(**{page: "A copy takes 1.05 us.\n"})
                self.assertEqual(len(findings), 1)
                self.assertIn("1.05: no proof in docs/figures/", findings[0])

    def test_comments_of_the_sources(self):
        source = "int f(int);  // waits 10 s at most, in 3 ms\n/* Takes\n * 1.8 us on an H100. */\nint g(void) { return 5 / 2; }\n"
        comments = figures.comments_of("a.h", source)
        self.assertNotIn("return", comments)
        findings, _ = check(**{"include/a.h": source})
        self.assertEqual(len(findings), 1, findings)
        self.assertIn("1.8: no proof in docs/figures/comments.txt", findings[0])
        proof = PROOF.replace("8 B: {} us, UCX {}\n    L(ours, 8); L(\"UCX, tuned\", 8)", "Takes {} us\n    L(ours, 8)")
        self.assertEqual(check(**{"include/a.h": source, "docs/figures/comments.txt": proof})[0], [])

    def test_python_is_read_whole(self):
        self.assertEqual(len(figures.claims_in(figures.comments_of("a.py", 'def f():\n    """7 GB/s"""\n    # 3 million a second\n'))), 2)


class Rounding(unittest.TestCase):
    def test_as_printed(self):
        for number, slot, printed, expected in ((1.8234, "", "1.82", True), (1.8234, "", "1.9", False), (0.0147, "", "0.02", False), (390183, "2", "390 000", True),
                                                (390183, "3", "391 000", False), (9.5, "2", "9.5", True), (99.96, "3", "100", True), (54.05, "", "54.1", True)):
            with self.subTest(printed):
                self.assertEqual(figures.agrees(number, slot, printed), expected)

    def test_written(self):
        self.assertEqual(figures.rounded(22792, "3", "22 500"), "22 800")
        self.assertEqual(figures.rounded(1096.05, "", "1000"), "1096")
        self.assertEqual(figures.rounded(0.0227, "", "0.03"), "0.02")


class Plots(unittest.TestCase):
    def run_plots(self, *arguments):
        with contextlib.redirect_stdout(io.StringIO()):
            return plots.main(list(arguments))

    def test_a_picture_that_is_not_what_the_files_give(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(plots, "PLOTS", Path(folder)):
            self.assertEqual(self.run_plots("--check"), 1)
            self.assertEqual(self.run_plots(), 0)
            self.assertEqual(self.run_plots("--check"), 0)
            picture = Path(folder) / "store_rate.svg"
            picture.write_text(picture.read_text(encoding="utf-8").replace("GB/s", "TB/s"), encoding="utf-8")
            self.assertEqual(self.run_plots("--check"), 1)
            self.run_plots()
            (Path(folder) / "old.svg").write_text("")
            self.assertEqual(self.run_plots("--check"), 1)

    def test_labels_do_not_touch(self):
        heights = plots.label_heights([100, 90, 92, 300])
        order = sorted(heights)
        self.assertTrue(all(b - a >= 15 for a, b in zip(order, order[1:])), heights)

    def test_nothing_simulated_is_drawn(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(plots, "RESULTS", Path(folder)):
            (Path(folder) / "a.json").write_text('{"simulated": true, "rows": [{"x": 1}]}')
            with self.assertRaises(SystemExit):
                plots.rows("a.json", x=1)


if __name__ == "__main__":
    unittest.main()
