# SPDX-License-Identifier: Apache-2.0
"""Every test runs on the simulated GPU."""

import gc
import os

os.environ["PEERLANE_GPU"] = "sim"

import numpy as np
import pytest
from peerlane import testing


@pytest.fixture(scope="session", autouse=True)
def simulated_gpu():
    assert testing.is_simulated()


@pytest.fixture(autouse=True)
def no_garbage():
    """Of earlier tests: freeing GPU memory waits for the device, which some tests hold up."""
    gc.collect()


def pytest_terminal_summary(terminalreporter):
    """What was left out is said aloud, in the words that scripts/test_summary.py looks for."""
    for reason in sorted({report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])}):
        print(f"NOT CHECKED: python: {reason}")


@pytest.fixture
def numbers():
    """Host values, 6 by 8, every element different."""
    return np.arange(48, dtype=np.float32).reshape(6, 8)


class OnlyDlpack:
    """A GPU array of which one sees DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.fixture
def only_dlpack():
    return OnlyDlpack
