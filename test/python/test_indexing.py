# SPDX-License-Identifier: Apache-2.0
"""A mapping's elements are read and written as NumPy's: random shapes, types, indices and values, against an ordinary array."""

import math
import random

import numpy as np
import peerlane
import pytest
from peerlane import testing

TYPES = ["float32", "uint8", "int64", "float16", "bool", "complex64", "int16"]


class Draw(random.Random):
    def bound(self, length):
        return self.choice([None, self.randint(-length - 1, length + 1)])

    def part(self, length):
        """What names elements of one dimension."""
        kind = self.randrange(8)
        if kind < 3 and length:
            return self.randint(-length, length - 1)
        if kind == 3:
            return [self.randint(-length, length - 1) for _ in range(self.randint(0, 3))] if length else slice(None)
        if kind == 4:
            return np.array([self.random() < 0.5 for _ in range(length)], bool)
        return None if kind == 5 else slice(self.bound(length), self.bound(length), self.choice([None, 1, 2, 3, -1, -2]))

    def index(self, shape):
        parts = [self.part(length) for length in shape[:self.randint(0, len(shape))]]
        extra = {0: Ellipsis, 1: True, 2: False}.get(self.randrange(20))
        if extra is not None:
            parts.insert(self.randint(0, len(parts)), extra)
        return parts[0] if len(parts) == 1 and self.random() < 0.7 else tuple(parts)

    def value(self, shape, dtype):
        """One that NumPy takes for elements of that shape and type, or now and then does not."""
        if self.random() < 0.5:
            return self.choice([0, 1, True, np.int64(3)])
        shape = {0: (*shape, 2), 1: tuple(self.choice([1, length]) for length in shape)}.get(self.randrange(6), shape)
        values = np.arange(math.prod(shape)).reshape(shape) % 5
        return values.astype(self.choice(["uint8", dtype])) if dtype in ("bool", "uint8", "int16", "int64") else values.astype(dtype) * self.choice(
            [1, 1j if dtype == "complex64" else 1])


def outcome(call):
    """(what it returned, the error that it raised)"""
    try:
        return call(), None
    except (IndexError, ValueError, TypeError) as error:
        return None, error


@pytest.mark.filterwarnings("ignore")
def test_as_an_ordinary_array():
    for seed in range(400):
        draw = Draw(seed)
        shape, dtype = tuple(draw.randint(0, 5) for _ in range(draw.randint(0, 4))), draw.choice(TYPES)
        ordinary = (np.arange(math.prod(shape)) % 7).reshape(shape).astype(dtype)
        x = testing.array(ordinary)
        with peerlane.map(x) as m:
            for _ in range(6):
                index = draw.index(shape)
                facts = f"seed {seed}: {dtype}{shape}[{index}]"
                wanted, refusal = outcome(lambda: ordinary[index])  # noqa: B023
                given, error = outcome(lambda: m[index])  # noqa: B023
                assert (refusal is None) == (error is None), f"{facts}: {error}"
                assert np.shape(wanted) == np.shape(given) and np.array_equal(wanted, given), facts
                value = draw.value(np.shape(wanted), dtype)
                _, refusal = outcome(lambda: ordinary.__setitem__(index, value))  # noqa: B023
                _, error = outcome(lambda: m.__setitem__(index, value))  # noqa: B023
                assert (refusal is None) == (error is None), f"{facts} = {value!r}: {error}"
                assert np.array_equal(x.get(), ordinary), f"{facts} = {value!r}"


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("value", [1 + 2j, np.complex64(1 + 2j), np.complex128(1 + 2j), np.array(1 + 2j, np.complex64)], ids=repr)
def test_a_complex_number_keeps_both_parts(dtype, value):
    x = testing.zeros(2, dtype)
    with peerlane.map(x) as m:
        m[1] = value
    assert x.get().tolist() == [0, 1 + 2j]
    peerlane.fill(x, value)
    assert x.get().tolist() == [1 + 2j] * 2


def test_text_is_no_complex_number():
    with peerlane.map(testing.zeros(2, "complex64")) as m, pytest.raises(TypeError):
        m[0] = "1+2j"
