# SPDX-License-Identifier: Apache-2.0
"""Where documents link to, and which pages programs name in messages, help texts and comments. lint.py reports what leads nowhere."""

import functools
import os
import re
from pathlib import Path

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
PAGE = re.compile(r"(?<![\w/.-])(docs/[\w/-]+\.md)(?:#([\w-]+))?")
# Data, and tests whose files are inventions.
INVENTED = re.compile(r"^docs/(results|figures)/|^scripts/\w+_test\.py$")


def problems(files, binary=()):
    """(path, number, text, problem) of each line with a wrong link."""
    folders = {parent for path in files for parent in map(str, Path(path).parents)}
    known = {*files, *binary, *folders}
    has_pages = "docs" in folders  # not if somebody copied only the programs
    for path, text in files.items():
        if path.endswith(".md"):
            found = functools.partial(missing_targets, files, known, path)
        elif has_pages and "docs/" in text and not INVENTED.search(path):
            found = functools.partial(missing_pages, files)
        else:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            for problem in found(line):
                yield path, number, line, problem


def missing_targets(files, known, path, line):
    """Relative links of a document to files and sections that are not in the repository."""
    for target, section in LINK.findall(line):
        page = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if "://" in target:
            continue
        if page not in known:
            yield f"{target} does not exist"
        elif section and page.endswith(".md") and page in files and section not in sections(files[page]):
            yield f"{target or path} has no section #{section}"


def missing_pages(files, line):
    """Pages and sections that a line of a program names."""
    for page, section in PAGE.findall(line):
        if page not in files:
            yield f"{page} does not exist"
        elif section and section not in sections(files[page]):
            yield f"{page} has no section #{section}"


@functools.lru_cache(maxsize=None)
def sections(page):
    """Anchors of a page's headings, as GitHub and MkDocs make them, and those that it sets itself."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ +(.*?) *$", prose, re.M)]
    slugs = {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([^"]+)"', page))
