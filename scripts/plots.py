#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/plots.py [--check]: draws docs/results/plots/*.svg from the result files.

--check: exit 1 if a picture on disk differs from the one that the files give now. Uses only the standard library; the same files give the
same bytes. Colours follow the reader's light or dark setting. Each curve is named at its end, so nobody has to distinguish colours.
"""

import json
import math
import sys
from html import escape
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
PLOTS = RESULTS / "plots"


def font(size, weight=400):
    """As a style attribute, which the site's rule for the text of pictures does not override."""
    return f'style="font:{weight} {size}px system-ui,sans-serif;stroke:none"'


# The class names are specific to plots, because the site puts pictures into pages that have other classes.
STYLE = """<style>
.plot-text{fill:#1f2328}.plot-soft{fill:#59636e}.plot-grid{stroke:#d1d9e0}.plot-edge{stroke:#818b98}
.plot-a{stroke:#0969da;fill:#0969da}.plot-b{stroke:#bc4c00;fill:#bc4c00}.plot-c{stroke:#8250df;fill:#8250df}.plot-d{stroke:#59636e;fill:#59636e}
@media (prefers-color-scheme:dark){
.plot-text{fill:#f0f6fc}.plot-soft{fill:#9198a1}.plot-grid{stroke:#3d444d}.plot-edge{stroke:#656c76}
.plot-a{stroke:#4493f8;fill:#4493f8}.plot-b{stroke:#f0883e;fill:#f0883e}.plot-c{stroke:#ab7df8;fill:#ab7df8}.plot-d{stroke:#9198a1;fill:#9198a1}}
</style>"""


def rows(path, **wanted):
    data = json.loads((RESULTS / path).read_text(encoding="utf-8"))
    if data["simulated"]:
        raise SystemExit(f"plots: {path} was made on the simulated GPU and says nothing about speed")
    found = [row for row in data["rows"] if all(row.get(k) == v for k, v in wanted.items())]
    if not found:
        raise SystemExit(f"plots: {path} has no row with {wanted}")
    return found


def curve(path, field, scale, **wanted):
    return sorted((row["size_bytes"], row[field] * scale) for row in rows(path, **wanted))


def size_text(size):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


def text(x, y, words, css="plot-text", anchor="start", size=12, weight=400):
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {font(size, weight)}>{escape(words)}</text>'


def label_heights(ends, least=15):
    """Heights of the labels beside the curves' ends, moved apart where they would touch."""
    order = sorted(range(len(ends)), key=lambda i: ends[i])
    placed = dict.fromkeys(order, 0.0)
    last = -math.inf
    for i in order:
        last = placed[i] = max(ends[i], last + least)
    return [placed[i] for i in range(len(ends))]


class Panel:
    """One pair of axes, both logarithmic: sizes to the right, microseconds up."""

    def __init__(self, left, top, width, height, sizes, times):
        self.left, self.top, self.width, self.height, self.sizes, self.times = left, top, width, height, sizes, times

    def x(self, size):
        low, high = (math.log2(s) for s in self.sizes)
        return self.left + self.width * (math.log2(size) - low) / (high - low)

    def y(self, time):
        low, high = (math.log10(t) for t in self.times)
        return self.top + self.height * (1 - (math.log10(time) - low) / (high - low))

    def frame(self, title, ticks):
        out = [text(self.left, self.top - 12, title, weight=600)]
        decade = math.ceil(math.log10(self.times[0]))
        while 10.0 ** decade <= self.times[1]:
            y = self.y(10.0 ** decade)
            out.append(f'<path class="plot-grid" d="M{self.left:.1f} {y:.1f}h{self.width:.1f}"/>')
            out.append(text(self.left - 6, y + 4, f"{10.0 ** decade:g}", "plot-soft", "end", 11))
            decade += 1
        for size in ticks:
            out.append(f'<path class="plot-edge" d="M{self.x(size):.1f} {self.top + self.height:.1f}v4"/>')
            out.append(text(self.x(size), self.top + self.height + 17, size_text(size), "plot-soft", "middle", 11))
        out.append(f'<path class="plot-edge" fill="none" d="M{self.left:.1f} {self.top:.1f}v{self.height:.1f}h{self.width:.1f}"/>')
        return out

    def curves(self, series):
        """series: [(name, css class, dashes, points)]"""
        shown = [(n, c, d, [(s, t) for s, t in p if self.sizes[0] <= s <= self.sizes[1] and t <= self.times[1]]) for n, c, d, p in series]
        out = []
        heights = label_heights([self.y(points[-1][1]) for *_, points in shown])
        for (name, css, dashes, points), height in zip(shown, heights):
            path = "L".join(f"{self.x(s):.1f} {self.y(t):.1f}" for s, t in points)
            stroke = f' stroke-dasharray="{dashes}"' if dashes else ""
            out.append(f'<path class="{css}" style="fill:none" stroke-width="2" stroke-linejoin="round"{stroke} d="M{path}"/>')
            out.append(text(self.x(points[-1][0]) + 6, height + 4, name, css))
        return out


