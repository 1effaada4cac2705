# SPDX-License-Identifier: Apache-2.0
"""What the commands written in Python share: an output that cannot be written is one line and exit code 1, not a traceback; files are
written whole; and names say nothing to the terminal."""

import argparse
import io
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

__all__ = ["Parser", "harmless", "place", "run", "write_file"]


def shown(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def harmless(text: str) -> str:
    """The text with all but ends of lines and tabs that cannot be printed as escapes: names may hold any byte."""
    return "".join(c if c.isprintable() or c in "\n\t" else shown(c) for c in text)


class Parser(argparse.ArgumentParser):
    """Its complaints, which repeat words of the command line, say nothing to the terminal."""

    def error(self, message: str) -> NoReturn:
        super().error(harmless(message))


def place(text: str) -> str:
    """For argparse's `type`: the name of a file or folder. An empty one comes from a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("was given an empty value: give one, or leave it out")
    return text


def write_file(path: str, text: str) -> None:
    """Writes a file whole or not at all. A device, a pipe or a link is opened and written to, never replaced. Raises OSError, which names
    the path."""
    data = text.encode("utf-8", "backslashreplace")  # JSON and names may hold halves of characters, which UTF-8 has not
    try:
        mode = os.lstat(path).st_mode if os.path.lexists(path) else stat.S_IFREG
        if not stat.S_ISREG(mode):
            Path(path).write_bytes(data)
            return
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            part.write_bytes(data)
            part.replace(target)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None  # not the temporary file's name


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
        print(harmless(f"{command}: {subject}: {error.strerror or error}"), file=sys.stderr)
        if not error.filename and sys.stdout is not None:  # or Python writes it once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
