#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the kernel driver in guests.

    gate.py ... suite WHICH       the whole suite; WHICH: oldest, newest, or a kernel's release
    gate.py ... mutations         the suite must fail when known mistakes are put into the driver
    gate.py ... flavours          open and closed NVIDIA drivers, of several branches: what loads, what is refused, and how
    gate.py ... yama              messages of an ordinary user's processes with Yama's ptrace_scope at 1
    gate.py ... verbs one|two     messages over soft-RoCE in one guest, or between two
    gate.py ... figures FOLDER    messages over soft-RoCE in one guest, ours beside UCX alone: JSON and text files there
    gate.py ... verbs store       the store's UCX transport over soft-RoCE in one guest
    gate.py ... sparse            the driver's sources for the oldest and newest kernel under sparse; a seeded mistake is seen
    gate.py ... arm64 FOLDER      the driver compiled for arm64, with the headers that arm64_headers.sh has fetched there
    gate.py ... debug FOLDER      suite and mutations on the kernel that debug_kernel.sh has built there

Exit code 0: passed, 1: failed, 77: skipped, with the reason.
"""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

import guest
import modules
import mutations
import verbs

SKIP = 77


def say(text):
    print(text, flush=True)


def skip(reason):
    say(f"SKIPPED: {reason}")
    sys.exit(SKIP)


def is_ubuntu():
    release = Path("/etc/os-release")
    return release.exists() and re.search(r"^ID=\W?ubuntu\b", release.read_text(), re.MULTILINE) is not None


def kernel_advice():
    """How a kernel and its headers come to /boot here; no guest needs its initial ramdisk."""
    names = "linux-image-generic linux-headers-generic" if is_ubuntu() else "linux-image-amd64 linux-headers-amd64"
    return f"apt-get install {names}, with INITRD=No"


def kernels_or_skip():
    missing = guest.missing_tools()
    if missing:
        skip(f"no guest can be started: missing {' '.join(missing)} (apt-get install --no-install-recommends {' '.join(missing)})")
    found = guest.installed_kernels()
    if not found:
        skip(f"no kernel image with its headers in /boot ({kernel_advice()})")
    return found


def choose(which):
    found = kernels_or_skip()
    if which == "oldest":
        return found[0]
    if which == "newest":
        if len(found) < 2:
            second = "linux-image-generic-hwe-24.04" if is_ubuntu() else "linux-headers-6.12-amd64"
            skip(f"only one kernel is installed ({found[0].release}): for a second one, apt-get install {second}")
        return found[-1]
    named = [kernel for kernel in found if kernel.release == which]
    return named[0] if named else skip(f"kernel {which} is not installed")


def report(name, run, result, log):
    say(f"{name}: {result.text()}; {run.seconds:.0f} s; console: {log}")
    for line in result.failed:
        say(f"  failed: {line}")
    for line in result.complaints:
        say(f"  console: {line}")
    for line in result.skipped:
        say(f"  skipped: {line}")
    if not result.is_good:
        say("---- end of the console")
        say("\n".join(run.console.split("\n")[-80:]))
    return result.is_good


# ---- The suite ---------------------------------------------------------------------------------------------------------

# No U (who allocated and freed): it finds nothing more, and its stack traces are a tenth of the suite's CPU time. For the report of
# a mistake that was found, put it in.
SLUB = "slub_debug=FZP"
# Makes slub look at every object, freed ones too: what was written to one after its end is a complaint.
CHECK_SLABS = "for slab in /sys/kernel/slab/*/validate; do echo 1 >$slab; done 2>/dev/null\n"

SUITE = """
step load_mock insmod /mock_gpu.ko
step load insmod /gdrdrv.ko dbg_enabled=1
driver_test
PEERLANE_SIM_BOARD_FILE=/dev/mock_gpu CONFORMANCE_ON_MODULE=1 conformance_test --gtest_color=no --gtest_filter='*/module-*ManyCycles*'
step conformance [ $? = 0 ]
step unload rmmod gdrdrv
step load_revocable insmod /gdrdrv.ko dbg_enabled=1 use_persistent_mapping=0
driver_test --prefix revocable.
step unload_all rmmod gdrdrv mock_gpu
""" + CHECK_SLABS


def boot_suite(options, kernel, script, **arguments):
    cache = options.build / "kernel"
    files = {"/mock_gpu.ko": modules.build(kernel, modules.MOCK_OPEN, cache), "/gdrdrv.ko": modules.build(kernel, modules.GDRDRV, cache),
             "/bin/driver_test": options.programs / "driver_test", "/bin/conformance_test": options.conformance,
             str(options.simulator): options.simulator, **guest.library_closure([options.conformance, options.simulator])}
    log = cache / f"suite-{kernel.release}.log"
    run = guest.boot(kernel, files, script, cache, log, **arguments)
    return report(f"suite on {kernel.release}", run, guest.judge(run), log)


def run_suite(options):
    return boot_suite(options, choose(options.which), SUITE, append=SLUB, bar_mib=128, timeout_s=500)


# ---- Mutations ---------------------------------------------------------------------------------------------------------


# A lock in memory that was freed spins for ever: the guest ends when RCU notices, long before its own time limit. Only once it
# runs: a busy host may hold up the start for as long.
IMPATIENT = "echo 5 >/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout; echo 1 >/proc/sys/kernel/panic_on_rcu_stall\n"


def lines_for(mutant):
    """What the guest does with one mutant. Its verdicts carry the mutant's name."""
    mode = " use_persistent_mapping=0" if mutant.revocable else ""
    return (f"step {mutant.name}.load insmod /mutant_{mutant.name}.ko dbg_enabled=1{mode}\n"
            f"{IMPATIENT if mutant.crashes else ''}driver_test --prefix {mutant.name}. {' '.join(mutant.tests)}\n"
            f"rmmod mutant_{mutant.name}\n")


