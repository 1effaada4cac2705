# SPDX-License-Identifier: Apache-2.0
"""What the commands written in Python share: an output that cannot be written is one line and exit code 1, not a traceback."""

import argparse
import io
import os
import sys
from collections.abc import Callable

__all__ = ["place", "run"]


def place(text: str) -> str:
    """For argparse's `type`: the name of a file or folder. An empty one comes from a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("was given an empty value: give one, or leave it out")
    return text


def run(command: str, body: Callable[[], int]) -> int:
    """Calls body() and writes what it left in the buffers. Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's character set does not have
    try:
        code = body()
        if sys.stdout is None:  # closed by whoever started this
            raise OSError("it is closed")
        sys.stdout.flush()
    except OSError as error:
        subject = error.filename or "standard output cannot be written"
        print(f"{command}: {subject}: {error.strerror or error}", file=sys.stderr)
        if not error.filename and sys.stdout is not None:  # or Python writes it once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
