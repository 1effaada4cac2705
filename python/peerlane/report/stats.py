# SPDX-License-Identifier: Apache-2.0
"""The Mann-Whitney U test and Holm's correction, with the standard library alone."""

import math
from functools import lru_cache

EXACT_UP_TO = 12  # samples on each side; above, or with equal values, the normal approximation with tie correction


@lru_cache(maxsize=None)
def arrangements(m, n, u):
    """Returns the number of orders of m and n distinct values in which the statistic U is u."""
    if u < 0 or u > m * n:
        return 0
    if m == 0 or n == 0:
        return 1 if u == 0 else 0
    return arrangements(m - 1, n, u - n) + arrangements(m, n - 1, u)


def ranks(values):
    """Returns the midranks of `values`, and the sum of t^3 - t over groups of t equal values."""
    order = sorted(range(len(values)), key=values.__getitem__)
    out, ties, start = [0.0] * len(values), 0, 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for i in range(start, end + 1):
            out[order[i]] = (start + end) / 2 + 1
        equal = end - start + 1
        ties += equal ** 3 - equal
        start = end + 1
    return out, ties


def mann_whitney(first, second):
    """Returns (p, share): the two-sided p value for equal distributions, and the probability that a sample of `second` exceeds one of `first`."""
    m, n = len(first), len(second)
    if m == 0 or n == 0:
        return 1.0, 0.5
    rank, ties = ranks(list(first) + list(second))
    u = sum(rank[m:]) - n * (n + 1) / 2
    share = u / (m * n)
    if ties == 0 and max(m, n) <= EXACT_UP_TO:
        low = int(min(u, m * n - u))
        total = math.comb(m + n, m)
        return min(1.0, 2 * sum(arrangements(m, n, k) for k in range(low + 1)) / total), share
    every = m + n
    variance = m * n / 12 * (every + 1 - ties / (every * (every - 1)))
    if variance <= 0:
        return 1.0, share
    z = max(0.0, abs(u - m * n / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2)), share


def holm(p_values):
    """Returns the p values with Holm's correction for multiple tests, in the same order."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    out, highest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - place)))
        out[i] = highest
    return out
