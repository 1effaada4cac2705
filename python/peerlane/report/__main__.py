# SPDX-License-Identifier: Apache-2.0
"""The command line of `peerlane report`."""

import subprocess
import sys

from .. import _output
from . import files, html, markdown, plotly_script, views

DESCRIPTION = "Shows result files (from any command's --json FILE) as one self-contained HTML page, or as Markdown."
EPILOG = ("A .txt file is shown with the .json file of the same name. Files with the same command line are compared, each with the "
          "first; two files of one command are compared even if their options differ. Exit code: 0; 1 if a file is refused or something is missing.")


def arguments(argv):
    parser = _output.Parser(prog="peerlane report", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("files", nargs="*", type=_output.place, metavar="FILE", help="result files, and text files (.txt) to show with them")
    parser.add_argument("-o", "--output", type=_output.place, metavar="FILE", help="output file; - is standard output (default: report.html; with --markdown: standard output)")
    parser.add_argument("--markdown", action="store_true", help="write a summary in Markdown instead of the page")
    parser.add_argument("--title", default="Peerlane report", help="heading of the page")
    parser.add_argument("--setup", action="store_true", help="fetch plotly.js from PyPI into a private environment (needed once)")
    given = parser.parse_args(argv)
    if not given.files and not given.setup:
        parser.error("no file given")
    return given


def collect(names):
    """Returns (results, texts). Prints why a file is refused, and then returns None."""
    items, refused = [], False
    for name in dict.fromkeys(names):
        try:
            items.append(files.read(name))
        except files.Refused as error:
            print(_output.harmless(f"peerlane report: {error}"), file=sys.stderr)
            refused = True
    if refused:
        return None
    files.label_all(items)
    return files.attach_logs(items)


def write(text, output):
    if output == "-":
        sys.stdout.write(text)
        return 0
    _output.write_file(output, text)
    size = len(text.encode("utf-8", "backslashreplace"))
    print(_output.harmless(f"{output}: {size / 1e6:.1f} MB" if size > 1e5 else f"{output}: {size} bytes"))
    return 0


def set_up():
    try:
        print(f"plotly is in {plotly_script.set_up()}")
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"peerlane report: --setup: {error}", file=sys.stderr)
        return 1
    return 0


def main(argv=None):
    return _output.run("peerlane report", lambda: show(arguments(argv)))


def show(given):
    if given.setup and (code := set_up() or not given.files):
        return int(code is not True and code)
    read = collect(given.files)
    if read is None:
        return 1
    results, texts = read
    report = views.build(results, texts, given.title)
    if given.markdown:
        text = _output.harmless(markdown.render(report))  # often read in a terminal
        if given.output:
            return write(text, given.output)
        sys.stdout.write(text)
        return 0
    try:
        script = plotly_script.read()
    except plotly_script.Missing as error:
        print(f"peerlane report: {error}", file=sys.stderr)
        return 1
    return write(html.render(report, script), given.output or "report.html")


if __name__ == "__main__":
    sys.exit(main())
