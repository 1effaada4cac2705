# SPDX-License-Identifier: Apache-2.0
"""What this machine has: the peerlane program's answers as dictionaries."""

import json
import subprocess
from typing import Any

from . import _native
from ._errors import Error


def _ask(command: str) -> dict[str, Any]:
    done = subprocess.run([str(_native.program()), command, "--json", "-"], capture_output=True, text=True, check=False,
                          timeout=300)
    start = done.stdout.find("{")
    try:
        answer: dict[str, Any] = json.loads(done.stdout[start:])
        return answer
    except ValueError:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Error(5, f"peerlane {command}: {said[-1] if said else 'no answer'}") from None


def info() -> dict[str, Any]:
    """GPUs, BAR1, links, driver, near CPUs, and each mapping backend with the reason why it is usable or not: the result file of
    `peerlane info` (docs/results.md). Runs the program, so it disturbs nothing in this process."""
    return _ask("info")


def doctor() -> list[dict[str, str]]:
    """What stands between this machine and the fast path: findings with `level` ("ok", "note", "BLOCKER"), `subject`, `what` and
    `fix`."""
    rows: list[dict[str, str]] = _ask("doctor")["rows"]
    return rows
