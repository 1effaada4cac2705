#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`peerlane report` without a browser: every stored result is understood, everything else is refused, the numbers are right."""

import contextlib
import io
import itertools
import json
import os
import random
import re
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from peerlane.report import compare, curves, files, html, markdown, stats, topology, views, words  # noqa: E402
from peerlane.report import __main__ as command  # noqa: E402
from peerlane.report.model import Chart, Log, Matrices, Notice, Series  # noqa: E402

RESULTS = sorted((ROOT / "docs" / "results").rglob("*.json"))
TEXTS = sorted((ROOT / "docs" / "results").rglob("*.txt"))
SMALL = ROOT / "docs/results/foundation/h100/pplat.json"
UNKNOWN_LAYOUT = "not laid out as this program knows them"


def one(path):
    result = files.read(path)
    files.label_all([result])
    return result


def pipe_has_writer(process, pipe):
    """Whether the process has opened the pipe."""
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link) == str(pipe):
                return True
    return False


def result_file(**changes):
    body = {"schema": "peerlane-result/1", "tool": "copylat", "command_line": ["peerlane", "copylat"], "simulated": False, "passed": True,
            "machine": {}, "parameters": {}, "units": {}, "notes": [], "rows": [], "samples": []}
    body.update(changes)
    return body


class StoredResults(unittest.TestCase):
    def test_there_are_results(self):
        self.assertGreater(len(RESULTS), 60)

    def test_every_result_is_understood(self):
        for path in RESULTS:
            with self.subTest(path=path.name):
                report = views.build([one(path)], [], "t")
                section = report.sections[0]
                notices = [b.text for b in section.blocks if isinstance(b, Notice)]
                self.assertFalse([n for n in notices if UNKNOWN_LAYOUT in n])
                self.assertTrue([b for b in section.blocks if not isinstance(b, (Notice, Log))][:-1], "nothing but how it was made")

    def test_every_text_is_shown(self):
        for path in TEXTS:
            with self.subTest(path=path.name):
                self.assertTrue(files.read(path).text.strip())

    def test_all_in_one_report(self):
        items = [files.read(p) for p in RESULTS + TEXTS]
        files.label_all(items)
        self.assertEqual(len({i.label for i in items}), len(items))
        results, alone = files.attach_logs(items)
        report = views.build(results, alone, "all")
        keys = [s.key for s in report.sections]
        self.assertEqual(len(set(keys)), len(keys), "anchors are unique")
        shown = sum(len(r.logs) for r in results) + len(alone)
        self.assertEqual(shown, len(TEXTS))
        text = markdown.render(report)
        self.assertLess(len(text), 800 * len(items), "tables, not rows of samples")
        self.assertNotIn(UNKNOWN_LAYOUT, text)

    def test_figures_are_those_of_the_file(self):
        path = ROOT / "docs/results/foundation/h100/copylat.json"
        body = json.loads(path.read_text())
        row = next(r for r in body["rows"] if r["contender"] == "peerlane" and r["size_bytes"] == 64 and r["direction"] == "write")
        chart = next(b for b in views.build([one(path)], [], "t").sections[0].blocks if isinstance(b, Chart))
        line = next(s for s in chart.series if s.name == "peerlane")
        self.assertAlmostEqual(line.y[line.x.index(64)], row["latency_ns_p50"] / 1000)

    def charts(self, path):
        section = views.build([one(ROOT / "docs/results" / path)], [], "t").sections[0]
        return {b.title: b for b in section.blocks if isinstance(b, Chart)}, " ".join(section.summary)

    def test_puts_of_kernels(self):
        path = "device/h200_settled/kernel_put.json"
        rows = json.loads((ROOT / "docs/results" / path).read_text())["rows"]
        charts, summary = self.charts(path)
        self.assertEqual(len(charts), 6, "latency, rate and bandwidth, to the device and to the host")
        latency = charts["put_signal until its word is seen, bytes to the host's memory"]
        self.assertEqual([s.name for s in latency.series], ["thread", "warp", "block"])
        row = next(r for r in rows if r["series"] == "latency host warp 65536")
        warp = latency.series[1]
        self.assertAlmostEqual(warp.y[warp.x.index(65536)], row["put_ns_p50"] / 1000)
        rate = charts["Puts of 64 B to the device's memory"]
        self.assertEqual((rate.x_unit, rate.y_unit, rate.series[0].x), ("blocks", "million/s", [1, 8, 64]))
        row = next(r for r in rows if r["series"] == "rate device block 64 8")
        self.assertAlmostEqual(rate.series[2].y[1], row["puts_per_s"] / 1e6)
        self.assertEqual(charts["Bytes of puts by 64 blocks to the host's memory"].y_unit, "GB/s")
        self.assertIn("a copy engine", latency.note)
        self.assertIn("put_signal of 64 B by a thread", summary)
        self.assertIn("the CPU proxy", next(iter(self.charts("device/h200_settled/kernel_put_proxy.json")[0].values())).note)

    def test_steps_and_cycles_of_halos(self):
        for name, unit, title in (("stencil_2x1", "step", "Time of a step of the stencil"), ("multigrid_2x1", "cycle", "Time of a cycle of multigrid")):
            path = f"async/h200x2/{name}.json"
            row = json.loads((ROOT / "docs/results" / path).read_text())["rows"][0]
            line = self.charts(path)[0][title].series[0]
            self.assertAlmostEqual(line.y[line.x.index(row["n"])], row[f"{unit}_ns_p50"] / 1000)

    def test_links_carry_their_verdicts(self):
        blocks = views.build([one(ROOT / "docs/results/many/h200x4/bandwidth.json")], [], "t").sections[0].blocks
        cells = [c for b in blocks if isinstance(b, Matrices) for m in b.items for c in m.cells.values()]
        self.assertEqual(sum(c.state == "low" for c in cells), 16)
        self.assertGreater(sum(c.state == "good" for c in cells), 20)


