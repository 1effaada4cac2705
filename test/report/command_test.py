#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""command_test.py OUT_FOLDER: `peerlane report` as the built program starts it, also from a copied folder."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "docs/results/foundation/h100/pplat.json"


def run(program, *arguments):
    # From "/": what is found is beside the program, not in the current folder.
    return subprocess.run([program, "report", *map(str, arguments)], cwd="/", text=True, capture_output=True, check=False, timeout=50)


def main(out):
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "copied"
        copied.mkdir()
        for file in (Path(out) / "peerlane", *Path(out).glob("lib*.so*")):
            shutil.copy(file, copied)
        shutil.copytree(Path(out) / "python", copied / "python")
        for program in (Path(out) / "peerlane", copied / "peerlane"):
            done = run(program, "--markdown", RESULT)
            assert done.returncode == 0, (program, done.stderr)
            assert "Round trip" in done.stdout and not done.stderr, done
            refused = run(program, ROOT / "LICENSE")
            assert refused.returncode == 1 and "not JSON" in refused.stderr, refused
            assert "peerlane report" in run(program, "-h").stdout
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([program, "report", "--markdown", RESULT], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=50)
            assert done.returncode == 1 and done.stderr.splitlines() == ["peerlane report: standard output cannot be written: No space left on device"], done
        shutil.rmtree(copied / "python")
        assert "No module named" in run(copied / "peerlane", RESULT).stderr
    print("peerlane report: from the build folder and from a copy")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
