# SPDX-License-Identifier: Apache-2.0
"""Facts about this machine: the results of the peerlane program as dictionaries."""

import json
import subprocess
from typing import Any, cast

from . import _html, _native
from ._errors import Error
from ._types import Finding, MachineInfo

__all__ = ["doctor", "info"]


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


class _Info(dict[str, Any]):
    """A dictionary that a notebook shows as tables."""

    def _repr_html_(self) -> str:
        gpus = [row for row in self["rows"] if row.get("kind") == "gpu"]
        backends = [row for row in self["rows"] if row.get("kind") == "backend"]
        return (_html.rows("peerlane.info()", self["machine"]) + _html.table("GPUs", ["ordinal", "name", "bus_id", "memory_bytes"], gpus)
                + _html.table("mapping backends", sorted({name for row in backends for name in row} - {"kind"}), backends))


class _Findings(list[Finding]):
    """A list that a notebook shows as a table, and print() as lines."""

    def __str__(self) -> str:
        return "\n".join(f"{each['level']:8} {each['subject']:14} {each['what']}" + (f"\n{'':24}{each['fix']}" if each["fix"] else "")
                         for each in self)

    def _repr_html_(self) -> str:
        return _html.table("peerlane.doctor()", ["level", "subject", "what", "fix"], cast("list[dict[str, object]]", self))


def info() -> MachineInfo:
    """Returns GPUs, BAR1, links, driver, near CPUs, and each mapping backend with the reason why it is usable or not: the result file
    of `peerlane info` (docs/results.md). It runs the program in a separate process."""
    return cast(MachineInfo, _Info(_ask("info")))


def doctor() -> list[Finding]:
    """Returns what prevents fast access to GPU memory on this machine: findings with `level` ("ok", "note", "BLOCKER"), `subject`,
    `what` and `fix`."""
    return _Findings(_ask("doctor")["rows"])