def verdict_of(mutant, run, result):
    """None if the suite judged the mutant as it should, else what is wrong."""
    if f"{mutant.name}.load" not in result.passed:
        return "was not loaded"
    failed = {line.split(":")[0] for line in result.failed}
    if mutant.passes:
        missing = [test for test in mutant.tests if f"{mutant.name}.{test}" not in result.passed]
        return f"{', '.join(missing)} did not pass" if missing else None
    if mutant.lockdep:
        return None if any("possible circular" in line for line in result.complaints) else "lockdep did not complain"
    if any(f"{mutant.name}.{test}" in failed for test in mutant.tests):
        return None
    if mutant.crashes and (result.complaints or not result.is_done):
        return None
    return "was not caught"


def boot_mutants(options, kernel, wanted, mutants, name, **arguments):
    cache = options.build / "kernel"
    files = {"/mock_gpu.ko": modules.build(kernel, modules.MOCK_OPEN, cache), "/bin/driver_test": options.programs / "driver_test",
             **{f"/mutant_{mutant.name}.ko": mutants[mutant.name] for mutant in wanted}}
    script = "step load_mock insmod /mock_gpu.ko\n" + "".join(lines_for(mutant) for mutant in wanted) + CHECK_SLABS
    log = cache / f"mutations-{kernel.release}-{name}.log"
    run = guest.boot(kernel, files, script, cache, log, **arguments)
    return run, guest.judge(run), log


def judge_mutants(options, kernel, wanted, **arguments):
    modules.build(kernel, modules.STUB, options.build / "kernel")
    built = mutations.build(kernel, wanted, options.build / "kernel")
    together = tuple(mutant for mutant in wanted if not mutant.crashes and not mutant.lockdep)
    groups = ([("together", together)] if together else []) + [(mutant.name, (mutant,)) for mutant in wanted if mutant not in together]
    wrong = 0
    for name, group in groups:
        run, result, log = boot_mutants(options, kernel, group, built, name, **arguments)
        say(f"mutants {name} on {kernel.release}: {run.seconds:.0f} s; console: {log}")
        for mutant in group:
            verdict = verdict_of(mutant, run, result)
            wrong += verdict is not None
            good = "passes" if mutant.passes else "caught"
            say(f"  {good if verdict is None else 'WRONG'}: {mutant.name} ({mutant.why}){': ' + verdict if verdict else ''}")
        if any(mutant.passes for mutant in group) and not result.is_done:
            say("  WRONG: the guest did not finish")
            wrong += 1
    return wrong == 0