class Refusals(unittest.TestCase):
    def refused(self, name, data):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
            with self.assertRaises(files.Refused) as caught:
                files.read(path)
            return str(caught.exception)

    def test_what_is_no_result_file(self):
        for data, words_of_it in (("", "empty"), ("x", "not JSON"), ("[1]", "not an object"), ("{}", '"schema"'), ("{", "not JSON"), (b"\xff\xfe", "UTF-8"),
                                  ('{"nvbandwidth": {}}', "peerlane bandwidth"), ('{"schema": "peerlane-result/2"}', "peerlane-result/1"),
                                  (json.dumps(result_file(tool="other")), "not known"), (json.dumps(result_file(rows={})), '"rows"'),
                                  (json.dumps(result_file(rows=[1])), '"rows"[0]'), (json.dumps(result_file(samples=[{}])), "no series"),
                                  ('{"schema": NaN}', "NaN"), (json.dumps(result_file(tool=[])), "not known"),
                                  ('{"schema": 1e999}', "1e999 is larger"), ('{"schema": ' + "9" * 5000 + "}", "9... is larger"),
                                  (json.dumps(result_file(samples=[{"series": "a", "samples_ns": 1}])), "not a list of numbers"),
                                  (json.dumps(result_file(samples=[{"series": "a", "samples_gb_per_s": [1.5, None]}])), "not a list of numbers"),
                                  ("[" * 100000, "not JSON")):
            with self.subTest(data=data[:40]):
                self.assertIn(words_of_it, self.refused("x.json", data))

    def test_texts(self):
        self.assertIn("empty", self.refused("x.txt", " \n"))
        self.assertIn("not plain", self.refused("x.txt", b"a\x00b"))

    def test_a_missing_file_and_a_folder(self):
        for path in ("/nonexistent/x.json", "/"):
            with self.assertRaises(files.Refused):
                files.read(path)

    def test_what_does_not_end_or_nobody_writes(self):
        """Neither is waited for: a device without end, a pipe without a writer, a file of 1 GiB."""
        with tempfile.TemporaryDirectory() as folder:
            pipe, large = Path(folder) / "pipe.json", Path(folder) / "large.json"
            os.mkfifo(pipe)
            large.touch()
            os.truncate(large, 1 << 30)
            for path, words_of_it in ((pipe, "empty"), (large, "1073741824 bytes"), (Path("/dev/zero"), "does not end")):
                with self.subTest(path=path), self.assertRaises(files.Refused) as caught:
                    files.read(path)
                self.assertIn(words_of_it, str(caught.exception))

    def test_a_pipe_with_a_writer(self):
        """As of `peerlane report <(command)`."""
        with tempfile.TemporaryDirectory() as folder:
            pipe = Path(folder) / "pipe.json"
            os.mkfifo(pipe)
            held = os.open(pipe, os.O_RDWR)  # the writer's open() need not wait for a reader
            writer = subprocess.Popen([sys.executable, "-c", f"import time; f = open({str(pipe)!r}, 'w'); time.sleep(0.2); f.write({json.dumps(result_file())!r})"])
            while not pipe_has_writer(writer.pid, pipe):
                time.sleep(0.001)
            os.close(held)
            self.assertEqual(files.read(pipe).tool, "copylat")
            self.assertEqual(writer.wait(), 0)

    def test_damaged_rows_do_not_end_the_report(self):
        """Fields removed or replaced at random: a table of the rows takes the place of the view, never a traceback."""
        rng = random.Random(1)
        for path in RESULTS[::4]:
            body = json.loads(path.read_text())
            body["rows"], body["samples"] = body["rows"][:40], body["samples"][:40]
            for _ in range(2):
                broken = json.loads(json.dumps(body))
                for target in [broken["machine"], broken["parameters"]] + broken["rows"]:
                    for key in [k for k in target if rng.random() < 0.1]:
                        target[key] = rng.choice([None, [], {}, "text", -1, 0, 1e90, 1e-300, 10**90, "\ud800", True])
                        if rng.random() < 0.5:
                            del target[key]
                with tempfile.TemporaryDirectory() as folder:
                    for name in ("a.json", "b.json"):
                        (Path(folder) / name).write_text(json.dumps(broken))
                    items = [files.read(Path(folder) / n) for n in ("a.json", "b.json")]
                    files.label_all(items)
                    report = views.build(items, [], "t")
                    html.render(report, "")
                    markdown.render(report)


