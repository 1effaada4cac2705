#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is shipped runs from glibc 2.34 on, if it was built on Debian 12 (src/base/older_glibc.cpp).

    lowest_glibc_test.py OUT-FOLDER      exit 1 if a program or library asks for a newer one, 77 if it was built on a newer system
"""

import os
import re
import subprocess
import sys
from pathlib import Path

LOWEST = (2, 34)
BUILDER = (2, 36)  # Debian 12's: headers of newer ones name newer functions (strtol becomes __isoc23_strtol)


def version_of(text):
    return tuple(int(part) for part in text.split("."))


def asked(path):
    """The highest version of the C library that one ELF file asks for, and the names that it has."""
    symbols = subprocess.run(["objdump", "-T", str(path)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"GLIBC_([0-9.]+)\)? +(\S+)", symbols)
    top = max((version_of(version) for version, _ in found), default=(0,))
    return top, sorted(name for version, name in found if version_of(version) == top)


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def main():
    here = version_of(os.confstr("CS_GNU_LIBC_VERSION").split()[1])
    if here > BUILDER:
        print(f"SKIPPED: this system has glibc {'.'.join(map(str, here))}; release builds are made on Debian 12, which has 2.36")
        return 77
    files = [path for path in sorted(Path(sys.argv[1]).rglob("*")) if path.is_file() and not path.is_symlink() and is_elf(path)]
    bad = 0
    for path in files:
        version, names = asked(path)
        if version > LOWEST:
            bad += 1
            print(f"{path.name} asks for glibc {'.'.join(map(str, version))}: {', '.join(names)}")
    print(f"{len(files)} programs and libraries looked at, {bad} ask for more than glibc {'.'.join(map(str, LOWEST))}")
    return 1 if bad or len(files) < 5 else 0


sys.exit(main())
