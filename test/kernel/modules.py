#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the driver and the mock of the NVIDIA driver for a kernel, each variant once for each state of its sources.

    modules.py FOLDER [KERNEL-RELEASE...]    the driver and the mock for these kernels (default: all installed ones)
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import guest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DRIVER = ROOT / "driver" / "gdrdrv"
MOCK = HERE / "mock"
HEADERS = [ROOT / "uapi" / "gdrdrv_ioctl.h", ROOT / "sim" / "board_file.h", DRIVER / "nvidia_p2p.h"]


class BuildError(Exception):
    pass


@dataclass(frozen=True)
class Variant:
    """A way to build one of the modules. `symbols_of`: the variant whose symbol versions it is linked against."""

    name: str
    source: Path
    flags: str = ""
    symbols_of: "Variant" = None


MOCK_OPEN = Variant("mock", MOCK, "-DMOCK_EXPORT_GPL")
# As the closed driver is: a proprietary module that exports to everybody ...
MOCK_CLOSED = Variant("mock_closed", MOCK, "-DMOCK_PROPRIETARY")
# ... and what no module of another licence can use: proprietary, and exports to GPL modules only.
MOCK_CLOSED_GPL = Variant("mock_closed_gpl", MOCK, "-DMOCK_PROPRIETARY -DMOCK_EXPORT_GPL")
# As drivers 535 to 575: another page table.
MOCK_535 = Variant("mock_535", MOCK, "-DMOCK_EXPORT_GPL -DGDRDRV_NVIDIA_BRANCH=535")
# Symbol versions alone, as on a machine without the NVIDIA driver's own list.
STUB = Variant("stub", DRIVER / "stub")
STUB_535 = Variant("stub_535", DRIVER / "stub", "-DGDRDRV_NVIDIA_BRANCH=535")
GDRDRV = Variant("gdrdrv", DRIVER, symbols_of=STUB)
GDRDRV_535 = Variant("gdrdrv_535", DRIVER, "-DGDRDRV_NVIDIA_BRANCH=535", symbols_of=STUB_535)


def sources_of(variant):
    return sorted(path for path in variant.source.iterdir() if path.suffix in (".c", ".h") or path.name == "Kbuild")


def copy_sources(variant, folder):
    for path in sources_of(variant):
        shutil.copy2(path, folder / path.name)


def key_of(kernel, variant, extra):
    digest = hashlib.sha256(repr((kernel.release, variant, extra, os.stat(kernel.headers / "Module.symvers").st_mtime)).encode())
    for path in [*sources_of(variant), *HEADERS]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def make(kernel, folder, arguments):
    compiler = ["CC=ccache gcc"] if shutil.which("ccache") else []
    command = ["make", "-s", "-C", str(kernel.headers), f"M={folder}", "KCFLAGS=-g0 -Werror",
               "CONFIG_DEBUG_INFO_BTF_MODULES=", *compiler, *arguments, "modules"]
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stderr


def build(kernel, variant, cache):
    """The module's path. Safe against the same call in another process."""
    folder = cache / kernel.release / variant.name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / (variant.name + ".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        arguments = [f"GDRDRV_UAPI={ROOT / 'uapi'}", f"GDRDRV_SOURCE={DRIVER}", f"GDRDRV_CPPFLAGS={variant.flags}",
                     f"MOCK_INCLUDE=-I{ROOT / 'sim'} -I{DRIVER}", f"MOCK_CPPFLAGS={variant.flags}"]
        extra = ""
        if variant.symbols_of:
            build(kernel, variant.symbols_of, cache)
            symbols = cache / kernel.release / variant.symbols_of.name / "Module.symvers"
            arguments.append(f"KBUILD_EXTRA_SYMBOLS={symbols}")
            extra = symbols.read_text()
        module = folder / re.search(r"^obj-m := (\w+)\.o", (variant.source / "Kbuild").read_text(), re.M).group(1)
        module = module.with_suffix(".ko")
        key, stamp = key_of(kernel, variant, extra), folder / "key"
        if module.exists() and stamp.exists() and stamp.read_text() == key:
            return module
        stamp.unlink(missing_ok=True)
        copy_sources(variant, folder)
        make(kernel, folder, arguments)
        stamp.write_text(key)
    return module


def build_by_makefile(folder, arguments):
    """The driver by its own Makefile, as users build it, in a copy; the module's path."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DRIVER, folder)
    command = ["make", "-s", "-C", str(folder), f"UAPI={ROOT / 'uapi'}", "KCFLAGS=-g0 -Werror", "NVIDIA_SRC=", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return folder / "gdrdrv.ko"


def main(arguments):
    cache = Path(arguments[0]).resolve()
    for kernel in guest.installed_kernels():
        if arguments[1:] and kernel.release not in arguments[1:]:
            continue
        for variant in (MOCK_OPEN, GDRDRV):
            print(build(kernel, variant, cache))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
