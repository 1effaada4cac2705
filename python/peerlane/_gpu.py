# SPDX-License-Identifier: Apache-2.0
"""Imported before the compiled module: PEERLANE_GPU=sim makes the simulated GPU this process's libcuda.so.1."""

import os

from . import _native

__all__: list[str] = []

if os.environ.get("PEERLANE_GPU") == "sim":
    _native.load_simulated_gpu()
