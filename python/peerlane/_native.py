# SPDX-License-Identifier: Apache-2.0
"""The location of the native libraries and the program."""

import ctypes
from pathlib import Path

__all__ = ["FOLDER", "load_simulated_gpu", "program"]

_HERE = Path(__file__).resolve().parent
# A wheel contains them. In the output of a build, they are two folders above this package (out/python/peerlane).
FOLDER = _HERE / "native" if (_HERE / "native").is_dir() else _HERE.parent.parent


def program() -> Path:
    """Returns the path of the peerlane program. FileNotFoundError: the package was built without it."""
    path = FOLDER / "peerlane"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: the package was built without CLI11, nlohmann-json or hwloc; install "
            "libcli11-dev, nlohmann-json3-dev and libhwloc-dev (Debian's names) and build it again")
    return path


def load_simulated_gpu() -> None:
    """Makes the simulated GPU this process's libcuda.so.1. It has no effect if another libcuda.so.1 is already loaded.
    FileNotFoundError: the package was built without the simulated GPU."""
    path = FOLDER / "sim" / "libcuda.so.1"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: the package was built without the simulated GPU (PEERLANE_SIM=ON)")
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)

