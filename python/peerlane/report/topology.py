# SPDX-License-Identifier: Apache-2.0
"""Draws a machine: NUMA nodes, PCIe bridges, GPUs, network devices and NVLinks, as SVG and as sentences.

`devices`: rows of `peerlane topo` ("label", "name", "bus_id", "numa_node", "cpus", "pcie"). `relations`: (label, label) -> the words of
`peerlane topo` ("NV18", "PIX", "PXB", "PHB", "NODE", "SYS").
"""

from html import escape

BELOW_ONE_BRIDGE = ("PIX", "PXB")
BELOW_ONE_HOST_BRIDGE = BELOW_ONE_BRIDGE + ("PHB",)
BOX_W, BOX_H, GAP, PAD = 140, 66, 12, 16
ROW_W = 1060  # the bridges of a wider node are drawn in several rows
NVLINK_W = 460
NAME_CHARACTERS = 22
LINE_H = 17


def related(relations, a, b, kinds):
    return relations.get((a, b)) in kinds or relations.get((b, a)) in kinds


def clusters(labels, relations, kinds):
    """Returns groups of devices that are related by one of the `kinds`, each group in order."""
    out: list = []
    for label in labels:
        home = [g for g in out if any(related(relations, label, other, kinds) for other in g)]
        merged = [x for g in home for x in g] + [label]
        out = [g for g in out if g not in home] + [merged]
    return out


def nvlinks(labels, relations):
    """Returns {(a, b): number of NVLinks} for each connected pair, a before b."""
    out = {}
    for i, a in enumerate(labels):
        for b in labels[i + 1:]:
            word = relations.get((a, b), "")
            if word.startswith("NV") and word[2:].isdigit():
                out[a, b] = int(word[2:])
    return out


def node_title(number, devices):
    cpus = next((d["cpus"] for d in devices if d.get("cpus") not in (None, "", "unknown")), "")
    name = f"NUMA node {number}" if number >= 0 else "host"
    return f"{name}, CPUs {cpus}" if cpus else name


class Canvas:
    def __init__(self):
        self.parts, self.width, self.height = [], 0, 0

    def box(self, x, y, w, h, kind):
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>')
        self.width, self.height = max(self.width, x + w), max(self.height, y + h)

    def text(self, x, y, words, kind="", anchor="start"):
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>')

    def line(self, x1, y1, x2, y2, kind):
        self.parts.append(f'<path class="{kind}" d="M{x1} {y1} L{x2} {y2}"/>')


def draw(devices, relations):
    """Returns (SVG text, sentences)."""
    canvas = Canvas()
    by_label = {d["label"]: d for d in devices}
    gpus = [d["label"] for d in devices if d["label"].startswith("GPU")]
    links = nvlinks(gpus, relations)
    nodes = sorted({d.get("numa_node", -1) for d in devices})
    places: dict = {}
    y, sentences = 4, []
    for number in nodes:
        members = [d for d in devices if d.get("numa_node", -1) == number]
        y = draw_node(canvas, y, number, members, relations, places) + 14
        sentences.append(f"{node_title(number, members)}: " + ", ".join(describe(d) for d in members))
    sentences += draw_nvlinks(canvas, y, gpus, links, places)
    for a, b in links:
        assert a in by_label and b in by_label
    height = canvas.height + 6
    svg = (f'<svg class="topology" viewBox="0 0 {canvas.width + 4} {height}" width="{canvas.width + 4}" height="{height}" '
           f'xmlns="http://www.w3.org/2000/svg" aria-hidden="true">' + "".join(canvas.parts) + "</svg>")
    return svg, sentences


def describe(device):
    text = device["label"] + (f" ({device['name']})" if device["name"] != device["bus_id"] else "")
    return text + (f" at {device['bus_id']}" if device.get("bus_id") else "") + (f", {device['pcie']}" if device.get("pcie") else "")


def draw_node(canvas, y, number, members, relations, places):
    """Draws one NUMA node: its host bridges as groups of bridges, each bridge as a box of devices. Returns the y coordinate below it."""
    labels = [d["label"] for d in members]
    by_label = {d["label"]: d for d in members}
    groups = clusters(labels, relations, BELOW_ONE_BRIDGE)
    start, x, top, row_height, right = y, PAD, y + 30, 0, 0
    place = len(canvas.parts)
    for group in groups:
        width = len(group) * (BOX_W + GAP) - GAP + 2 * 10
        if x + width > ROW_W and x > PAD:
            x, top, row_height = PAD, top + row_height + 12, 0
        height = draw_group(canvas, x, top, [by_label[name] for name in group], len(group) > 1, places)
        x, row_height, right = x + width + 10, max(row_height, height), max(right, x + width)
    bottom = top + row_height + 12
    canvas.parts.insert(place, f'<rect class="node" x="2" y="{start}" width="{max(right + PAD, 300) - 2}" height="{bottom - start}" rx="8"/>')
    canvas.width, canvas.height = max(canvas.width, right + PAD, 302), max(canvas.height, bottom)
    canvas.text(PAD, start + 20, node_title(number, members), "title")
    return bottom


def draw_group(canvas, x, y, members, bridged, places):
    width = len(members) * (BOX_W + GAP) - GAP + 20
    inner = y + (26 if bridged else 0)
    height = BOX_H + (26 + 10 if bridged else 0)
    if bridged:
        canvas.box(x, y, width, height, "bridge")
        canvas.text(x + 10, y + 17, "PCIe bridge", "small")
    for i, device in enumerate(members):
        left = x + 10 + i * (BOX_W + GAP)
        draw_device(canvas, left, inner, device)
        places[device["label"]] = (left + BOX_W / 2, inner + BOX_H)
    return height


def draw_device(canvas, x, y, device):
    canvas.box(x, y, BOX_W, BOX_H, "gpu" if device["label"].startswith("GPU") else "nic")
    canvas.text(x + BOX_W / 2, y + 19, device["label"], "title", "middle")
    name = device["name"].removeprefix("NVIDIA ") if device["name"] != device["bus_id"] else ""
    lines = [line for line in (name, device.get("bus_id", ""), device.get("pcie", "")) if line]
    for i, line in enumerate(lines[:3]):
        canvas.text(x + BOX_W / 2, y + 34 + 13 * i, line if len(line) <= NAME_CHARACTERS else line[:NAME_CHARACTERS - 1] + "…", "small", "middle")


def draw_nvlinks(canvas, y, gpus, links, places):
    """Draws NVLinks: one bar if every pair has the same number of them, otherwise a line of text for each pair."""
    if not links:
        return []
    counts = set(links.values())
    everyone = len(counts) == 1 and len(links) == len(gpus) * (len(gpus) - 1) // 2
    if everyone:
        count = counts.pop()
        names = f"{gpus[0]} and {gpus[1]}" if len(gpus) == 2 else f"each pair of {gpus[0]} to {gpus[-1]}"
        sentence = f"NVLink: {names} joined by {count} links"
        canvas.width = max(canvas.width, NVLINK_W)
        canvas.box(2, y, canvas.width - 2, 30, "nvlink")
        canvas.text(canvas.width / 2, y + 20, sentence, "title", "middle")
        return [sentence]
    sentences = [f"NVLink: {a} and {b} joined by {count} links" for (a, b), count in links.items()]
    for i, sentence in enumerate(sentences):
        canvas.text(PAD, y + 14 + LINE_H * i, sentence, "small")
    canvas.height = y + LINE_H * len(sentences) + 4
    return sentences