def run_mutations(options):
    kernel = choose("oldest")
    wanted = tuple(mutant for mutant in mutations.MUTANTS if not mutant.lockdep)
    return judge_mutants(options, kernel, wanted, append=SLUB, timeout_s=400)


# ---- Flavours ----------------------------------------------------------------------------------------------------------

# Each part loads its pair of modules, which have the names of all others, and unloads it. `refused`: a module that must not load.
FLAVOURS = """
refused() { if insmod "$@" 2>/dev/null; then rmmod gdrdrv; return 1; fi; return 0; }
works() { driver_test --prefix $1. bytes_cross pages_are_write_combining proc_files lives_at_once; }
step closed.load_mock insmod /mock_closed.ko
step closed.load insmod /gdrdrv.ko dbg_enabled=1
step closed.says_so grep -q 'flavor: proprietary' /proc/driver/gdrdrv/params
works closed
step closed.unload rmmod gdrdrv mock_gpu
step closed_gpl.load_mock insmod /mock_closed_gpl.ko
step closed_gpl.refused refused /gdrdrv.ko
step closed_gpl.unload rmmod mock_gpu
step open.load_mock insmod /mock.ko
step open.load insmod /gdrdrv.ko dbg_enabled=1
step open.says_so grep -q 'flavor: opensource' /proc/driver/gdrdrv/params
works open
step open.unload rmmod gdrdrv
step other_branch.refused refused /gdrdrv_535.ko
step other_branch.unload rmmod mock_gpu
step branch_535.load_mock insmod /mock_535.ko
step branch_535.load insmod /gdrdrv_535.ko dbg_enabled=1
works branch_535
step branch_535.unload rmmod gdrdrv
step old_branch.refused refused /gdrdrv.ko
step old_branch.unload rmmod mock_gpu
"""
# The words with which the kernel refuses: doctor and the documentation quote them.
FLAVOUR_WORDS = ("using GPL-only symbols uses symbols", "disagrees about version of symbol nvidia_p2p_")


def run_flavours(options):
    kernel = choose("oldest")
    cache = options.build / "kernel"
    variants = (modules.MOCK_OPEN, modules.MOCK_CLOSED, modules.MOCK_CLOSED_GPL, modules.MOCK_535, modules.GDRDRV, modules.GDRDRV_535)
    files = {f"/{variant.name}.ko": modules.build(kernel, variant, cache) for variant in variants}
    files["/bin/driver_test"] = options.programs / "driver_test"
    log = cache / f"flavours-{kernel.release}.log"
    run = guest.boot(kernel, files, FLAVOURS, cache, log, append=SLUB, timeout_s=400)
    result = guest.judge(run)
    result.failed += [f"the console lacks: {words}" for words in FLAVOUR_WORDS if words not in run.console]
    return report(f"flavours on {kernel.release}", run, result, log)


# ---- Sparse ------------------------------------------------------------------------------------------------------------

# The user's pointer without its mark: sparse must tell, or it is not looking.
UNMARKED = ("file.c", "void __user *argument = (void __user *)raw;", "void *argument = (void *)raw;")


def sparse_says(kernel, cache, edit=None):
    """What sparse complains of in the driver's sources, built in a copy; `edit`: (file, old text, new text) to make there."""
    modules.build(kernel, modules.STUB, cache)
    folder = cache / kernel.release / "sparse"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    modules.copy_sources(modules.GDRDRV, folder)
    if edit:
        name, old, new = edit
        (folder / name).write_text((folder / name).read_text().replace(old, new))
    symbols = cache / kernel.release / "stub" / "Module.symvers"
    said = modules.make(kernel, folder, ["C=2", "CHECK=sparse", f"GDRDRV_UAPI={modules.ROOT / 'uapi'}", f"KBUILD_EXTRA_SYMBOLS={symbols}"])
    return [line for line in said.splitlines() if str(folder) in line]


def run_sparse(options):
    if shutil.which("sparse") is None:
        skip("missing sparse (apt-get install --no-install-recommends sparse)")
    found = guest.installed_kernels()
    if not found:
        skip(f"no kernel headers ({kernel_advice()})")
    cache = options.build / "kernel"
    good = True
    for kernel in dict.fromkeys((found[0], found[-1])):
        complaints = sparse_says(kernel, cache)
        say(f"sparse on {kernel.release}: {len(complaints)} complaints")
        good = good and not complaints
        for line in complaints:
            say(f"  {line}")
    seen = sparse_says(found[0], cache, UNMARKED)
    say(f"sparse, seeded mistake: {seen[0] if seen else 'WRONG: not seen'}")
    return good and bool(seen)


