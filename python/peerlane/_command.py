# SPDX-License-Identifier: Apache-2.0
"""The `peerlane` command of a wheel, and its drop-in names: parts that are Python run here, the rest is the program."""

import os
import runpy
import sys
from pathlib import Path

from . import _native

__all__ = ["main"]

_IN_PYTHON = ("report", "top")


def main(name: str | None = None) -> None:
    """Replaces this process by the program; does not return. `name`: of the command, None: by which it was called."""
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
