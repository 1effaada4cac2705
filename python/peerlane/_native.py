# SPDX-License-Identifier: Apache-2.0
"""Where the libraries and the program lie."""

import ctypes
from pathlib import Path

__all__ = ["FOLDER", "load_simulated_gpu", "program"]

_HERE = Path(__file__).resolve().parent
# In a wheel the package holds them; beside a build's output they lie two folders above (out/python/peerlane).
FOLDER = _HERE / "native" if (_HERE / "native").is_dir() else _HERE.parent.parent


def program() -> Path:
    """The peerlane program; FileNotFoundError where the package was built without it."""
    path = FOLDER / "peerlane"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: the package was built without CLI11, nlohmann-json or hwloc; install "
            "libcli11-dev, nlohmann-json3-dev and libhwloc-dev (Debian's names) and build it again")
    return path


def load_simulated_gpu() -> None:
    """Makes the simulated GPU this process's libcuda.so.1. Has no effect where another one is loaded already."""
    path = FOLDER / "sim" / "libcuda.so.1"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: the package was built without the simulated GPU (PEERLANE_SIM=ON)")
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)

