# SPDX-License-Identifier: Apache-2.0
"""Finds plotly.js, which the PyPI package `plotly` carries; its Python part is not used."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

PACKAGE = "plotly>=6,<8"


class Missing(Exception):
    """plotly.js is nowhere; the message says how to get it."""


def private_environment():
    """The folder of the virtual environment that `peerlane report --setup` makes."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(data) / "peerlane" / "venv"


def environments():
    """Where to look: this Python, the private environment, a clone's .venv above this file."""
    spec = importlib.util.find_spec("plotly")
    if spec is not None and spec.origin:
        yield Path(spec.origin).parent
    for base in [private_environment()] + [parent / ".venv" for parent in Path(__file__).resolve().parents[1:6]]:
        yield from sorted(base.glob("lib/python3*/site-packages/plotly"))


def read():
    """The text of plotly.min.js. Raises Missing."""
    for package in environments():
        path = package / "package_data" / "plotly.min.js"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise Missing("the page needs plotly.js, which is not here; `peerlane report --setup` fetches it from PyPI into "
                  f"{private_environment()} (or: python3 -m pip install plotly). --markdown does without.")


def set_up():
    """Makes the private environment and installs plotly there. Raises subprocess.CalledProcessError."""
    folder = private_environment()
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", PACKAGE],
                   check=True)
    return folder