# ---- arm64 -------------------------------------------------------------------------------------------------------------

ARM64_COMPILER = "aarch64-linux-gnu-"
ELF_MACHINE_ARM64 = 183


def run_arm64(options):
    headers = options.folder / "current"
    if is_ubuntu():
        skip("Ubuntu's arm64 headers bring programs for arm64 alone; Debian's, which lead to this machine's, are tested on Debian")
    if shutil.which(ARM64_COMPILER + "gcc-12") is None:
        skip("missing gcc-aarch64-linux-gnu (apt-get install --no-install-recommends gcc-aarch64-linux-gnu)")
    if not (headers / "Module.symvers").exists():
        skip(f"no arm64 headers: run test/kernel/arm64_headers.sh {options.folder}")
    good = True
    for branch in ("535", "580"):
        module = modules.build_by_makefile(options.build / "kernel" / f"arm64-{branch}",
                                           [f"KDIR={headers.resolve()}", "ARCH=arm64", f"CROSS_COMPILE={ARM64_COMPILER}", f"NVIDIA_BRANCH={branch}"])
        machine = int.from_bytes(module.read_bytes()[18:20], "little")
        say(f"arm64, NVIDIA branch {branch}: {module.stat().st_size} bytes, ELF machine {machine}")
        good = good and machine == ELF_MACHINE_ARM64
    return good


# ---- Verbs -------------------------------------------------------------------------------------------------------------


def run_verbs(options):
    kernel = choose("oldest")
    missing = verbs.missing_packages(kernel)
    if missing:
        skip(f"a guest would have no verbs: missing {', '.join(missing)}")
    cache, guests = options.build / "kernel", options.guests
    files, load = verbs.guest_files(kernel, guests, cache, [options.peerlane, options.link_test, options.verbs_events], options.simulator)
    hosts = (1, 2) if guests == "two" else (1,)
    logs = [cache / f"verbs-{guests}-{kernel.release}-{host}.log" for host in hosts]
    scripts = [verbs.script_of(guests, host, load, options.peerlane, options.link_test, options.verbs_events) for host in hosts]
    runs = verbs.boot(kernel, files, scripts, cache, logs)
    good = [report(f"verbs, guest {host} of {guests}, on {kernel.release}", run, guest.judge(run), log)
            for host, run, log in zip(hosts, runs, logs)]
    return all(good)


def run_figures(options):
    kernel = choose("oldest")
    missing = verbs.missing_packages(kernel)
    if missing:
        skip(f"a guest would have no verbs: missing {', '.join(missing)}")
    cache = options.build / "kernel"
    log = cache / f"figures-{kernel.release}.log"
    files, load = verbs.guest_files(kernel, "one", cache, [options.peerlane], options.simulator)
    run = guest.boot(kernel, files, verbs.figures_script(load, options.peerlane), cache, log, bar_mib=0, memory_mib=1024, cpus=3, timeout_s=900)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, data in verbs.files_said(run.console).items():
        (options.folder / name).write_bytes(data)
    kept = [line for line in run.console.splitlines() if re.match(r"#|\d+ +\d|ok ", line)]
    (options.folder / "figures.txt").write_text("\n".join(kept) + "\n")
    return report("figures over verbs", run, guest.judge(run), log)


# ---- Yama --------------------------------------------------------------------------------------------------------------

# As Ubuntu has it: processes of one user may not read each other's memory, but where the read one names the reader.
YAMA = """
echo 1 >/proc/sys/kernel/yama/ptrace_scope
step yama [ "$(cat /proc/sys/kernel/yama/ptrace_scope)" = 1 ]
mkdir -p /etc /tmp /dev/shm; chmod 1777 /tmp /dev/shm
echo 'user:x:1000:1000::/tmp:/bin/sh' >/etc/passwd; echo 'user:x:1000:' >/etc/group
export PEERLANE_SIM_LOG=off HOME=/tmp
as_user() { program=$1; shift; start-stop-daemon -S -c 1000:1000 -x $program -- "$@"; }
step host_memory_in_place as_user {link_test} --gtest_color=no --gtest_filter='bulk.host_memory_is_read_in_place'
step gpu_memory_by_channel as_user {link_test} --gtest_color=no --gtest_filter='messages.two_gpus_on_one_node'
"""


