#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/site/build.py OUT_FOLDER: the documentation as plain pages, from docs/, README.md, the public headers and the Python package.

Needs markdown-it-py (with Pygments code is coloured); no network, and no page fetches anything. Exit code 1 and a list if a link
between pages leads nowhere.
"""

import re
import shutil
import sys
from html import escape
from pathlib import Path, PurePosixPath

import reference
from markdown_it import MarkdownIt

try:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
except ImportError:
    highlight = None

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADERS = ("peerlane/peerlane.h", "peerlane/copy.h", "peerlane/link.h", "peerlane/stream.h", "peerlane/store.h", "gdrapi.h", "gdsync/core.h", "gdsync/soft.h", "peerlane/peerlane.hpp",
           "peerlane/copy.hpp", "peerlane/link.hpp", "peerlane/stream.hpp", "peerlane/store.hpp", "peerlane/result.hpp")
# What stands where in the list of pages; a document that is not named here comes last, so that none is lost.
GROUPS = (
    ("Start", ("README.md", "docs/quick-start.md", "docs/which-call.md", "docs/migrating.md")),
    ("Understand", ("docs/no-module.md", "docs/ordering-pictures.md", "docs/ordering.md", "docs/security.md", "docs/architecture.md")),
    ("Use", ("docs/python.md", "docs/messaging.md", "docs/async-api.md", "docs/store.md", "docs/mpi-shim.md", "docs/containers.md", "docs/ucx-gdr-copy.md", "docs/simulated-gpu.md", "docs/soak.md",
             "docs/kernel-module.md", "docs/packages.md")),
    ("Measure", ("docs/report.md", "docs/top.md", "docs/bandwidth.md", "docs/bandwidth-multinode.md", "docs/topology.md", "docs/p2p.md", "docs/async-benchmarks.md",
                 "docs/link-model.md", "docs/results.md")),
    ("When something is wrong", ("docs/doctor.md", "docs/troubleshooting.md")),
)
SMALL_LANGUAGES = {"sh": "bash", "": "text"}


class Site:
    def __init__(self, out):
        self.out, self.pages, self.problems = Path(out), {}, []
        self.markdown = MarkdownIt("commonmark", {"html": True, "highlight": coloured}).enable(["table", "strikethrough"])

    def add(self, source, text):
        """A page by its path in the repository; it becomes the same path with .html."""
        self.pages[source] = text

    def collect(self):
        self.add("README.md", (ROOT / "README.md").read_text(encoding="utf-8"))
        self.add("CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
        for path in sorted((ROOT / "docs").rglob("*.md")):
            self.add(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
        for header in HEADERS:
            path = ROOT / "include" / header
            if path.exists():
                self.add(f"reference/{header}.md", reference.header_page(header, path.read_text(encoding="utf-8")))
        python = reference.python_page(ROOT / "python" / "peerlane")
        if python is not None:
            self.add("reference/python.md", python)

    def write(self):
        shutil.rmtree(self.out, ignore_errors=True)
        anchors, bodies = {}, {}
        for source, text in self.pages.items():
            body, found = self.body(source, text)
            bodies[source], anchors[source] = body, found
        for source, body in bodies.items():
            body = self.linked(source, body, anchors)
            target = self.out / html_name(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self.frame(source, body), encoding="utf-8")
        (self.out / "page.css").write_text((HERE / "page.css").read_text(encoding="utf-8") + colours(), encoding="utf-8")
        return len(bodies)

    def body(self, source, text):
        """HTML of a page, and its anchors."""
        tokens, anchors = self.markdown.parse(text), set()
        for token, following in zip(tokens, tokens[1:]):
            if token.type == "heading_open":
                name = slug(following.content)
                while name in anchors:
                    name += "-1"
                token.attrSet("id", name)
                anchors.add(name)
        html = self.markdown.renderer.render(tokens, self.markdown.options, {})
        anchors |= set(re.findall(r'<a id="([^"]+)"', html))
        html = re.sub(r'<p><img src="([^"]+\.svg)" alt="([^"]*)"\s*/?></p>', lambda m: self.picture(source, m.group(1), m.group(2)), html)
        html = re.sub(r"(<table>.*?</table>)", r'<div class="scroll" tabindex="0">\1</div>', html, flags=re.S)
        # Names may break in tables, but not in the middle of a word.
        html = re.sub(r"<td[^>]*>.*?</td>", lambda cell: re.sub(r"<code>(.*?)</code>", breakable, cell.group(0), flags=re.S), html, flags=re.S)
        return html, anchors

    def picture(self, source, name, words):
        """An SVG is put into the page, so that it takes the page's colours."""
        path = ROOT / PurePosixPath(source).parent / name
        if not path.exists():
            self.problems.append(f"{source}: there is no picture {name}")
            return ""
        svg = re.sub(r"<\?xml.*?\?>\s*|<!--.*?-->\s*", "", path.read_text(encoding="utf-8"), flags=re.S)
        return f'<figure class="scroll" role="img" aria-label="{words}">{svg}</figure>'

    def linked(self, source, html, anchors):
        return re.sub(r'<a href="([^"]+)">(.*?)</a>', lambda m: self.link(source, m.group(1), m.group(2), anchors), html, flags=re.S)

    def link(self, source, target, words, anchors):
        if re.match(r"[a-z]+:", target):
            return f'<a href="{target}">{words}</a>'
        path, _, anchor = target.partition("#")
        wanted = str(normal(PurePosixPath(source).parent / path)) if path else source
        if wanted.startswith("include/") and f"reference/{wanted[8:]}.md" in self.pages:
            wanted = f"reference/{wanted[8:]}.md"
        if wanted.rstrip("/") + "/README.md" in self.pages:
            wanted = wanted.rstrip("/") + "/README.md"
        if wanted not in self.pages:
            if not (ROOT / wanted).exists():
                self.problems.append(f"{source}: {target} leads nowhere")
            return f'<span class="file" title="in the repository: {escape(wanted)}">{words}</span>'
        if anchor and anchor not in anchors[wanted]:
            self.problems.append(f"{source}: {target}: the page has no such heading")
        return f'<a href="{relative(source, wanted)}{"#" + anchor if anchor else ""}">{words}</a>'

    def navigation(self, here):
        named = {source for _, sources in GROUPS for source in sources}
        calls = [s for s in self.pages if s.startswith("reference/")]
        results = [s for s in self.pages if s.startswith("docs/results/") and s.endswith("README.md")]
        design = [s for s in self.pages if s.startswith("docs/design/")]
        rest = [s for s in self.pages if s not in named and s not in calls + results + design]
        groups = [*GROUPS, ("Every call", calls), ("Results", results), ("Design", design + rest)]
        out = []
        for title, sources in groups:
            links = "".join(f'<li><a href="{relative(here, s)}"{" aria-current=page" if s == here else ""}>{escape(title_of(s, self.pages[s]))}</a></li>'
                            for s in sources if s in self.pages)
            out.append(f"<h2>{escape(title)}</h2><ul>{links}</ul>" if links else "")
        return "".join(out)

    def frame(self, source, body):
        title = title_of(source, self.pages[source])
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escape(title)} - Peerlane</title><link rel="icon" href="data:,">
<link rel="stylesheet" href="{relative(source, 'page.css')}"></head>
<body><a class="skip" href="#main">Skip to the text</a>
<nav aria-label="Pages"><details{" open" if source == "README.md" else ""}><summary>Pages</summary>{self.navigation(source)}</details></nav>
<main id="main">{body}</main></body></html>
"""


def breakable(match):
    return "<code>" + re.sub(r"(&\w+;|(?<=\w)[_./(,=])(?=[^\s_)])", r"\1<wbr>", match.group(1)) + "</code>"


def coloured(code, language, _):
    """Coloured code, or "" for the renderer's own escaping."""
    if highlight is None:
        return ""
    try:
        lexer = get_lexer_by_name(SMALL_LANGUAGES.get(language, language))
    except ValueError:
        return ""
    return highlight(code, lexer, HtmlFormatter(nowrap=True))


