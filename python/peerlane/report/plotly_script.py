# SPDX-License-Identifier: Apache-2.0
"""Finds plotly.js in the PyPI package `plotly`. The Python part of the package is not used."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

PACKAGE = "plotly>=6,<8"


class Missing(Exception):
    """plotly.js was not found; the message says how to get it."""


def private_environment():
    """Returns the folder of the virtual environment that `peerlane report --setup` makes; None if the user has no home."""
    given = os.environ.get("XDG_DATA_HOME", "")
    if given.startswith("/"):  # the XDG specification says to ignore relative paths
        return Path(given) / "peerlane" / "venv"
    try:
        return Path.home() / ".local/share" / "peerlane" / "venv"
    except RuntimeError:  # HOME is not set, and the user is not in the password database (containers)
        return None


def environments():
    """Returns the folders to search: this Python, the private environment, and the .venv of a clone that contains this file."""
    spec = importlib.util.find_spec("plotly")
    if spec is not None and spec.origin:
        yield Path(spec.origin).parent
    own = private_environment()
    for base in ([own] if own else []) + [parent / ".venv" for parent in Path(__file__).resolve().parents[1:6]]:
        yield from sorted(base.glob("lib/python3*/site-packages/plotly"))


def read():
    """Returns the text of plotly.min.js. Raises Missing."""
    for package in environments():
        path = package / "package_data" / "plotly.min.js"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise Missing("the page needs plotly.js, which is not here; `peerlane report --setup` fetches it from PyPI into "
                  f"{private_environment() or 'a folder of the home that HOME names'} (or: python3 -m pip install plotly). --markdown does without.")


def set_up():
    """Makes the private environment and installs plotly there. Raises OSError, subprocess.CalledProcessError."""
    folder = private_environment()
    if folder is None:
        raise OSError("no folder to create it in: set HOME or XDG_DATA_HOME")
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", PACKAGE],
                   check=True)
    return folder
