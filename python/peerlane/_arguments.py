# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments before they reach the compiled module, whose own type errors name neither the argument nor its value.

`role` is the name of the argument for the message. TypeError: wrong type. ValueError: out of range.
"""

import math
import operator
from typing import Any

__all__ = ["extents", "number", "seconds", "text", "truth"]


def _wrong(role: str, given: object, wanted: str) -> TypeError:
    return TypeError(f"{role}: expected {wanted}, got {type(given).__name__}")


def number(role: str, given: Any, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """Returns an integer (also of NumPy) from `least` to `most`, both included."""
    try:
        value = operator.index(given)
    except TypeError:
        raise _wrong(role, given, "an integer") from None
    if not least <= value <= most:
        raise ValueError(f"{role}: {value} is not from {least} to {most}")
    return value


def extents(role: str, shape: Any) -> tuple[int, ...]:
    """A shape: one integer, of NumPy too, or several, none of them negative."""
    if hasattr(type(shape), "__index__") and not hasattr(type(shape), "__len__"):
        return (number(role, shape),)
    if not hasattr(type(shape), "__iter__"):
        raise _wrong(role, shape, "an integer or a sequence of them")
    return tuple(number(role, extent) for extent in shape)


def seconds(role: str, given: Any) -> float:
    """Returns a duration in seconds, of less than a thousand years; negative means no limit."""
    if isinstance(given, (bool, str)) or not hasattr(type(given), "__float__"):
        raise _wrong(role, given, "a number of seconds")
    value = float(given)
    if not -math.inf < value < 3e10:
        raise ValueError(f"{role}: expected a number of seconds below 3e10, got {given}")
    return value


def text(role: str, given: Any) -> str:
    """Returns a string that can become a C string: no zero byte, valid as UTF-8."""
    if not isinstance(given, str):
        raise _wrong(role, given, "text")
    if "\0" in given:
        raise ValueError(f"{role}: {given!r} contains a zero byte")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{role}: {given!r} is not Unicode that can be written as UTF-8") from None
    return given


def truth(role: str, given: Any) -> bool:
    """Returns a bool. Other types are refused, because "no" would count as true."""
    if not isinstance(given, bool):
        raise _wrong(role, given, "True or False")
    return given
