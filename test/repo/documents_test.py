#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the documents name exists: calls, findings of the doctor, and pages that build (where `make docs` has fetched mkdocs)."""

import ast
import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MKDOCS = ROOT / "build/docs-venv/bin/mkdocs"


class Reference(unittest.TestCase):
    def test_every_call_of_the_package_has_words(self):
        package = ROOT / "python/peerlane"
        for path in [package / "_core.pyi", *(package / f"{name}.py" for name in ("_copy", "_machine", "_mapping", "communicator", "store", "triggered", "testing"))]:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            functions = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name != "MappedArray" for n in n.body] if path.suffix == ".pyi" \
                else [n for c in tree.body if not (isinstance(c, ast.ClassDef) and c.name == "MappedArray") for n in [c, *getattr(c, "body", [])]]
            silent = [n.name for n in functions if isinstance(n, ast.FunctionDef) and not n.name.startswith("_") and not ast.get_docstring(n)]
            with self.subTest(path=path.name):
                self.assertEqual(silent, [])


class Dashboard(unittest.TestCase):
    def test_its_metrics_exist(self):
        board = json.loads((ROOT / "packaging/grafana/peerlane-store.json").read_text(encoding="utf-8"))
        source = (ROOT / "src/store/server/metrics.cpp").read_text(encoding="utf-8")
        known = set(re.findall(r'"(peerlane_store_\w+)"', source))
        for label, rows in re.findall(r"k(Pool|Principal)Families\[\] = (.*?)\n};", source, re.S):
            known |= {f"peerlane_store_{label.lower()}_{name}" for name in re.findall(r'\{"(\w+)", "(?:gauge|counter)"', rows)}
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        expressions += [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
        used = {re.sub(r"_seconds_(bucket|count)$", "_seconds", name) for one in expressions for name in re.findall(r"peerlane_store_\w+", one)}
        self.assertGreater(len(used), 20)
        self.assertEqual(used - known, set())


class Words(unittest.TestCase):
    """What the documents name exists."""

    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

    def test_calls(self):
        headers = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "include").rglob("*.*"))
        known = set(re.findall(r"\b(?:peerlane|gdr|gds)_\w+", headers)) | {"gdr_copy", "peerlane_version"}  # UCX's transport; a field of result files
        # Of a server's metrics.
        for source in (ROOT / "src").rglob("*.cpp"):
            known |= set(re.findall(r'"(peerlane_store_\w+)"', source.read_text(encoding="utf-8")))
        for document in self.documents:
            text = document.read_text(encoding="utf-8")
            if document.name == "migrating.md":  # the first column of its tables has the names of before
                text, tables = text.split("## From Peerlane 0.1")
                text += "\n".join(line.split("|", 2)[-1] for line in tables.splitlines())
            named = set(re.findall(r"`((?:peerlane|gdr|gds)_[a-z0-9_]+)\b[^`]*`", text))
            with self.subTest(document=document.name):
                self.assertEqual(sorted(n for n in named if n not in known and not n.endswith("_")), [])

    def test_every_finding_of_the_doctor_is_explained(self):
        subjects = set(re.findall(r'add_finding\(out, severity::\w+, "([^"]+)"', self.sources()))
        self.assertGreater(len(subjects), 8)
        page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
        self.assertEqual(sorted(s for s in subjects if f"| `{s}` |" not in page), [])

    @staticmethod
    def sources():
        return "\n".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "tools").rglob("diagnosis*.cpp")))

    def test_pictures_have_words_and_no_fonts_from_elsewhere(self):
        pictures = sorted([*(ROOT / "docs/images").glob("*.svg"), *(ROOT / "docs/results/plots").glob("*.svg")])
        self.assertGreater(len(pictures), 3)
        for picture in pictures:
            text = picture.read_text(encoding="utf-8")
            self.assertIn("<title>", text)
            self.assertNotIn("http", text.replace("http://www.w3.org/2000/svg", ""))


class Site(unittest.TestCase):
    @unittest.skipUnless(MKDOCS.exists(), "mkdocs is not there (make docs)")
    def test_it_builds_strictly_and_fetches_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([MKDOCS, "build", "--strict", "--site-dir", folder], cwd=ROOT, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            for page in Path(folder).rglob("*.html"):
                self.assertIsNone(re.search(r'<(?:script|img|iframe|link)[^>]+(?:src|href)="https?:', page.read_text(encoding="utf-8")), page)
            calls = (Path(folder) / "reference/peerlane/peerlane.h.html").read_text(encoding="utf-8")
            for call in ("peerlane_map", "peerlane_mapping_write", "peerlane_mapping_read", "peerlane_session_close"):
                self.assertIn(f'id="{call}"', calls)


if __name__ == "__main__":
    unittest.main()
