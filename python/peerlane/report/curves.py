# SPDX-License-Identifier: Apache-2.0
"""Curves over sizes, crossovers (the sizes at which another method becomes the fastest), and histograms of raw samples."""

import math

from . import words
from .model import Chart, Mark, Series

# A method overtakes another only if it is faster by more than this factor: the medians of a run vary by about as much.
CLEARLY_AHEAD = 0.03
BINS = 40

CROSSOVER_NOTE = ("Dotted lines: crossovers, where another way becomes the best by more than 3 % (interpolated between the "
                  "measured sizes).")


def series_by(rows, name_of, x="size_bytes", y="latency_ns_p50", scale=1e-3):
    """Returns a Series for each name, in the order of first appearance, with points sorted by x. Omits rows without y."""
    points: dict = {}
    for row in rows:
        if isinstance(row.get(y), (int, float)) and row[y] > 0 and isinstance(row.get(x), (int, float)):
            points.setdefault(name_of(row), {})[row[x]] = row[y] * scale
    return [Series(name, sorted(by_x), [by_x[x] for x in sorted(by_x)]) for name, by_x in points.items()]


def best_of(name, group):
    """Returns the lower envelope of several series as one series."""
    lowest: dict = {}
    for one in group:
        for x, y in zip(one.x, one.y):
            lowest[x] = min(y, lowest.get(x, math.inf))
    return Series(name, sorted(lowest), [lowest[x] for x in sorted(lowest)])


def crossing(x0, x1, old, new):
    """Returns where the line of `new` crosses that of `old` between x0 and x1, on logarithmic axes; x1 if a value is missing."""
    if None in (old[0], new[0], old[1], new[1]) or x0 <= 0:
        return x1
    gap0, gap1 = math.log(new[0] / old[0]), math.log(new[1] / old[1])
    if gap0 == gap1 or gap0 * gap1 > 0:
        return x1
    part = gap0 / (gap0 - gap1)
    return math.exp(math.log(x0) + part * (math.log(x1) - math.log(x0)))


def crossovers(series, low_is_good=True):
    """Returns [(x, old name, new name)]: where the best series changes, with hysteresis (CLEARLY_AHEAD)."""
    values = [dict(zip(s.x, s.y)) for s in series]
    xs = sorted({x for s in series for x in s.x})
    sign = 1 if low_is_good else -1
    best, previous, found = None, None, []
    for x in xs:
        present = {i: v[x] for i, v in enumerate(values) if x in v}
        first = min(present, key=lambda i: sign * present[i])
        if best is None or best not in present:
            new = first
        else:
            gain = present[best] / present[first] if low_is_good else present[first] / present[best]
            new = first if gain > 1 + CLEARLY_AHEAD else best
        if best is not None and new != best:
            change = crossing(previous, x, (values[best].get(previous), present.get(best)), (values[new].get(previous), present.get(new)))
            found.append((change, series[best].name, series[new].name))
        best, previous = new, x
    return found


def approximate_size(x):
    """Rounds to two digits: a crossover is not known more precisely."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if x >= factor * 0.95:
            return f"{words.rounded(x / factor, 2)} {unit}"
    return f"{words.rounded(x, 2)} B"


def marks_of(found):
    return [Mark(x, f"{new} from {approximate_size(x)}") for x, _, new in found]


def crossover_sentence(found):
    if not found:
        return ""
    return "; ".join(f"{new} overtakes {old} at about {approximate_size(x)}" for x, old, new in found)


def latency_chart(title, series, candidates=None, note="", **more):
    """`candidates`: the series whose crossovers are marked; all by default."""
    found = crossovers(candidates if candidates is not None else series)
    notes = [note] if note else []
    if found:
        notes.append(CROSSOVER_NOTE)
    return Chart(title, series, "size", "time (median)", marks=marks_of(found), note=" ".join(notes), **more), found


def histogram(title, named_samples, unit="us", note=""):
    """Outlines of the distributions of several series over one set of bins. `named_samples`: [(name, numbers)].

    Bins reach from the 0.5th to the 99.5th percentile of everything; what lies outside is counted in the caption.
    """
    every = sorted(v for _, values in named_samples for v in values)
    low, high = every[int(0.005 * (len(every) - 1))], every[math.ceil(0.995 * (len(every) - 1))]
    logarithmic = low > 0 and high / low > 5
    if high <= low:
        low, high = low * 0.95, high * 1.05 or 1
    edges = edges_between(low, high, logarithmic)
    series, outside = [], 0
    for name, values in named_samples:
        counts = [0] * BINS
        for value in values:
            place = bin_of(value, low, high, logarithmic)
            if 0 <= place < BINS:
                counts[place] += 1
            else:
                outside += 1
        xs, ys = outline(edges, [100 * c / len(values) for c in counts])
        series.append(Series(name, xs, ys))
    count = ", ".join(f"{name}: {len(values)}" for name, values in named_samples)
    text = f"Share of samples in each of {BINS} bins. Samples: {count}."
    if outside:
        text += f" Outside the picture: {outside} (the lowest and highest 0.5 %)."
    return Chart(title, series, "time" if unit == "us" else "rate", "share of samples", x_unit=unit, y_unit="%", x_log=logarithmic,
                 y_log=False, steps=True, note=" ".join(filter(None, (text, note))), table=False)


def edges_between(low, high, logarithmic):
    if logarithmic:
        return [low * (high / low) ** (i / BINS) for i in range(BINS + 1)]
    return [low + (high - low) * i / BINS for i in range(BINS + 1)]


def bin_of(value, low, high, logarithmic):
    if value == high:
        return BINS - 1
    if value < low or value > high:
        return -1
    if logarithmic:
        return min(BINS - 1, int(BINS * math.log(value / low) / math.log(high / low)))
    return min(BINS - 1, int(BINS * (value - low) / (high - low)))


def outline(edges, heights):
    xs, ys = [edges[0]], [0]
    for left, right, height in zip(edges, edges[1:], heights):
        xs += [left, right]
        ys += [height, height]
    return xs + [edges[-1]], ys + [0]


def quantile_table_rows(rows, name_of):
    """Returns the columns that every latency has: name, min, p50, p90, p99, max (us), number of samples."""
    for row in rows:
        yield [name_of(row)] + [words.microseconds(row.get(f"latency_ns_{q}")) for q in ("min", "p50", "p90", "p99", "max")] + \
              [str(row.get("sample_count", "–"))]


QUANTILE_HEAD = ["min", "p50", "p90", "p99", "max", "samples"]
QUANTILE_ALIGN = ">>>>>>"
