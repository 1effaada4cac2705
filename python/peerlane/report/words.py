# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them."""

UNKNOWN = "unknown"


def size(count):
    """Bytes in binary units when they come out whole, else as they are: 4 KiB, 12345 B."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{int(count)} B"


def rounded(value, digits=3):
    """`digits` significant digits, no exponent, thousands as they are."""
    if not isinstance(value, (int, float)):  # none, or a damaged row's
        return "–"
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    if "e" in text:
        return f"{value:.0f}" if abs(value) >= 1 else f"{value:.{digits + 3}f}".rstrip("0")
    return text


def microseconds(ns):
    """The number alone, of a time in ns; its unit is us."""
    return "–" if ns is None or ns < 0 else rounded(ns / 1000)


def duration(ns):
    """With its unit."""
    if ns is None or ns < 0:
        return "–"
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= factor * 0.9995:
            return f"{rounded(ns / factor)} {unit}"
    return f"{rounded(ns)} ns"


def known(value):
    """False for what result files write when they do not know."""
    return value not in (None, "", UNKNOWN, -1)


def plural(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