class Numbers(unittest.TestCase):
    def test_mann_whitney_exact_against_all_arrangements(self):
        first, second = [1, 4, 6, 9], [2, 3, 5, 7, 8]
        p, share = stats.mann_whitney(first, second)
        pairs = [(a, b) for a in first for b in second]
        self.assertAlmostEqual(share, sum(b > a for a, b in pairs) / len(pairs))
        every, observed = first + second, abs(share - 0.5)
        extreme = total = 0
        for chosen in itertools.combinations(every, len(second)):
            rest = [v for v in every if v not in chosen]
            other = sum(b > a for a in rest for b in chosen) / len(pairs)
            total += 1
            extreme += abs(other - 0.5) >= observed - 1e-12
        self.assertAlmostEqual(p, extreme / total)

    def test_separated_samples(self):
        self.assertAlmostEqual(stats.mann_whitney([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])[0], 2 / 252)
        self.assertEqual(stats.mann_whitney([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])[1], 1.0)

    def test_equal_values_prove_nothing(self):
        self.assertEqual(stats.mann_whitney([3] * 20, [3] * 30), (1.0, 0.5))

    def test_error_rate_of_the_approximation(self):
        rng = random.Random(6)
        hits = sum(stats.mann_whitney([rng.randrange(30) for _ in range(25)], [rng.randrange(30) for _ in range(35)])[0] < 0.05
                   for _ in range(2000))
        self.assertTrue(60 <= hits <= 140, hits)  # 100 expected, standard deviation 10

    def test_holm(self):
        self.assertEqual([round(p, 6) for p in stats.holm([0.01, 0.04, 0.03])], [0.03, 0.06, 0.06])

    def test_crossover_is_interpolated(self):
        found = curves.crossovers([Series("a", [1, 100], [1, 100]), Series("b", [1, 100], [10, 10])])
        self.assertEqual([(old, new) for _, old, new in found], [("a", "b")])
        self.assertAlmostEqual(found[0][0], 10)

    def test_noise_is_no_crossover(self):
        self.assertEqual(curves.crossovers([Series("a", [1, 2, 4], [1.0, 1.02, 1.0]), Series("b", [1, 2, 4], [1.01, 1.0, 1.01])]), [])

    def test_histogram_counts_every_sample_once(self):
        chart = curves.histogram("h", [("a", [float(v) for v in range(1, 1001)])])
        inside = sum(chart.series[0].y[1:-1:2])
        outside = int(re.search(r"Outside the picture: (\d+)", chart.note).group(1))
        self.assertAlmostEqual(inside / 100 * 1000 + outside, 1000)

    def test_words(self):
        self.assertEqual([words.size(n) for n in (1, 1024, 12345, 1 << 30)], ["1 B", "1 KiB", "12345 B", "1 GiB"])
        self.assertEqual([words.duration(n) for n in (12.34, 1500, 2.5e6, 3e9, -1)], ["12.3 ns", "1.5 µs", "2.5 ms", "3 s", "–"])