def run_yama(options):
    kernel = choose("oldest")
    cache = options.build / "kernel"
    log = cache / f"yama-{kernel.release}.log"
    programs = [options.link_test, options.simulator, *(verbs.LIBRARIES / name for name in verbs.OPENED)]
    files = {str(path): path for path in programs} | guest.library_closure(programs)
    script = YAMA.replace("{link_test}", str(options.link_test))
    run = guest.boot(kernel, files, script, cache, log, bar_mib=0, memory_mib=1024, timeout_s=200)
    return report(f"Yama, on {kernel.release}", run, guest.judge(run), log)


# ---- Debug kernel ------------------------------------------------------------------------------------------------------

LEAK_SCAN = """
echo scan >/sys/kernel/debug/kmemleak; sleep 6; echo scan >/sys/kernel/debug/kmemleak
cat /sys/kernel/debug/kmemleak
step kmemleak [ -z "$(cat /sys/kernel/debug/kmemleak)" ]
"""
DEBUG_ARGUMENTS = {"append": "kasan_multi_shot", "memory_mib": 1024}


def run_debug(options):
    kernel = guest.debug_kernel(options.folder)
    if kernel is None:
        say(f"there is no debug kernel in {options.folder}: run test/kernel/debug_kernel.sh {options.folder}")
        return False
    missing = guest.missing_tools()
    if missing:
        skip(f"missing {' '.join(missing)}")
    script = "mount -t debugfs none /sys/kernel/debug\n" + SUITE + LEAK_SCAN
    good = boot_suite(options, kernel, script, bar_mib=128, timeout_s=1800, **DEBUG_ARGUMENTS)
    wanted = tuple(mutant for mutant in mutations.MUTANTS if mutant.lockdep or mutant.crashes)
    return judge_mutants(options, kernel, wanted, timeout_s=600, **DEBUG_ARGUMENTS) and good


def absolute(text):
    return Path(os.path.abspath(text))  # links stay what they are: the suite looks for the library by that name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=absolute, required=True, help="where modules, consoles and kernels are kept")
    parser.add_argument("--programs", type=absolute, required=True, help="where driver_test lies")
    parser.add_argument("--conformance", type=absolute, required=True, help="the conformance suite's program")
    parser.add_argument("--simulator", type=absolute, required=True, help="the simulated GPU's library, at the place where the suite looks for it")
    commands = parser.add_subparsers(required=True)
    suite = commands.add_parser("suite")
    suite.add_argument("which")
    suite.set_defaults(run=run_suite)
    commands.add_parser("mutations").set_defaults(run=run_mutations)
    commands.add_parser("flavours").set_defaults(run=run_flavours)
    commands.add_parser("sparse").set_defaults(run=run_sparse)
    arm64 = commands.add_parser("arm64")
    arm64.add_argument("folder", type=absolute)
    arm64.set_defaults(run=run_arm64)
    yama = commands.add_parser("yama")
    yama.add_argument("--link-test", type=absolute, required=True, help="the messages' test program")
    yama.set_defaults(run=run_yama)
    over_verbs = commands.add_parser("verbs")
    over_verbs.add_argument("guests", choices=("one", "two", "store"))
    over_verbs.add_argument("--peerlane", type=absolute, required=True, help="the program")
    over_verbs.add_argument("--link-test", type=absolute, required=True, help="the messages' test program")
    over_verbs.add_argument("--verbs-events", type=absolute, required=True, help="the library of verbs_events.c")
    over_verbs.set_defaults(run=run_verbs)
    figures = commands.add_parser("figures")
    figures.add_argument("folder", type=absolute)
    figures.set_defaults(run=run_figures)
    figures.add_argument("--peerlane", type=absolute, required=True, help="the program")
    debug = commands.add_parser("debug")
    debug.add_argument("folder", type=absolute)
    debug.set_defaults(run=run_debug)
    options = parser.parse_args()
    try:
        return 0 if options.run(options) else 1
    except modules.BuildError as error:
        say(f"a module does not build: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
