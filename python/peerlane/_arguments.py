# SPDX-License-Identifier: Apache-2.0
"""What a caller gave, checked by name before the compiled module sees it, whose own errors name neither argument nor value."""

import math
import operator
from typing import Any

__all__ = ["number", "seconds", "text", "truth"]


def _wrong(role: str, given: object, wanted: str) -> TypeError:
    return TypeError(f"{role}: {type(given).__name__} is given, {wanted} is wanted")


def number(role: str, given: Any, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """An integer, of NumPy too, from `least` to `most`."""
    try:
        value = operator.index(given)
    except TypeError:
        raise _wrong(role, given, "an integer") from None
    if not least <= value <= most:
        raise ValueError(f"{role}: {value} is not from {least} to {most}")
    return value


def seconds(role: str, given: Any) -> float:
    """A duration of less than a thousand years; negative: for ever."""
    if isinstance(given, (bool, str)) or not hasattr(type(given), "__float__"):
        raise _wrong(role, given, "a number of seconds")
    value = float(given)
    if not -math.inf < value < 3e10:
        raise ValueError(f"{role}: {given} is no number of seconds below 3e10")
    return value


def text(role: str, given: Any) -> str:
    if not isinstance(given, str):
        raise _wrong(role, given, "text")
    if "\0" in given:
        raise ValueError(f"{role}: {given!r} has a byte of zero, where it would end")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{role}: {given!r} is not Unicode that can be written as UTF-8") from None
    return given


def truth(role: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise _wrong(role, given, "True or False")
    return given
