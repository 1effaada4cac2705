#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documentation's pages: built without network, no link that leads nowhere, every public call in the reference, names that exist.

Exit code 77: left out, and the reason is printed.
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "scripts" / "site"
sys.path.insert(0, str(SITE))

import reference  # noqa: E402

LEFT_OUT = 77


def python_with_markdown():
    for candidate in (sys.executable, ROOT / ".venv/bin/python"):
        if Path(candidate).exists() and subprocess.run([candidate, "-c", "import markdown_it"], capture_output=True, check=False).returncode == 0:
            return str(candidate)
    return None


class Reference(unittest.TestCase):
    def test_bodies_go_and_declarations_stay(self):
        code = """class mapping : public view {
 public:
  mapping() = default;
  explicit mapping(int handle) noexcept : handle_(handle), other_{1} {}
  status write(int at) const {
    if (at) { return {}; }
    return failure{1, "}"};
  }
  int value_ = 0;
};
enum class kind { one, two };"""
        text = reference.without_bodies(code.replace('"}"', '""'))
        self.assertIn("explicit mapping(int handle) noexcept;", text)
        self.assertIn("status write(int at) const;", text)
        self.assertIn("enum class kind { one, two };", text)
        self.assertIn("int value_ = 0;", text)
        self.assertNotIn("return", text)

    def test_every_call_of_the_c_headers_has_its_place(self):
        for header in sorted((ROOT / "include/peerlane").glob("*.h")) + [ROOT / "include/gdrapi.h"]:
            text = header.read_text(encoding="utf-8")
            bare = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
            calls = set(re.findall(r"^[\w\s*]+?\b((?:peerlane|gdr)_\w+)\s*\(", bare, re.M))
            page = reference.header_page(header.name, text)
            with self.subTest(header=header.name):
                self.assertGreater(len(calls), 3)
                self.assertEqual([c for c in sorted(calls) if f'<a id="{c}">' not in page], [])
                self.assertNotIn("#ifndef", page)

    def test_comments_become_words(self):
        page = reference.header_page("peerlane/x.h", "/* SPDX-License-Identifier: Apache-2.0\n *\n * What it is.\n */\n#ifndef X_H\n#define X_H\n\n"
                                     "/* ---- Group ---- Words. */\nint peerlane_do(void);\n\n#endif\n")
        self.assertIn("What it is.", page)
        self.assertIn("## Group\n", page)
        self.assertIn("Words.", page)
        self.assertNotIn("SPDX", page)

    def test_python_pages_follow_the_table_of_exports(self):
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder)
            (package / "__init__.py").write_text('"""The package."""\n_HOMES = {"_copy": ("copy",)}\n_MODULES = ("more",)\n')
            (package / "_copy.py").write_text('def copy(a, b=1):\n    """Copies."""\n\ndef hidden():\n    """No."""\n')
            (package / "_core.pyi").write_text('class Base:\n    """No."""\n    def go(self) -> int:\n        """Goes."""\n'
                                               '    @property\n    def size(self) -> int:\n        """How large."""\nclass Passed:\n    """On."""\n')
            (package / "more.py").write_text('"""More."""\nPassed = _core.Passed\nclass Thing(_core.Base):\n    """A thing."""\n')
            (package / "program.py").write_text('def main():\n    """No."""\n')
            page = reference.python_page(package)
        for words in ("def copy(a, b=1)", "def go() -> int", "- `size: int`: How large.", "class Passed", '<a id="more.Thing">'):
            self.assertIn(words, page)
        for words in ("hidden", "_core", "main", "No."):
            self.assertNotIn(words, page)

    def test_every_call_of_the_package_has_words(self):
        package = ROOT / "python/peerlane"
        for path in [package / "_core.pyi", *(package / f"{name}.py" for name in ("_copy", "_machine", "_mapping", "messages", "store", "streams", "testing"))]:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            functions = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name != "MappedArray" for n in n.body] if path.suffix == ".pyi" \
                else [n for c in tree.body if not (isinstance(c, ast.ClassDef) and c.name == "MappedArray") for n in [c, *getattr(c, "body", [])]]
            silent = [n.name for n in functions if isinstance(n, ast.FunctionDef) and not n.name.startswith("_") and not ast.get_docstring(n)]
            with self.subTest(path=path.name):
                self.assertEqual(silent, [])


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
            named = set(re.findall(r"`((?:peerlane|gdr|gds)_[a-z0-9_]+)\b[^`]*`", text))
            with self.subTest(document=document.name):
                self.assertEqual(sorted(n for n in named if n not in known and not n.endswith("_")), [])

    def test_every_finding_of_the_doctor_is_explained(self):
        subjects = set(re.findall(r'add\(out, severity::\w+, "([^"]+)"', self.sources()))
        self.assertGreater(len(subjects), 8)
        page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
        self.assertEqual(sorted(s for s in subjects if f"| `{s}` |" not in page), [])

    @staticmethod
    def sources():
        return "\n".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "tools").glob("diagnosis*.cpp")))

    def test_pictures_have_words_and_no_fonts_from_elsewhere(self):
        pictures = sorted([*(ROOT / "docs/pictures").glob("*.svg"), *(ROOT / "docs/results/plots").glob("*.svg")])
        self.assertGreater(len(pictures), 3)
        for picture in pictures:
            text = picture.read_text(encoding="utf-8")
            self.assertIn("<title>", text)
            self.assertNotIn("http", text.replace("http://www.w3.org/2000/svg", ""))


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        # No proxy and no name server would help: the build may not ask for anything.
        environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
        cls.done = subprocess.run([python_with_markdown(), "-B", str(SITE / "build.py"), cls.folder.name], env=environment, capture_output=True,
                                  text=True, check=False)
        cls.pages = {p.relative_to(cls.folder.name): p.read_text(encoding="utf-8") for p in Path(cls.folder.name).rglob("*.html")}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_no_link_leads_nowhere(self):
        self.assertEqual((self.done.returncode, self.done.stderr), (0, ""))
        for name, text in self.pages.items():
            for target in re.findall(r'href="([^"#:]+)(?:#[^"]*)?"', text):
                self.assertTrue((Path(self.folder.name) / name.parent / target).exists(), f"{name}: {target}")

    def test_nothing_is_fetched(self):
        for name, text in self.pages.items():
            self.assertIsNone(re.search(r'<(?:script|img|iframe)|src="|@import|<link rel="stylesheet" href="[a-z]+:', text), name)

    def test_every_page_is_listed(self):
        first = self.pages[Path("index.html")]
        for name in self.pages:
            self.assertIn(f'href="{name}"', first, f"{name} is in no list")


if __name__ == "__main__":
    if python_with_markdown() is None:
        print("SKIPPED: markdown-it-py is not installed (.venv/bin/pip install markdown-it-py)")
        sys.exit(LEFT_OUT)
    unittest.main()