class Comparisons(unittest.TestCase):
    @staticmethod
    def run_of(name, values):
        row = {"direction": "write", "contender": "peerlane", "size_bytes": 8, "latency_ns_p50": sorted(values)[len(values) // 2], "series": "s"}
        body = result_file(rows=[row], samples=[{"series": "s", "samples_ns": values}])
        result = files.parse(Path(name), json.dumps(body))
        result.label = name
        return result

    def verdict(self, base, new):
        return compare.compare(self.run_of("a", base), self.run_of("b", new))[0].verdict

    def test_verdicts(self):
        rng = random.Random(6)
        base = [100 + rng.random() for _ in range(50)]
        self.assertEqual(self.verdict(base, [v * 1.2 for v in base]), "slower")
        self.assertEqual(self.verdict(base, [v / 1.2 for v in base]), "faster")
        self.assertEqual(self.verdict(base, [100 + rng.random() for _ in range(50)]), "no difference shown")
        self.assertEqual(self.verdict(base, [v * 1.01 for v in base]), "no difference shown")  # certain, but 1 %
        self.assertEqual(self.verdict([1.0, 2.0], [30.0, 40.0]), "no difference shown")        # large, but two samples

    def test_only_the_same_command_is_compared(self):
        first, second = self.run_of("a", [1.0]), self.run_of("b", [2.0])
        third = self.run_of("c", [1.0])
        second.command_line = ["peerlane", "copylat", "--json", "elsewhere.json"]
        third.command_line = ["peerlane", "copylat", "-r", "3"]
        self.assertEqual([(a.label, b.label) for a, b in compare.pairs([first, second, third])], [("a", "b")])


class Pages(unittest.TestCase):
    def test_nothing_is_fetched_and_nothing_escapes(self):
        result = one(ROOT / "docs/results/foundation/h100/demo_root.json")
        result.notes.append("</script><script>alert(1)</script>")
        result.rows[0]["name"] = "<img src=x>"
        page = html.render(views.build([result], [], "<b>title</b>"), 'plotly("</script>")')
        self.assertEqual(page.count("</script>"), 3)
        self.assertNotIn("<img", page)
        self.assertNotIn("<b>title", page)
        self.assertIsNone(re.search(r'(?:src|href)="(?!#|data:)', page))
        self.assertNotIn("@import", page)

    def test_names_in_charts_are_no_markup(self):
        result = one(ROOT / "docs/results/p2p/h200x2/latency.json")
        for row in result.rows:
            row.update({name: "<!--<script>" for name, value in row.items() if value == "ours"})
        page = html.render(views.build([result], [], "t"), "")
        data = re.search(r'id="data">(.*?)</script>', page).group(1)
        self.assertNotIn("<", data)
        self.assertTrue(any(line["n"] == "<!--<script>" for chart in json.loads(data) for line in chart.get("series", [])))

    def test_topology_shows_every_device(self):
        devices = [{"label": f"GPU{i}", "name": "NVIDIA H100", "bus_id": f"0000:{i:02x}:00.0", "numa_node": i // 2, "cpus": "0-7"} for i in range(4)]
        devices.append({"label": "NIC0", "name": "mlx5_0", "bus_id": "0000:10:00.0", "numa_node": 0, "cpus": "0-7"})
        relations = {(f"GPU{a}", f"GPU{b}"): "NV4" if {a, b} == {0, 1} else "SYS" for a in range(4) for b in range(4) if a != b}
        relations["GPU0", "NIC0"] = relations["NIC0", "GPU0"] = "PIX"
        svg, sentences = topology.draw(devices, relations)
        for device in devices:
            self.assertIn(f">{device['label']}<", svg)
        self.assertEqual(svg.count('class="bridge"'), 1)
        self.assertEqual(svg.count('class="node"'), 2)
        self.assertIn("NVLink: GPU0 and GPU1 joined by 4 links", sentences)
        self.assertNotIn("GPU2 and GPU3", " ".join(sentences))

    def test_every_chart_has_its_figures_as_text(self):
        result = one(ROOT / "docs/results/p2p/h200x2/latency.json")
        page = html.render(views.build([result], [], "t"), "")
        self.assertEqual(page.count('role="img" aria-labelledby'), len(json.loads(
            re.search(r'id="data">(.*?)</script>', page).group(1))))
        self.assertIn("<th scope=\"row\" class=\"r\">1 KiB</th>", page)


class Command(unittest.TestCase):
    @staticmethod
    def run_it(*arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = command.main([str(a) for a in arguments])
            except SystemExit as leaving:
                code = leaving.code
        return code, out.getvalue(), err.getvalue()

    def test_markdown_needs_nothing(self):
        code, out, err = self.run_it("--markdown", ROOT / "docs/results/foundation/h100/pplat.json")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("Round trip", out)

    def test_one_bad_file_refuses_all(self):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "r.md"
            code, _, err = self.run_it("--markdown", "-o", report, ROOT / "docs/results/foundation/h100/pplat.json", ROOT / "LICENSE")
            self.assertEqual(code, 1)
            self.assertIn("LICENSE: not JSON", err)
            self.assertFalse(report.exists())

    def test_no_file(self):
        self.assertEqual(self.run_it()[0], 2)

    def test_output_that_cannot_be_written(self):
        code, _, err = self.run_it("--markdown", "-o", "/nonexistent/r.md", ROOT / "docs/results/foundation/h100/pplat.json")
        self.assertEqual(code, 1)
        self.assertIn("/nonexistent/r.md", err)

    def test_what_is_no_file_is_written_to_and_not_replaced(self):
        """As root, `-o /dev/null` would otherwise take the device's place."""
        with tempfile.TemporaryDirectory() as folder:
            link, target, pipe = Path(folder) / "link.md", Path(folder) / "target.md", Path(folder) / "pipe.md"
            link.symlink_to("target.md")
            code, _, err = self.run_it("--markdown", "-o", link, SMALL)
            self.assertEqual((code, err), (0, ""))
            self.assertTrue(link.is_symlink())
            self.assertIn("Round trip", target.read_text())
            os.mkfifo(pipe)
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            self.assertEqual(self.run_it("--markdown", "-o", pipe, SMALL)[0], 0)
            self.assertTrue(stat.S_ISFIFO(pipe.stat().st_mode))
            self.assertIn(b"Round trip", os.read(reader, 1 << 16))
            os.close(reader)
            self.assertEqual(sorted(p.name for p in Path(folder).iterdir()), ["link.md", "pipe.md", "target.md"])

    def test_output_that_is_a_folder(self):
        for place in (".", "..", "/", "/tmp/"):
            with self.subTest(place=place):
                code, _, err = self.run_it("--markdown", "-o", place, SMALL)
                self.assertEqual((code, err), (1, f"peerlane report: {place}: Is a directory\n"))

    def test_halves_of_characters_and_controls(self):
        """A title and a label of bytes that are not UTF-8, and names with terminal sequences."""
        with tempfile.TemporaryDirectory() as folder:
            copy, page = Path(folder) / "\udcff\x1b[31m.json", Path(folder) / "r.md"
            body = json.loads(SMALL.read_text())
            body["machine"]["gpu_name"] = "GPU \ud800 \x1b]0;x\x07"
            copy.write_text(json.dumps(body))
            code, out, err = self.run_it("--markdown", "--title", "\udcfe\x1b[1m", copy)
            self.assertEqual((code, err), (0, ""))
            self.assertIn("# \\xfe\\x1b[1m", out)
            self.assertIn("GPU \\ud800 \\x1b]0;x\\x07", out)
            self.assertNotIn("\x1b", out)
            code, out, _ = self.run_it("--markdown", "-o", page, "--title", "\udcfe", copy)
            self.assertEqual(code, 0)
            self.assertNotIn("\x1b", page.read_text() + out)
            for arguments in (["--wrong=\x1b[31m", copy], ["--markdown", Path(folder) / "\x1b[31m"]):
                code, out, err = self.run_it(*arguments)
                self.assertNotEqual(code, 0)
                self.assertIn("\\x1b[31m", err)
                self.assertNotIn("\x1b", out + err)


if __name__ == "__main__":
    unittest.main()