def colours():
    if highlight is None:
        return ""
    light, dark = HtmlFormatter(style="xcode"), HtmlFormatter(style="github-dark")
    keep = lambda f: "\n".join(line for line in f.get_style_defs("pre").split("\n") if re.match(r"pre \.\w", line))  # noqa: E731
    return f"\n{keep(light)}\n@media screen and (prefers-color-scheme: dark) {{\n{keep(dark)}\n}}\n"


def slug(text):
    """Anchors as repository hosts make them."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def title_of(source, text):
    match = re.search(r"^# (.+)$", text, re.M)
    words = re.sub(r"[`*]|<[^>]+>", "", match.group(1)) if match else source
    return words if not source.startswith("docs/results/") or source == "docs/results/README.md" else f"{words}"


def normal(path):
    parts = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


def html_name(source):
    return "index.html" if source == "README.md" else re.sub(r"README\.md$", "index.html", source) if source.endswith("README.md") \
        else source[:-3] + ".html" if source.endswith(".md") else source


def relative(here, there):
    ups = len(PurePosixPath(html_name(here)).parent.parts)
    return "../" * ups + html_name(there)


def main(out):
    site = Site(out)
    site.collect()
    count = site.write()
    for problem in site.problems:
        print(problem, file=sys.stderr)
    print(f"{out}/index.html: {count} pages, {len(site.problems)} links that lead nowhere")
    return 1 if site.problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