def picture(width, height, title, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, *parts, "</svg>"]) + "\n"


def copy_latency():
    parts = []
    for index, (direction, words, old) in enumerate((("h2d", "to the device, microseconds", "write"), ("d2h", "to the host, microseconds", "read"))):
        path = f"envelope/h100/copy_{direction}.json"
        panel = Panel(44 + 420 * index, 36, 290, 250, (64, 16 << 20), (0.1, 2000))
        parts += panel.frame(words, [64, 1 << 10, 16 << 10, 256 << 10, 4 << 20])
        method = lambda name, path=path: curve(path, "latency_ns_p50", 1e-3, kind="method", method=name, memory="pinned")  # noqa: E731
        parts += panel.curves([
            ("Peerlane", "plot-a", None, method("planner")),
            ("registered", "plot-a", "4 3", method("planner_registered")),
            ("cuMemcpy", "plot-b", None, method("cuMemcpy")),
            ("GDRCopy *", "plot-d", None, curve("foundation/h100/copylat.json", "latency_ns_p50", 1e-3, direction=old, contender="baseline"))])
    parts.append(text(44, 326, "One H100, pinned host memory, medians of one run. * GDRCopy's copy dispatch on the same kind of machine in another run.", "plot-soft", size=11))
    return picture(860, 336, "Time of a copy by its size, to and from an H100: Peerlane, cuMemcpy and GDRCopy", parts)


def message_latency():
    panel = Panel(44, 36, 560, 270, (1, 64 << 20), (1, 1000))
    parts = panel.frame("one way between two GPUs, microseconds", [1, 8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20])
    parts += panel.curves([(name, css, None, curve("p2p/h200x2/latency.json", "latency_us_p50", 1, via=contender))
                           for name, css, contender in (("Peerlane", "plot-a", "ours"), ("UCX", "plot-b", "ucx"), ("NCCL", "plot-c", "nccl"))])
    parts.append(text(44, 346, "Two H200 with NVLink, two processes, medians of one run in which the three take turns.", "plot-soft", size=11))
    return picture(700, 356, "Time of a message between two H200 by its size: Peerlane, UCX and NCCL", parts)


def store_rate():
    """Bars: the share of the link's rate that a put and a get reach, by size; the rate stands beside each."""
    parts, top, left, width = [text(150, 24, "share of the link's rate", weight=600)], 36, 150, 380
    for share in (0, 25, 50, 75, 100):
        x = left + width * share / 100
        parts.append(f'<path class="plot-grid" d="M{x:.1f} {top}v236"/>')
        parts.append(text(x, top + 252, f"{share} %", "plot-soft", "middle", 11))
    y = top + 6
    for machine, name in (("h100", "H100"), ("h200", "H200")):
        for size, file in ((1 << 20, "shm_volatile_1M"), (128 << 20, "shm_volatile_128M")):
            for direction, css in (("put", "plot-b"), ("get", "plot-a")):
                row = rows(f"store/{machine}/{file}.json", direction=direction, size_bytes=size)[0]
                length = width * row["ratio_to_link"]
                parts.append(f'<rect class="{css}" style="stroke:none" x="{left}" y="{y}" width="{length:.1f}" height="20" rx="2"/>')
                parts.append(text(left - 8, y + 15, f"{name}, {direction} {size_text(size)}", anchor="end"))
                parts.append(text(left + width + 10, y + 15, f"{row['bandwidth_gb_per_s']:.1f} of {row['link_gb_per_s']:.1f} GB/s", size=12))
                y += 26
        y += 12
    parts.append(text(20, 312, "GPU memory to and from the store, volatile, every byte compared. The link: cuMemcpyAsync of the same size.", "plot-soft", size=11))
    return picture(700, 322, "Rate of puts and gets of GPU memory beside the rate of the link, on H100 and H200", parts)


ALL = {"copy_latency.svg": copy_latency, "message_latency.svg": message_latency, "store_rate.svg": store_rate}


def main(arguments):
    stale = []
    PLOTS.mkdir(exist_ok=True)
    for name, draw in ALL.items():
        path, wanted = PLOTS / name, draw()
        if path.is_file() and path.read_text(encoding="utf-8") == wanted:
            continue
        stale.append(name)
        if arguments != ["--check"]:
            path.write_text(wanted, encoding="utf-8")
    if arguments == ["--check"]:
        for name in [*stale, *(p.name for p in PLOTS.iterdir() if p.name not in ALL)]:
            print(f"docs/results/plots/{name} is not what scripts/plots.py draws: run it and commit the picture")
        return 1 if stale or {p.name for p in PLOTS.iterdir()} != set(ALL) else 0
    print(f"plots: {len(stale)} of {len(ALL)} drawn anew in {PLOTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
