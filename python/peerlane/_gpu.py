# SPDX-License-Identifier: Apache-2.0
"""With PEERLANE_GPU=sim, loads the simulated GPU as this process's libcuda.so.1. Import it before the compiled module."""

import os

from . import _native

__all__: list[str] = []

if os.environ.get("PEERLANE_GPU") == "sim":
    _native.load_simulated_gpu()
