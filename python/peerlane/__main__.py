# SPDX-License-Identifier: Apache-2.0
"""`python -m peerlane ...` is `peerlane ...`, also where the folder of commands is not in PATH."""

from ._command import main

main("peerlane")
