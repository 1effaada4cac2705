#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Boots a Linux kernel of the distribution in QEMU with a few files and a script, and reads what it says.

    kernel = installed_kernels()[0]
    files = {"/bin/test": "build/test", **library_closure(["build/test"])}
    run = boot(kernel, files, "insmod /x.ko && /bin/test", cache=Path("build/kernel"), log=Path("build/guest.log"))
    result = judge(run)

The guest runs from an initramfs: busybox, the files, /init. The script's programs print one line a test, "ok NAME", "not ok NAME:
why" or "skip NAME: why", or GoogleTest's own lines (--gtest_color=no); a script line that fails by itself is reported as one more test. The guest
has finished only if it says GUEST-DONE: a reset also ends QEMU with exit code 0. Whatever the kernel complains about on the
console fails the run.

Emulation only (tcg): a KVM device that exists and does not work would hang the guest. Needs qemu-system-x86, a kernel image
with its headers, busybox-static, and zstd for kernels that are packed with it.
"""

import glob
import lzma
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

BUSYBOX = "/bin/busybox"
QEMU = "qemu-system-x86_64"

# A crash ends the guest at once, and so does a task that waits for ever for a lock. no_timer_check: on a busy host the emulated
# timer may not tick in the few milliseconds in which the kernel tests it. The guest's clock runs on while the host gives it no CPU,
# so the kernel's own 21 s (RCU) and 20 s (soft lockup) are reached by a healthy guest that got a tenth of one; what spins for ever
# is still seen, later. The kernel's self-tests of its ciphers and its table of probe events are a sixth of an emulated start, and
# nothing here uses either. tsc=reliable: every look at the clock is otherwise a system call that reads an emulated HPET;
# QEMU's CPUs have one TSC.
KERNEL_COMMAND_LINE = ("console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off iomem=relaxed no_timer_check hung_task_panic=1"
                       " sysctl.kernel.hung_task_timeout_secs=20 rcupdate.rcu_cpu_stall_timeout=120 watchdog_thresh=60"
                       " cryptomgr.notests initcall_blacklist=init_kprobe_trace tsc=reliable")

# Without erms and fsrm: the kernel and the C library then clear and copy by words, and not by string instructions, which QEMU carries
# out a byte at a time: clearing pages was a third of what a guest cost.
CPU = "max,la57=off,-erms,-fsrm"

# What a kernel prints when something is wrong with it.
COMPLAINT = re.compile(
    r"BUG:|BUG |kernel BUG|WARNING:|Oops|KASAN|UBSAN|general protection fault|possible circular|possible recursive|inconsistent lock"
    r"|suspicious RCU|sleeping function called|scheduling while atomic|unreferenced object|refcount_t:|Kernel panic"
    r"|blocked for more than|detected stall|soft lockup|held lock freed|lock held when returning|Redzone|Poison overwritten"
    r"|x86/PAT: .* (?:conflicting|freeing invalid)|Bad page")


@dataclass(frozen=True)
class Kernel:
    """A bootable kernel and the tree against which modules for it are built."""

    release: str
    image: Path
    headers: Path
    packed: bool = True  # a bzImage from which an ELF file can be taken, which starts without the slow unpacking


@dataclass
class Run:
    console: str
    exit_code: int
    seconds: float
    timed_out: bool


@dataclass
class Result:
    passed: list = field(default_factory=list)
    failed: list = field(default_factory=list)  # "NAME: why"
    skipped: list = field(default_factory=list)
    complaints: list = field(default_factory=list)
    is_done: bool = False

    @property
    def is_good(self):
        return self.is_done and not self.failed and not self.complaints and bool(self.passed)

    def text(self):
        words = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped, {len(self.complaints)} complaints"
        return words if self.is_done else words + ", the guest did not finish"


# ---- What is there -----------------------------------------------------------------------------------------------------


def missing_tools():
    """Debian packages without which no guest can be started; empty if all is there."""
    missing = []
    if shutil.which(QEMU) is None:
        missing.append("qemu-system-x86")
    if not os.access(BUSYBOX, os.X_OK):
        missing.append("busybox-static")
    return missing


def installed_kernels():
    """Kernels of this machine's /boot that have their headers, oldest first. The machine's own running kernel plays no part."""
    found = []
    for image in glob.glob("/boot/vmlinuz-*"):
        release = image.removeprefix("/boot/vmlinuz-")
        headers = Path("/usr/src/linux-headers-" + release)
        if (headers / "Module.symvers").exists():
            found.append(Kernel(release, Path(image), headers))
    return sorted(found, key=lambda kernel: [int(number) for number in re.findall(r"\d+", kernel.release)])


def debug_kernel(folder):
    """What debug_kernel.sh has built below `folder`. Its image is started as it is: as an ELF file it resets at once."""
    tree = (Path(folder) / "current").resolve()
    if not (tree / "complete").exists():
        return None
    release = (tree / "include" / "config" / "kernel.release").read_text().strip()
    return Kernel(release + "-debug", tree / "arch" / "x86" / "boot" / "bzImage", tree, packed=False)


# ---- Kernel image ------------------------------------------------------------------------------------------------------


def unpack_xz(data):
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(data)  # stops where the stream ends; more bytes follow it


def unpack_zstd(data):
    return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=False).stdout


PACKINGS = ((b"\xfd7zXZ\x00", unpack_xz), (b"\x28\xb5\x2f\xfd", unpack_zstd))


def unpacked_image(kernel, cache):
    """The kernel as an ELF file (QEMU starts it directly, 3 s sooner), or the image itself where none can be taken out."""
    if not kernel.packed:
        return kernel.image
    out = cache / f"vmlinux-{kernel.release}"
    if out.exists() and out.stat().st_mtime >= kernel.image.stat().st_mtime:
        return out
    data = kernel.image.read_bytes()
    for magic, unpack in PACKINGS:
        at = data.find(magic)
        while at >= 0:
            try:
                elf = unpack(data[at:])
            except (lzma.LZMAError, FileNotFoundError):
                elf = b""
            if elf.startswith(b"\x7fELF"):
                cache.mkdir(parents=True, exist_ok=True)
                partial = out.with_suffix(".partial" + str(os.getpid()))
                partial.write_bytes(elf)
                partial.rename(out)
                return out
            at = data.find(magic, at + 1)
    return kernel.image


# ---- Files -------------------------------------------------------------------------------------------------------------


def library_closure(programs):
    """{path: path} of the shared libraries that programs and libraries need, their loader included."""
    found = {}
    for program in programs:
        said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for path in re.findall(r"(?:=> )?(/\S+) \(0x", said):
            found[path] = path
    return found


# Larger programs travel without what only a debugger reads: that is most of them, and the guest unpacks its files slowly.
LARGE_BYTES = 4 << 20


def without_debug_information(path):
    whole = path.read_bytes()
    if len(whole) < LARGE_BYTES or not whole.startswith(b"\x7fELF"):
        return whole
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run(["strip", "--strip-debug", "-o", out.name, str(path)], capture_output=True, check=False)
        return Path(out.name).read_bytes() if done.returncode == 0 else whole


class Initramfs:
    """An archive in the kernel's format ("newc"), written without tools."""

    def __init__(self):
        self.parts = []
        self.folders = set()
        self.inode = 0

    def add(self, path, data, mode):
        name = path.strip("/")
        parent = os.path.dirname(name)
        if parent and parent not in self.folders:
            self.add(parent, b"", stat.S_IFDIR | 0o755)
        if stat.S_ISDIR(mode):
            if name in self.folders:
                return
            self.folders.add(name)
        self.write(name, data, mode)

    def write(self, name, data, mode):
        self.inode += 1
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % value for value in fields) + name.encode() + b"\0"
        self.parts += [head, b"\0" * (-len(head) % 4), data, b"\0" * (-len(data) % 4)]

    def add_file(self, path, source):
        source = Path(source)
        self.add(path, without_debug_information(source), stat.S_IFREG | (0o755 if os.access(source, os.X_OK) else 0o644))

    def finish(self):
        self.write("TRAILER!!!", b"", 0)
        return b"".join(self.parts)


INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
mkdir -p /dev/shm /tmp /dev/pts; mount -t tmpfs none /dev/shm; mount -t tmpfs none /tmp
ifconfig lo 127.0.0.1 2>/dev/null
ulimit -l unlimited
echo GUEST-START
# step NAME COMMAND...: a command whose exit code is the test.
step() { name=$1; shift; if "$@"; then echo "ok $name"; else echo "not ok $name: exit code $?"; fi; }
. /script
echo GUEST-DONE
poweroff -f
"""


def build_initramfs(files, script):
    archive = Initramfs()
    for folder in ("bin", "dev", "proc", "sys", "tmp", "root"):
        archive.add(folder, b"", stat.S_IFDIR | 0o755)
    archive.add_file("/bin/busybox", BUSYBOX)
    archive.add("/init", INIT.encode(), stat.S_IFREG | 0o755)
    archive.add("/script", script.encode() + b"\n", stat.S_IFREG | 0o644)
    for path, source in files.items():
        archive.add_file(path, source)
    return archive.finish()


# ---- Running -----------------------------------------------------------------------------------------------------------


def boot(kernel, files, script, cache, log, *, append="", devices=(), cpus=2, memory_mib=512, bar_mib=64, timeout_s=120,
         descriptors=()):
    """Runs `script` (sourced by a busybox shell) in a fresh guest that has `files` ({path in the guest: path here}) and, if
    bar_mib is not 0, an ivshmem device with a BAR of that size (a power of two). The console is kept in `log`. `devices`: more
    arguments of QEMU, which inherits `descriptors`. Never raises for what the guest does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    initramfs = log.with_suffix(".cpio")
    initramfs.write_bytes(build_initramfs(files, script))
    bar = log.with_suffix(".bar")
    command = [QEMU, "-accel", "tcg,thread=multi", "-M", "q35", "-cpu", CPU, "-smp", str(cpus), "-m", str(memory_mib), "-nographic", "-nodefaults",
               "-no-reboot", "-serial", "stdio", "-kernel", str(unpacked_image(kernel, cache)), "-initrd", str(initramfs),
               "-append", f"{KERNEL_COMMAND_LINE} {append}".strip(), *devices]
    if bar_mib:
        command += ["-object", f"memory-backend-file,id=bar,share=on,mem-path={bar},size={bar_mib}M",
                    "-device", "ivshmem-plain,memdev=bar"]
    start = time.monotonic()
    timed_out = False
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, pass_fds=descriptors)
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
            timed_out = True
    for scrap in (initramfs, bar):
        scrap.unlink(missing_ok=True)
    console = log.read_text(errors="replace").replace("\r", "")
    return Run(console, code, time.monotonic() - start, timed_out)


def judge(run, allowed=None):
    """Reads the console. `allowed`: a pattern of complaints that are expected."""
    result = Result()
    for line in run.console.split("\n"):
        if match := re.match(r"ok (\S+)", line):
            result.passed.append(match.group(1))
        elif match := re.match(r"not ok (.+)", line):
            result.failed.append(match.group(1))
        elif match := re.match(r"skip (.+)", line):
            result.skipped.append(match.group(1))
        elif match := re.match(r"\[       OK \] (\S+)", line):
            result.passed.append(match.group(1))
        elif (match := re.match(r"\[  FAILED  \] (\S+)", line)) and "(" in line:
            result.failed.append(match.group(1) + ": see the log")
        elif match := re.match(r"\[  SKIPPED \] (\S+) \(", line):
            result.skipped.append(match.group(1))
        if COMPLAINT.search(line) and not (allowed and re.search(allowed, line)):
            result.complaints.append(line.strip())
    result.is_done = "GUEST-DONE" in run.console and not run.timed_out
    if run.timed_out:
        result.failed.append("guest: time limit")
    return result
