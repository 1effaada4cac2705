#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/layers.svg from the CMake files: the layers of src/, each above everything that it uses.

    scripts/architecture_picture.py            draw it
    scripts/architecture_picture.py --check    exit 1 if the picture differs from the CMake files (lint does the same)
"""

import sys
from html import escape
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import lint  # noqa: E402

PICTURE = "docs/images/layers.svg"
WIDTH, GAP, BOX, MOST_IN_A_ROW = 860, 12, 54, 6
# The colour shows the group of a layer; the classes are those of docs/images/site.css.
COLOURS = {"store": ("blue", "#dcecff"), "messaging": ("green", "#dafbe1"), "triggered": ("green", "#dafbe1"), "ucx": ("green", "#dafbe1"),
           "compat": ("red", "#ffe3e0"), "capi": ("red", "#ffe3e0"), "map": ("amber", "#fff1cc"), "copy": ("amber", "#fff1cc"),
           "rm": ("amber", "#fff1cc")}


def direct(deps, layer):
    """The layers that a layer uses, without those that it also reaches through another one."""
    return [name for name in deps[layer] if not any(name in lint.transitive(deps, other) for other in deps[layer] if other != name)]


def levels(order, deps):
    """Rows from the top: a layer stands one row above the highest layer that it uses."""
    level = {}
    for layer in order:  # users come after what they use
        level[layer] = 1 + max((level[name] for name in deps[layer]), default=-1)
    return [[layer for layer in order if level[layer] == row] for row in range(max(level.values()), -1, -1)]


def lines_of(words, limit):
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 2 > limit:
            lines.append("")
        lines[-1] += (", " if lines[-1] else "") + word
    return lines


def draw(tree):
    deps, out, y = lint.layer_deps(tree), [], GAP
    order = [layer for layer in lint.layer_order(tree) if layer in deps]
    for row in levels(order, deps):
        for start in range(0, len(row), MOST_IN_A_ROW):
            part = row[start:start + MOST_IN_A_ROW]
            width = (WIDTH - GAP * (len(part) + 1)) / len(part)
            uses = [lines_of(sorted(direct(deps, layer), key=order.index), int(width / 6)) for layer in part]
            height = BOX + 13 * (max(map(len, uses)) - 1)
            for index, layer in enumerate(part):
                x = GAP + index * (width + GAP)
                kind, fill = COLOURS.get(layer.split("/")[0], ("box", "#f5f6f8"))
                out.append(f'<rect class="{kind}" x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="6" fill="{fill}" stroke="#57606a"/>')
                out.append(text(x + width / 2, y + 21, escape(layer), "strong", 13, "#1b1f24", 700))
                for number, line in enumerate(uses[index]):
                    if line:
                        out.append(text(x + width / 2, y + 40 + 13 * number, escape("uses " * (number == 0) + line), "soft", 11, "#57606a", 400))
            y += height + GAP
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">',
                      "<title>The layers of src/: each box is one folder, and uses only boxes below it</title>", *out, "</svg>", ""])


def text(x, y, words, kind, size, fill, weight):
    return f'<text class="{kind}" x="{x:.0f}" y="{y}" text-anchor="middle" font-size="{size}" font-family="system-ui, sans-serif" ' \
           f'font-weight="{weight}" fill="{fill}">{words}</text>'


def main(arguments):
    root = Path(__file__).resolve().parent.parent
    picture = draw(lint.load_tree(root))
    if arguments == ["--check"]:
        is_fresh = (root / PICTURE).read_text(encoding="utf-8") == picture
        print(f"{PICTURE}: {'as the CMake files have it' if is_fresh else 'differs from the CMake files: run scripts/architecture_picture.py'}")
        return 0 if is_fresh else 1
    (root / PICTURE).write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
