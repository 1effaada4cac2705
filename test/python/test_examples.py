# SPDX-License-Identifier: Apache-2.0
"""Every example runs, on the simulated GPU, and tells its effect; and the program that measures costs on a GPU runs, too."""

import json
import subprocess
import sys
from pathlib import Path

import peerlane
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples" / "python").glob("*.py") if path.name != "gpu.py")


def run(*command):
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    assert len(path.read_text().splitlines()) < 80
    last = run(path, "--rounds", 5).splitlines()[-1]
    assert last.startswith("effect: ") and "simulated GPU (no GPU's figures)" in last


def test_cost_of_elements(tmp_path):
    out = run(ROOT / "scripts" / "gpu" / "python_cost.py", "--quick", "--json", tmp_path / "cost.json")
    told = json.loads((tmp_path / "cost.json").read_text())
    assert out.startswith("SIMULATED GPU") and told["machine"]["simulated"] is True
    assert all(row["latency_ns_p50"] > 0 for row in told["rows"] if row["call"].startswith(("mapping", "copy")))


def test_cost_of_two_builds_by_turns():
    package = Path(peerlane.__file__).parents[1]
    lines = run(ROOT / "scripts" / "gpu" / "python_cost.py", "--quick", "--beside", package).splitlines()
    assert "beside" in lines[0] and any(line.startswith("mapping[i, j] ") and line.count(" ns") == 2 for line in lines)
