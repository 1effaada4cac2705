# SPDX-License-Identifier: Apache-2.0
"""Formats numbers for readers."""

UNKNOWN = "unknown"


def size(count):
    """Formats bytes in a binary unit if the number is then whole, otherwise in bytes: 4 KiB, 12345 B."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{int(count)} B"


def rounded(value, digits=3):
    """Formats with `digits` significant digits, without exponent or thousands separators."""
    if not isinstance(value, (int, float)):  # none, or a damaged row's
        return "–"
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    if "e" in text:
        return f"{value:.0f}" if abs(value) >= 1 else f"{value:.{digits + 3}f}".rstrip("0")
    return text


def microseconds(ns):
    """Formats a time in ns as a number of us, without the unit."""
    return "–" if ns is None or ns < 0 else rounded(ns / 1000)


def duration(ns):
    """Formats a value with its unit."""
    if ns is None or ns < 0:
        return "–"
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= factor * 0.9995:
            return f"{rounded(ns / factor)} {unit}"
    return f"{rounded(ns)} ns"


def known(value):
    """Whether the value is known: False for the values that result files use if they do not know."""
    return value not in (None, "", UNKNOWN, -1)


def plural(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
