# SPDX-License-Identifier: Apache-2.0
"""The commands that a wheel installs: `peerlane` and the drop-in names. `peerlane report` and `peerlane top` run here, in Python; all
others run the compiled program."""

import os
import runpy
import sys
from pathlib import Path

from . import _native

__all__ = ["main"]

_IN_PYTHON = ("report", "top")


def main(name: str | None = None) -> None:
    """Runs the command and does not return: it exits, or replaces this process by the program. `name`: the command; None: the name by
    which this process was started."""
    name, arguments = name or Path(sys.argv[0]).name, sys.argv[1:]
    if name == "peerlane" and arguments and arguments[0] in _IN_PYTHON:
        sys.argv = [f"peerlane {arguments[0]}", *arguments[1:]]
        runpy.run_module(f"peerlane.{arguments[0]}", run_name="__main__", alter_sys=True)
        sys.exit(0)
    try:
        program = _native.program()
    except FileNotFoundError as error:
        sys.exit(f"{name}: {error}")
    os.execv(program, [name, *arguments])
