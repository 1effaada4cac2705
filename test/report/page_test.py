#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `peerlane report` in headless Chromium: no complaint in its console, nothing fetched, every chart drawn, nothing wider
than a phone; light, dark, phone and paper. Exit code 77: left out, and the reason is printed.

    page_test.py [FOLDER]     FOLDER keeps the pictures, to be looked at
"""

import sys
import tempfile
from pathlib import Path

import browser

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from peerlane.report import files, html, plotly_script, views  # noqa: E402

LEFT_OUT = 77
RESULTS = ROOT / "docs" / "results"
# One of each kind of block: curves with crossovers, distributions, bars, matrices with bad verdicts, a picture, a comparison, a text.
SHOWN = ("foundation/h100/demo_root.json", "foundation/h200x2/demo_root.json", "bandwidth/h100/default.json", "bandwidth/h100/default.txt",
         "envelope/h200x2/copy_p2p.json", "async/h200x2/pingpong.json", "p2p/h200x2/bandwidth.json")
LAYOUTS = (("light", 1280, 900, False, False), ("dark", 1280, 900, True, False), ("phone", 390, 844, False, True))
DRAW_ALL = """(async () => {
  for (const place of document.querySelectorAll(".plot")) {
    place.scrollIntoView();
    for (let i = 0; i < 200 && !place.querySelector(".main-svg"); i++) await new Promise((r) => setTimeout(r, 10));
  }
  scrollTo(0, 0);
  return [...document.querySelectorAll(".plot")].map((p) => !!p.querySelector(".main-svg"));
})()"""
LEGENDS_BELOW = """[...document.querySelectorAll(".plot")].filter((p) => {
  const legend = p.querySelector(".legend"), axis = p.querySelector(".xaxislayer-above, .xaxislayer-below");
  return legend && axis && legend.getBoundingClientRect().top < axis.getBoundingClientRect().bottom - 1;
}).map((p) => p.id)"""


def left_out(reason):
    print(f"SKIPPED: {reason}")
    return LEFT_OUT


def make_page(folder, script):
    items = [files.read(RESULTS / name) for name in SHOWN]
    files.label_all(items)
    path = folder / "report.html"
    path.write_text(html.render(views.build(*files.attach_logs(items), "Report for a test"), script), encoding="utf-8")
    return path


def look(tab, page, folder, layout):
    name, width, height, dark, phone = layout
    tab.events.clear()
    tab.open(page, width, height, dark, phone)
    drawn = tab.evaluate(DRAW_ALL)
    assert drawn and all(drawn), f"{name}: charts not drawn: {[i for i, ok in enumerate(drawn) if not ok]}"
    complaints = tab.complaints()
    assert not complaints, f"{name}: the console says {complaints}"
    wide = tab.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, f"{name}: {wide} pixels wide on a screen of {width}"
    overlapping = tab.evaluate(LEGENDS_BELOW)
    assert not overlapping, f"{name}: the legend covers the axis in {overlapping}"
    colours = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (colours == "rgb(255, 255, 255)") != dark, f"{name}: background {colours}"
    tall = tab.evaluate("document.documentElement.scrollHeight")
    tab.screenshot(folder / f"{name}.png", clip=(0, 0, width, min(tall, 6000)))
    assert (folder / f"{name}.png").stat().st_size > 20_000
    return len(drawn)


def main(keep=None):
    program = browser.find()
    if program is None:
        return left_out("no Chromium is installed (apt-get install chromium)")
    try:
        script = plotly_script.read()
    except plotly_script.Missing:
        return left_out("plotly is not installed (.venv/bin/pip install plotly)")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(keep or temporary)
        page = make_page(folder, script)
        with browser.Browser(program) as tab:
            counts = {look(tab, page, folder, layout) for layout in LAYOUTS}
            tab.open(page, 1280, 900)
            tab.print(folder / "paper.pdf")
            assert not tab.complaints(), f"printing: the console says {tab.complaints()}"
        pages = (folder / "paper.pdf").read_bytes().count(b"/Type /Page\n")
        assert 5 <= pages <= 60, f"{pages} pages of paper"
        print(f"{counts} charts in {len(LAYOUTS)} layouts, {pages} pages of paper, no complaint")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
