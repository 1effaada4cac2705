# SPDX-License-Identifier: Apache-2.0
"""What the site has beside the pages of docs/: the root's documents, one page for each public header, and pictures in the page's colours.

Used by mkdocs (mkdocs.yml). Links that leave docs/ lead to these pages, or become plain text where the site has no such page.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# Not pages: parts of other headers, and headers of one line.
OMITTED = ("gdrconfig.h", "gdsync.h", "gdsync/mlx5.h", "gdsync/platform.h", "gdsync/tools.h")
DECLARED = re.compile(r"^(?!\s|#|typedef\b).*?\b((?:peerlane|gdr|gds|gdsync)_\w+)\s*\(|^(?:typedef )?(?:class|struct|enum|enum class) (\w+)", re.M)


def on_files(files, config):
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "include").rglob("*.h*")):
        name = str(path.relative_to(ROOT / "include"))
        if name not in OMITTED:
            files.append(File.generated(config, f"reference/{name}.md", content=header_page(name, path.read_text(encoding="utf-8"))))
    files.append(File.generated(config, "reference/python.md", content=python_page()))
    return files


def header_page(name, text):
    """The header itself, below a list of what it declares; each name leads to its line."""
    bare = re.sub(r"/\*.*?\*/|//[^\n]*", lambda match: re.sub(r"[^\n]", " ", match.group(0)), text, flags=re.S)
    lines = {}
    for match in DECLARED.finditer(bare):
        lines.setdefault(match.group(1) or match.group(2), bare.count("\n", 0, match.start()) + 1)
    calls = " · ".join(f'<a id="{call}" href="#__codelineno-0-{line}"><code>{call}</code></a>' for call, line in lines.items())
    return f"# `{name}`\n\n{calls}\n\n```{'cpp' if name.endswith(('hpp', 'cuh')) else 'c'}\n{text}```\n"


def python_page():
    init = (ROOT / "python/peerlane/__init__.py").read_text(encoding="utf-8")
    homes = dict(re.findall(r'^    "(_\w+)": \(([^)]*)\)', init, re.M))
    names = [f"peerlane.{home}.{name}" for home, listed in homes.items() if home != "_version" for name in re.findall(r'"(\w+)"', listed)]
    modules = re.findall(r'"(\w+)"', re.search(r"^_MODULES = \((.*?)\)", init, re.M).group(1))
    return "# Python: `peerlane`\n\n" + "\n\n".join(f"::: {name}" for name in [*names, *(f"peerlane.{m}" for m in modules)]) + "\n"


def on_page_markdown(markdown, page, config, files):
    folder = os.path.dirname(page.file.src_uri)
    # Documents in the root have links to docs/, pages in docs/ have links to ../
    base = ROOT if page.file.src_uri in ROOT_PAGES else ROOT / "docs" / folder

    def link(match):
        words, target, anchor = match.groups()
        path = os.path.relpath(os.path.normpath(base / target), ROOT)
        inside = path.removeprefix("docs/")
        if path.startswith("include/"):
            inside = f"reference/{path.removeprefix('include/')}.md"
        elif path == "README.md":
            inside = "index.md"
        elif inside.rstrip("/") + "/README.md" in files.src_uris:
            inside = inside.rstrip("/") + "/README.md"
        if inside in files.src_uris:
            return f"[{words}]({os.path.relpath(inside, folder or '.')}{anchor or ''})"
        return words

    return re.sub(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)", link, markdown)


def on_page_content(html, page, config, files):
    """Puts an SVG into the page, so that it has the page's colours (docs/images/site.css)."""
    def inline(match):
        svg = (ROOT / "docs" / os.path.dirname(page.file.src_uri) / match.group("src")).resolve()
        text = re.sub(r"<\?xml.*?\?>\s*|<!--.*?-->\s*", "", svg.read_text(encoding="utf-8"), flags=re.S)
        return f'<figure class="picture" aria-label="{match.group("alt")}">{text}</figure>'

    return re.sub(r'<p><img alt="(?P<alt>[^"]*)" src="(?P<src>[^":]+\.svg)"\s*/?></p>', inline, html)
