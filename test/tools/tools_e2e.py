#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the built `peerlane` program on the simulated GPU and checks exit codes, output grammar and result files.

usage: tools_e2e.py OUT_FOLDER CASE        one function below for each case; CMakeLists.txt lists them
"""
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from e2e import SIM_HEADER, Done, check, refuse, succeed

OUT = ""
NUMBER = r"[0-9.e+-]+"
GPU_LINES = [SIM_HEADER, r"GPU id:0; name: .+; Bus id: [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}", r"(GPU id:\d+; .+)*",
             "selecting device 0"]
MAPPING_LINES = [r"map_d_ptr: 0x[0-9a-f]+", r"info\.va: [0-9a-f]+", r"info\.mapped_size: \d+", r"info\.page_size: 65536",
                 r"info\.mapped: 1", r"info\.wc_mapping: [01]", r"page offset: 0", r"user-space pointer: 0x[0-9a-f]+"]
CLOSING_LINES = ["unmapping buffer", "unpinning buffer", "closing gdrdrv"]


def run(*arguments, name="peerlane", env=None, folder=None):
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PEERLANE_", "GDRCOPY_"))}
    variables.update({"PEERLANE_GPU": "sim"} if env is None else env)
    return Done(subprocess.run([os.path.join(folder or OUT, name), *arguments], env=variables, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=170))


def lines_match(text, patterns):
    """Every pattern matches a line, in this order; lines in between that match none are an error (blank ones are free)."""
    lines = [line for line in text.splitlines() if line.strip()]
    index = 0
    for pattern in patterns:
        optional = pattern.endswith(")*")
        repeated = optional or pattern.endswith(")+")
        body = re.compile(pattern[:-1] if repeated else pattern)
        matched = 0
        while index < len(lines) and body.fullmatch(lines[index]):
            index, matched = index + 1, matched + 1
            if not repeated:
                break
        check(matched or optional, f"line {index + 1} does not match {pattern!r}:", lines[index:index + 1], text[-2000:])
    check(index == len(lines), "unexpected lines:", lines[index:])


def with_json(*arguments, **options):
    """Runs with --json FILE; returns what ran and the parsed, checked file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        done = run(*arguments, "--json", path, **options)
        check(os.path.exists(path), "no result file", done.err)
        check(os.listdir(folder) == ["result.json"], "leftovers:", os.listdir(folder))
        with open(path, encoding="utf-8") as file:
            return done, check_result(json.load(file))


def check_result(result):
    check(result["schema"] == "peerlane-result/1", result["schema"])
    for key in ("tool", "command_line", "simulated", "passed", "machine", "parameters", "units", "notes", "rows", "samples"):
        check(key in result, f"no {key} in the result")
    check(result["simulated"] is True, "a result of the simulated GPU that does not say so")
    check(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result["machine"]["utc_date"]), "utc_date")
    known = {row["series"] for row in result["rows"] if "series" in row}
    for series in result["samples"]:
        check(series["series"] in known, "samples without a row:", series["series"])
        check(len(series["samples_ns"]) == series["samples_kept"] <= series["samples_taken"], "sample counts")
    return result


# ---- the program itself ------------------------------------------------------------------------------------------------


def usage():
    check(run().code == 1, "no command must fail")
    for word in ("-h", "--help", "help"):
        text = succeed(run(word)).out
        for command in "demo info doctor sanity copybw copylat apiperf pplat copy blocks calibrate explain-copy bandwidth env".split():
            check(re.search(rf"^  {command} ", text, re.M), f"{command} is not in the usage")
    check(re.fullmatch(r"peerlane \d+\.\d+\.\d+ \(\S+\)\n", succeed(run("--version")).out), "--version")
    for name in "gdrcopy_sanity gdrcopy_copybw gdrcopy_copylat gdrcopy_apiperf gdrcopy_pplat sanity copybw".split():
        check(name in succeed(run("-h", name=name)).out, f"{name} -h")


def unknown_command():
    refuse(run("copybandwidth"), 'unknown command "copybandwidth"', "peerlane -h lists them")


def bad_options():
    for command in "info doctor sanity copybw copylat apiperf pplat env demo copy blocks calibrate explain-copy bandwidth".split():
        refuse(run(command, "--no-such-option"), f"peerlane {command}:", "-h lists the options")
        check(run(command, "-h").code == 0, command)
    for arguments in (["copybw", "-s", "1X"], ["copybw", "-s", "0"], ["copylat", "-w", "0"], ["apiperf", "-n", "-1"],
                      ["copybw", "-M", "uncached"], ["copybw", "-a", "malloc"], ["pplat", "-m", "2"], ["pplat", "-s", "3"],
                      ["pplat", "-G", "disk"], ["copylat", "--sizes", "4,x"], ["copylat", "--batch", "--batch-bytes", "1M"]):
        check(run(*arguments).code == 1, arguments)
    refuse(run("copybw", "-d", "77"), "there is no GPU 77", "CUDA_VISIBLE_DEVICES")
    refuse(run("copybw", "-s", "64K", "-s", "128K"), "--size")
    later = succeed(run("-s", "64K", "-w", "2", "-r", "2", "-s", "128K", "-w", "3", name="gdrcopy_copybw")).out
    check("testing size: 131072" in later and "num_iters=3" in later, later)  # as with getopt()


def real_gpu_missing():
    # Where a real GPU answers this cannot be shown; the library is hidden by an empty search path only if it is not installed.
    done = run("copybw", env={"PEERLANE_GPU": "real", "CUDA_VISIBLE_DEVICES": ""})
    refuse(done, "no GPU answers", "peerlane doctor", "PEERLANE_GPU=sim")
    check(SIM_HEADER not in done.out, "the simulated GPU was used although a real one was demanded")
    refuse(run("sanity", "-t", "basic_cumemalloc", env={"PEERLANE_GPU": "real", "CUDA_VISIBLE_DEVICES": ""}))


STUB = """
int cuInit(unsigned flags) {{ (void)flags; {body} }}
int cuDeviceGetCount(int* count) {{ *count = 0; return 0; }}
int cuDriverGetVersion(int* version) {{ *version = 13000; return 0; }}
int cuPointerGetAttribute(void* data, int which, unsigned long long pointer) {{ (void)data, (void)which, (void)pointer; return 1; }}
"""


def stub_driver(folder, body):
    """A libcuda.so.1 without a device, as driver packages leave it on machines without a GPU."""
    source = os.path.join(folder, "stub.c")
    with open(source, "w", encoding="utf-8") as file:
        file.write(STUB.format(body=body))
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o",
                    os.path.join(folder, "libcuda.so.1"), source], check=True)
    return {"LD_LIBRARY_PATH": folder}


def library_without_device():
    """auto falls back to the simulated GPU and says why; real refuses; the library that failed does not get in the way."""
    for body, reason in (("return 100;", "cuInit failed"), ("return 0;", "sees no GPU"), ("return *(volatile int*)8;", "crashed")):
        with tempfile.TemporaryDirectory() as folder:
            env = stub_driver(folder, body)
            done = succeed(run("info", env=env))
            check(done.out.startswith(SIM_HEADER) and reason in done.out, reason, done.out)
            succeed(run("-t", "basic_cumemalloc", name="gdrcopy_sanity", env=env))
            if "crashed" not in reason:
                refuse(run("copybw", env={**env, "PEERLANE_GPU": "real"}), "peerlane doctor")
                check("no GPU answers" in run("doctor", env=env).out, "doctor")


def simulated_library_path():
    """The simulated GPU through LD_LIBRARY_PATH is called simulated too."""
    env = {"LD_LIBRARY_PATH": os.path.join(OUT, "sim")}
    check(succeed(run("info", env=env)).out.startswith(SIM_HEADER), "header")
    refuse(run("info", env={**env, "PEERLANE_GPU": "real"}), "is the simulated GPU")


def copy_of_folder(folder, *left_out):
    target = os.path.join(folder, "copied")
    shutil.copytree(OUT, target, symlinks=True, ignore=shutil.ignore_patterns(*left_out))
    return target


def sim_missing():
    with tempfile.TemporaryDirectory() as folder:
        refuse(run("info", folder=copy_of_folder(folder, "sim")), "simulated GPU cannot be loaded", "sim/")


def copied_folder():
    """The output folder runs elsewhere, with nothing but libc's own libraries from the system."""
    with tempfile.TemporaryDirectory() as folder:
        target = copy_of_folder(folder)
        succeed(run("-s", "64K", "-w", "10", "-r", "2", name="gdrcopy_copybw", folder=target))
        text = subprocess.run(["ldd", os.path.join(target, "peerlane")], text=True, stdout=subprocess.PIPE, check=True).stdout
        for line in text.splitlines():
            library = line.split()[0]
            own = os.path.realpath(target) in line or target in line
            system = re.match(r"(linux-vdso|libc|libm|libdl|libpthread|librt|/lib.*ld-linux)", library)
            sanitizer = re.match(r"lib(asan|tsan|ubsan|stdc\+\+|gcc_s)", library)
            check(own or system or sanitizer, "the program needs a library that the folder does not have:", line)


# ---- info, doctor, env -------------------------------------------------------------------------------------------------


def info():
    done, result = with_json("info")
    text = succeed(done).out
    check(text.splitlines()[0] == SIM_HEADER, "the first line must say that the GPU is simulated")
    for pattern in (r"^GPU 0: ", r"^  PCI bus id +\S+", r"^  memory +\S+ GiB", r"^  BAR1 ", r"^  near CPUs +unknown; usable: \d",
                    r"^gdrdrv +(yes|no)", r"^dmabuf +yes", r"^rm +(yes|no)"):
        check(re.search(pattern, text, re.M), f"no line {pattern}", text)
    check({row["kind"] for row in result["rows"]} == {"gpu", "backend"}, "kinds of rows")


def topo_sim():
    done, result = with_json("topo")
    check(succeed(done).out.startswith(SIM_HEADER), "header", done.out)
    check(result["simulated"], "the result file must say so too")
    relations = {(row["from"], row["to"]): row["relation"] for row in result["rows"] if row["kind"] == "relation"}
    check(relations["GPU0", "GPU0"] == "X" and relations["GPU0", "GPU1"].startswith("NV"), relations)
    without = run("topo", "--json", "-", env={"PEERLANE_GPU": "real"})
    check('"GPU0"' not in succeed(without).out, "a simulated GPU although PEERLANE_GPU=real", without.out)


def doctor_sim():
    done, result = with_json("doctor")
    check(succeed(done).out.startswith(SIM_HEADER), "header")
    check("this is the simulated GPU" in done.out and "PEERLANE_GPU=real peerlane doctor" in done.out, done.out)
    check(not re.search(r"^ready", done.out, re.M), "a simulated GPU says nothing about this machine:", done.out)
    check(all(row["level"] in ("ok", "note") for row in result["rows"]), result["rows"])
    for variables, words in (({}, "go by DMA channels"), ({"PEERLANE_SIM_MODE": "mig"}, "go by the CPU proxy: there are no DMA channels"),
                             ({"PEERLANE_DEVICE_RINGS": "proxy"}, "PEERLANE_DEVICE_RINGS=proxy asks for it"),
                             ({"PEERLANE_SIM_MODE": "mps", "PEERLANE_DEVICE_RINGS": "dma"}, "are refused")):
        line = re.search("kernel puts .*", run("doctor", env={"PEERLANE_GPU": "sim", **variables}).out)
        check(line and words in line.group(0), variables, words, line)


def doctor_real():
    done = run("doctor", env={"CUDA_VISIBLE_DEVICES": ""})
    check(done.code == 1 and "not ready" in done.out, done.code, done.out)
    blockers = re.findall(r"^BLOCKER  (\S.*?)  ", done.out, re.M)
    check(blockers, "no BLOCKER line", done.out)
    for match in re.finditer(r"^BLOCKER.*\n(.*)$", done.out, re.M):
        check(match.group(1).strip().startswith("->"), "a blocker without a fix:", match.group(0))


def env_values():
    done = succeed(run("env", env={"PEERLANE_GPU": "sim", "PEERLANE_SIM_DEVICES": "3"}))
    check(re.search(r"^PEERLANE_SIM_DEVICES +3 +environment", done.out, re.M), done.out)
    check(re.search(r"^PEERLANE_BACKEND +auto +default", done.out, re.M), done.out)


def env_problem():
    done = run("env", env={"PEERLANE_SIM_DEVICES": "many"})
    refuse(done, "PEERLANE_SIM_DEVICES=many is not valid")
    check("default (refused)" in done.out, done.out)


# ---- sanity ------------------------------------------------------------------------------------------------------------

STOCK_CASES = 36


def sanity_list():
    stock = succeed(run("-l", name="gdrcopy_sanity")).out.split()
    check(len(stock) == STOCK_CASES, len(stock), stock)
    check(len(succeed(run("-l", "-e", name="gdrcopy_sanity")).out.split()) == STOCK_CASES + 1, "extended")
    ours = succeed(run("sanity", "-l")).out.split()
    check(ours[:STOCK_CASES] == stock and len(ours) > STOCK_CASES + 15, ours)
    for name in ("attributes_sanity", "basic_unaligned_mapping", "data_validation_cumemalloc",
                 "invalidation_unix_sock_shared_fd_gdr_map_vmmalloc", "invalidation_fork_child_gdr_pin_parent_with_tokens"):
        check(name in stock, name)


def summary_of(text):
    match = re.search(r"^Total: (\d+), Passed: (\d+), Failed: (\d+), Waived: (\d+)$", text, re.M)
    check(match, "no summary line", text)
    return tuple(int(part) for part in match.groups())


def sanity_all():
    done, result = with_json("sanity")
    total, passed, failed, waived = summary_of(succeed(done).out)
    check(failed == 0 and total == passed + waived and total > 50, done.out)
    # Waived on the simulated GPU for these reasons only.
    for row in result["rows"]:
        if row["outcome"] == "WAIVED":
            check(re.search(r"FORCE_PCIE|coherent platform|simulated GPU has no BAR1", row["reason"]), row)


def sanity_drop_in():
    done = succeed(run("-t", "basic_cumemalloc", "-t", "basic_v2_forcepci_cumemalloc", "-v", name="gdrcopy_sanity"))
    check(summary_of(done.out) == (2, 1, 0, 1), done.out)
    check(done.out.endswith("List of waived tests:\n    basic_v2_forcepci_cumemalloc\n"), done.out)
    for line in ("&&&& RUNNING basic_cumemalloc", "&&&& PASSED basic_cumemalloc", "&&&& WAIVED basic_v2_forcepci_cumemalloc"):
        check(line in done.err, f"no {line!r}", done.err)
    check("Total" not in run("-s", "-t", "basic_cumemalloc", name="gdrcopy_sanity").out, "-s must hide the summary")


def sanity_unknown_case():
    refuse(run("sanity", "-t", "no_such_case"), 'unknown case "no_such_case"')
    failing = run("sanity", "-t", "basic_cumemalloc", env={"PEERLANE_GPU": "sim", "PEERLANE_BACKEND": "gdrdrv"})
    check(failing.code == 1 and summary_of(failing.out) == (1, 0, 1, 0), "a failing case must fail the program", failing.out)


def sanity_every_gpu():
    few = ("-t", "data_validation_cumemalloc", "-t", "basic_cumemalloc", "-t", "vmm_adjacent_pieces")
    for gpu in range(4):
        done = succeed(run("sanity", "-d", str(gpu), *few, env={"PEERLANE_SIM_DEVICES": "4", "CUDA_VISIBLE_DEVICES": "3,1,2,0"}))
        check(summary_of(done.out) == (3, 3, 0, 0), done.out)
    beyond = run("sanity", "-d", "2", *few, env={"PEERLANE_SIM_DEVICES": "4", "CUDA_VISIBLE_DEVICES": "1,0"})
    check(beyond.code == 1 and "there is no GPU 2: this process sees 2" in beyond.err, beyond.out, beyond.err)


# ---- benchmarks --------------------------------------------------------------------------------------------------------

COPYBW_HEAD = GPU_LINES + [r"testing size: \d+", r"rounded size: \d+", r"gpu alloc fn: cuMem(Alloc|Create)",
                           r"device ptr: [0-9a-f]+"] + MAPPING_LINES
COPYBW_SIZE = (rf"(writing test, size=\d+ offset=\d+ num_iters=\d+|write BW: {NUMBER}MB/s"
               rf"|reading test, size=\d+ offset=\d+ num_iters=\d+|read BW: {NUMBER}MB/s)+")


def copybw():
    for name, first in (("gdrcopy_copybw", []), ("copybw", []), ("peerlane", ["copybw"])):
        done = succeed(run(*first, "-s", "0x20000", "-w", "20", "-r", "5", name=name))
        lines_match(done.out, COPYBW_HEAD + [r"writing test, size=131072 offset=0 num_iters=20", rf"write BW: {NUMBER}MB/s",
                                             r"reading test, size=131072 offset=0 num_iters=5", rf"read BW: {NUMBER}MB/s"]
                    + CLOSING_LINES)
    done, result = with_json("copybw", "-s", "64K", "-o", "4", "-c", "1000", "-w", "5", "-r", "5", "-a", "cuMemCreate")
    succeed(done)
    write, read = result["rows"]
    check((write["direction"], read["direction"]) == ("write", "read"), result["rows"])
    check(write["size_bytes"] == 1000 and write["offset_bytes"] == 4, write)
    check(abs(write["bandwidth_mb_per_s"] / write["bandwidth_mib_per_s"] - 1.048576) < 1e-6, "MB and MiB")


def copybw_sweep():
    text = succeed(run("copybw", "-l", "-s", "64K", "-w", "3", "-r", "3")).out
    lines_match(text, COPYBW_HEAD + [COPYBW_SIZE] + CLOSING_LINES)
    sizes = [int(size) for size in re.findall(r"writing test, size=(\d+)", text)]
    check(sizes == [1 << i for i in range(17)], "the sweep must reach the largest power of two:", sizes)


def copybw_bad_range():
    refuse(run("copybw", "-s", "64K", "-o", "2"), "multiple of 4")
    refuse(run("copybw", "-s", "64K", "-o", "64K"), "inside the buffer")
    refuse(run("copybw", "-s", "64K", "-o", "4", "-c", "64K"), "beyond the buffer")
    refuse(run("copybw", "-s", "64K", "-M", "cache"), "gdr_map")
    refuse(run("copybw", "--sweep=1k1"), "--sweep")  # a flag has no value


LATENCY_ROW = r"{}\s+\d+\s+\d+\.\d{{4}}\s+\d+\.\d{{4}}"


def copylat_drop_in():
    text = succeed(run("-s", "4K", "-w", "50", "-r", "20", "-c", name="gdrcopy_copylat")).out
    columns = r"Test\s+Size\(B\)\s+Median Time\(us\)\s+Min\. Time\(us\)"

    def section(name, iterations):
        return [rf"{name} num iters for each size: {iterations}"], [columns, f"({LATENCY_ROW.format(name)})+"]
    patterns = GPU_LINES + [r"device ptr: 0x[0-9a-f]+", r"allocated size: \d+", r"gpu alloc fn: cuMemAlloc"] + MAPPING_LINES
    for name, iterations in (("cuMemcpy_H2D", 50), ("cuMemcpy_D2H", 20), ("gdr_copy_to_mapping", 50),
                             ("gdr_copy_from_mapping", 20)):
        head, body = section(name, iterations)
        patterns += head + (["WARNING: .+"] if name == "gdr_copy_to_mapping" else []) + body
    lines_match(text, patterns + CLOSING_LINES)
    check(len(re.findall(r"^gdr_copy_from_mapping\s+\d+\s", text, re.M)) == 13, "sizes 1..4096")


def copylat_compare():
    done, result = with_json("copylat", "-s", "256", "-w", "64", "-r", "64", "--budget-ms", "20")
    text = succeed(done).out
    check("baseline: GDRCopy 2.6 dispatch re-expressed" in text, "the baseline must be labelled as what it is")
    contenders = {row["contender"] for row in result["rows"]}
    check(contenders == {"peerlane", "baseline", "cuMemcpy", "async+poll"}, contenders)
    check(len(result["rows"]) == 9 * 2 * 4, len(result["rows"]))
    for row in result["rows"]:
        check(0 <= row["latency_ns_min"] <= row["latency_ns_p50"] <= row["latency_ns_p99"] <= row["latency_ns_max"], row)


def copylat_alignments():
    done, result = with_json("copylat", "--alignments", "--sizes", "4,64", "-r", "16")
    succeed(done)
    seen = {(row["contender"], row["size_bytes"], row["device_alignment_bytes"]) for row in result["rows"]}
    check(seen == {(c, s, a) for c in ("peerlane", "baseline") for s in (4, 64) for a in range(64)}, len(seen))


def copylat_batch():
    done, result = with_json("copylat", "--batch", "--batch-messages", "5000")
    check("million/s" in succeed(done).out, done.out)
    check(len(result["rows"]) == 5 and all(row["message_rate_million_per_s"] > 0 for row in result["rows"]), result["rows"])


def copylat_cold():
    refuse(run("-C", "-s", "64", "-w", "5", "-r", "5", name="gdrcopy_copylat"), "-C is for caching mappings")


def apiperf():
    text = succeed(run("-s", "128K", "-n", "30", name="gdrcopy_apiperf")).out
    row = r"\d+(\t\d+\.\d{6}){5}"
    columns = r"Size\(B\)\tpin\.Time\(us\)\tmap\.Time\(us\)\tget_info\.Time\(us\)\tunmap\.Time\(us\)\tunpin\.Time\(us\)"
    size = [columns, row, r"Histogram of gdr_pin_buffer latency for \d+ bytes", r"(\[\d+\.\d+\t-\t\d+\.\d+\]\t\d+)+"]
    lines_match(text, GPU_LINES + [r"device ptr: 0x[0-9a-f]+", r"allocated size: 131072"] + size + size + ["closing gdrdrv"])
    for part in text.split("Histogram of")[1:]:
        bins = re.findall(r"^\[(\S+)\t-\t(\S+)\]\t(\d+)$", part, re.M)
        check(len(bins) == 10 and sum(int(count) for _, _, count in bins) == 30, "every sample in one bin", bins)
        for (_, high, _), (low, _, _) in zip(bins, bins[1:]):
            check(high == low, "bin edges must meet", bins)


def apiperf_cached():
    done, result = with_json("apiperf", "-s", "64K", "-n", "20", "--cached")
    succeed(done)
    calls = ["pin", "map", "get_info", "unmap", "unpin", "get_info_repeated"]
    check([row["call"] for row in result["rows"]] == calls, result["rows"])
    check(all(row["cached"] for row in result["rows"]), "cached is not recorded")


PPLAT_LAST = rf"Round-trip latency per iteration is \(min\) {NUMBER}, \(median\) {NUMBER} us"


def pplat_flags():
    text = succeed(run("-t", "30", name="gdrcopy_pplat")).out
    lines_match(text, GPU_LINES + [r"Benchmark mode: .+", r"gpu alloc fn: cuMemAlloc", r"device ptr: 0x[0-9a-f]+"]
                + MAPPING_LINES + [r"The CPU writes .+", r"CPU->GPU flag in gpumem, GPU->CPU flag in hostmem, data in gpumem\.",
                                   r"Running 30 iterations with data size 0 bytes, 1 blocks of 1 threads\.", PPLAT_LAST]
                + CLOSING_LINES)
    for to_gpu in ("gpumem", "hostmem"):
        for to_cpu in ("gpumem", "hostmem"):
            succeed(run("pplat", "-t", "10", "-G", to_gpu, "-C", to_cpu))


def pplat_data():
    """Any number of blocks: the stock tool hangs with more than two."""
    for blocks in (1, 3, 8):
        for place in ("gpumem", "hostmem"):
            done, result = with_json("pplat", "-t", "5", "-s", "1K", "-B", str(blocks), "-T", "4", "-D", place)
            check(re.search(PPLAT_LAST, succeed(done).out), done.out)
            check(result["rows"][0]["mismatched_words"] == 0 and result["rows"][0]["sample_count"] == 5, result["rows"])


def pplat_gpu_produces():
    for place in ("gpumem", "hostmem"):
        done, result = with_json("pplat", "-m", "1", "-t", "5", "-s", "512", "-B", "3", "-T", "4", "-D", place)
        check("GPU produces" in succeed(done).out, done.out)
        check(result["rows"][0]["latency_ns_p50"] > 0 and result["rows"][0]["mismatched_words"] == 0, result["rows"])


def pplat_too_many_blocks():
    done = run("pplat", "-t", "1", "-s", "4K", "-B", "1024", "-T", "1024")
    refuse(done, "run at a time")


def json_to_stdout():
    done = succeed(run("env", "--json", "-"))
    check(json.loads(done.out)["tool"] == "env", "standard output must be JSON alone")
    check("PEERLANE_GPU" in done.err, "the text belongs on stderr then")


def json_unwritable():
    refuse(run("copybw", "-s", "64K", "-w", "1", "-r", "1", "--json", "/nonexistent/folder/x.json"),
           "/nonexistent/folder/x.json", "--json")


def no_temporary_folder():
    """TMPDIR names no folder, or one that cannot be written: a sentence that says so, for each command that makes a folder of its own."""
    for folder, words in itertools.product(("/nonexistent", "/proc"), (["store", "crash-demo", "--size", "1M"], ["store", "gpu-direct-demo", "--size", "1M"], ["soak", "--seconds", "1"], ["demo"],
                  ["store", "perf", "--elements", "10"])):
        done = run(*words, env={"PEERLANE_GPU": "sim", "TMPDIR": folder})
        check(done.code == 1 and "let TMPDIR name one" in done.out + done.err and "terminate" not in done.err, words, done.code, done.err[-800:])


def bad_cpu_list():
    for command in ("copybw", "info"):  # info measures nothing, and does not take nonsense either
        refuse(run(command, "--cpu", "0-x"), "CPU list")
    refuse(run("copybw", "-s", "64K", "--cpu", "60000"), "cannot pin", "--cpu none")
    done, result = with_json("copybw", "-s", "64K", "-w", "1", "-r", "1", "--cpu", "0")
    check(succeed(done) and result["machine"]["cpus"] == "0", result["machine"]["cpus"])


def demo():
    done, result = with_json("demo")
    text = succeed(done).out
    check(text.splitlines()[0] == SIM_HEADER, "header")
    check(text.rstrip().endswith("PASS"), text[-800:])
    check(result["passed"] is True, "passed")
    steps = [row for row in result["rows"] if row.get("kind") == "step"]
    check(len(steps) == 5 and all(row["result"] == "pass" for row in steps), steps)
    for seen in ("every copied byte compared", "4 rates", "14 sizes, every byte checked", "triggered by streams", "every byte as it was"):
        check(any(seen in row["text"] for row in steps), seen, steps)
    failing = run("demo", env={"PEERLANE_GPU": "sim", "PEERLANE_BACKEND": "gdrdrv"})
    check(failing.code == 1 and failing.out.rstrip().endswith("FAIL"), "demo must fail without a usable backend")


# ---- the copy planner --------------------------------------------------------------------------------------------------

WAYS = {"h2d": {"cpu_store", "engine_copy", "copy_engine", "bounce", "registered"},
        "d2h": {"cpu_load", "engine_low_latency", "engine_copy", "engine_bounce", "copy_engine", "bounce", "registered"},
        "d2d": {"cpu_relay", "engine_copy", "copy_engine"}, "p2p": {"cpu_relay", "copy_engine"}}
CASES = {("h2d", "pinned"), ("h2d", "pageable"), ("d2h", "pinned"), ("d2h", "pageable"), ("d2d", "device"), ("p2p", "device")}


def copy_sweep():
    """Every case, verified; a row for each contender, one verdict for each size."""
    done, result = with_json("copy", "--max", "64K", "--odd", "--time", "3", "--samples", "12", "--all", "--raw", "--seed", "7")
    text = succeed(done).out
    envelope = [row for row in result["rows"] if row["kind"] == "envelope"]
    methods = [row for row in result["rows"] if row["kind"] == "method"]
    check({(row["direction"], row["memory"]) for row in envelope} == CASES, "cases")
    sizes = {row["size_bytes"] for row in envelope}
    check({1, 3, 64, 100, 961, 1000, 4096, 5000, 65536} <= sizes and max(sizes) == 65536, sizes)
    check(len(envelope) == len(sizes) * len(CASES), len(envelope))
    for row in methods:
        name = row["method"].split(" ")[0]
        check(name in WAYS[row["direction"]] | {"cuMemcpy", "planner", "planner_registered"}, row["method"])
        check(row["sample_count"] > 0 and row["latency_ns_p50"] <= row["latency_ns_p99"], row)
        check(row["direction"] in ("h2d", "d2h") or name != "planner_registered", "registered memory is for the CPU's copies")
    p50 = {(row["direction"], row["memory"], row["size_bytes"], row["method"]): row["latency_ns_p50"] for row in methods}
    for row in envelope:
        here = {key[3]: value for key, value in p50.items() if key[:3] == (row["direction"], row["memory"], row["size_bytes"])}
        single = {name: value for name, value in here.items() if not name.startswith("planner")}
        check(row["best_ns"] == min(single.values()) == single[row["best_method"]], row, single)
        check(row["planner_ns"] == here["planner"], row)
        seems_to = row["planner_ns"] - row["best_ns"] > max(row["best_ns"] * 0.1, 100)
        check(row["repeated"] == seems_to and (seems_to or not row["exceeds"]), row)  # what seems to exceed is measured again
        check(row["choice"].split(" ")[0] in WAYS[row["direction"]] and 0 < row["choice_share"] <= 1, row)
    check(result["parameters"]["seed"] == 7 and result["parameters"]["verified"] is True, result["parameters"])
    check("planner against the envelope" in text and "p2p, device memory" in text, text[-2000:])


def copy_small_choices():
    """One case, chosen methods, no hold, no check; one GPU has no p2p."""
    done, result = with_json("copy", "--direction", "h2d,p2p", "--memory", "pageable", "--min", "8", "--max", "8", "--methods",
                             "cuMemcpy,planner", "--time", "2", "--no-hold", "--no-verify",
                             env={"PEERLANE_GPU": "sim", "PEERLANE_SIM_DEVICES": "1"})
    check("p2p is left out" in succeed(done).out, done.out)
    check([row.get("method") for row in result["rows"]] == ["cuMemcpy", "planner", None], result["rows"])
    check(result["parameters"]["engine_held"] is False and result["parameters"]["verified"] is False, result["parameters"])
    check(not result["samples"], "samples are kept with --raw only")
    # Without an engine the planner still copies, by other ways.
    done, result = with_json("copy", "--direction", "d2h", "--memory", "pinned", "--min", "16K", "--max", "16K", "--time", "2",
                             env={"PEERLANE_GPU": "sim", "PEERLANE_COPY_ENGINE": "0"})
    check("disables the copy kernel" in succeed(done).out, done.out)
    check(not any(row.get("method", "").startswith("engine") for row in result["rows"]), result["rows"])
    # And without a mapping.
    done, result = with_json("copy", "--direction", "h2d", "--memory", "pinned", "--min", "64", "--max", "64", "--time", "2",
                             env={"PEERLANE_GPU": "sim", "PEERLANE_BACKEND": "gdrdrv"})
    check({row["method"] for row in result["rows"] if row["kind"] == "method"} == {"copy_engine", "cuMemcpy", "planner"},
          succeed(done).out, result["rows"])


def copy_bad_options():
    refuse(run("copy", "--direction", "up"), "--direction", "h2d")
    refuse(run("copy", "--memory", "virtual"), "--memory", "pageable")
    refuse(run("copy", "--min", "0"), "--min")
    refuse(run("copy", "--min", "8", "--max", "4"), "--min")
    refuse(run("copy", "--max", "2G"), "--max")
    refuse(run("copy", "--methods", "planner,cpu_shop"), "cpu_shop", "cpu_store")
    refuse(run("copy", "--direction", "p2p", env={"PEERLANE_GPU": "sim", "PEERLANE_SIM_DEVICES": "1"}), "nothing to measure")
    refuse(run("calibrate", "--max", "1"), "--max")
    refuse(run("explain-copy", "--h2d", "--d2h"), "one of")
    refuse(run("explain-copy", "--d2d", "--pageable"), "--pageable")
    refuse(run("explain-copy", "--size", "0"), "--size")


def copy_beside():
    done, result = with_json("copy", "--beside", "--samples", "12")
    check("calls beside a copy kernel" in succeed(done).out, done.out)
    states = ["none", "expired", "held", "used"]
    calls = [row for row in result["rows"] if row["kind"] == "beside"]
    kernels = [row for row in result["rows"] if row["kind"] == "throughput"]
    check(len(calls) == 6 * len(states) and len(kernels) == 3 * len(states), len(calls), len(kernels))
    for rows, name in ((calls, "call"), (kernels, "kernel")):
        check([row["engine"] for row in rows] == states * (len(rows) // 4), rows)
        check(len({row[name] for row in rows}) == len(rows) // 4, rows)
    check(all(row["lease_us"] > 0 and row["max_leases"] >= 0 for row in calls), calls)
    check(all(row["ratio_p50_to_none"] > 0 for row in kernels), kernels)


def copy_async():
    done, result = with_json("copy", "--async", "--time", "3", "--samples", "10")
    check("begun and waited for" in succeed(done).out, done.out)
    lists = {(row["direction"], row["pieces"], row["piece_bytes"], row["method"])
             for row in result["rows"] if row["kind"] == "list"}
    check(lists == {(way, pieces, size, method) for way in ("d2h", "h2d") for pieces, size in ((64, 64), (512, 32))
                    for method in ("copy_list", "one_by_one", "cuMemcpyAsync")}, lists)
    begun = {(row["direction"], row["memory"], row["size_bytes"], row["method"])
             for row in result["rows"] if row["kind"] == "async"}
    check(begun == {(way, memory, size, method) for way in ("d2h", "h2d") for memory in ("pinned", "pageable")
                    for size in (65536, 1 << 20) for method in ("begin_wait", "begin", "planner", "cuMemcpyAsync")}, begun)


MOVERS = ["peerlane", "cuMemcpyBatchAsync", "cuMemcpyAsync", "gather 16 SMs", "gather all SMs"]


def blocks_sweep():
    """Every contender at every point, each checked; what does not fit into --memory is left out; by channel too."""
    for engine in ("auto", "dma"):
        env = {"PEERLANE_GPU": "sim", "PEERLANE_COPY_ENGINE": engine}
        done, result = with_json("blocks", "--sizes", "512,5008", "--counts", "1,40,3000", "--memory", "2M", "--each", "40", "--time",
                                 "1", "--samples", "3", "--seed", "7", env=env)
        text = succeed(done).out
        rows = [row for row in result["rows"] if row["kind"] == "blocks"]
        seen = {(row["direction"], row["block_bytes"], row["count"], row["method"]) for row in rows}
        points = [(512, 1), (512, 40), (512, 3000), (5008, 1), (5008, 40)]
        check(seen == {(way, *point, method) for way in ("d2h", "h2d") for point in points for method in MOVERS
                       if method != "cuMemcpyAsync" or point[1] <= 40}, seen)
        for row in rows:
            check(row["size_bytes"] == row["block_bytes"] * row["count"] and row["bandwidth_gb_per_s"] >= row["bandwidth_p99_gb_per_s"] > 0
                  and row["submit_ns_per_block"] > 0 and row["verified"] is True and "link_share" not in row, row)
        best = [row for row in result["rows"] if row["kind"] == "blocks_best"]
        check(len(best) == 2 * len(points) and all(row["ratio_to_best"] > 0 for row in best), best)
        check("of 10 points" in text and "its rate is not known" in text, text)
    done, result = with_json("blocks", "--direction", "h2d", "--methods", "peerlane,gather all SMs", "--sizes", "4K", "--counts", "16",
                             "--no-verify", "--time", "1")
    check({row["method"] for row in result["rows"] if row["kind"] == "blocks"} == {"peerlane", "gather all SMs"}, succeed(done).out)
    check(result["parameters"]["verified"] is False, result["parameters"])


def blocks_beside():
    done, result = with_json("blocks", "--beside", "--direction", "d2h")
    check("kernels beside lists" in succeed(done).out, done.out)
    rows = {(row["kernels"], row["block_bytes"], row["method"]): row for row in result["rows"]}
    names = ["no lists", *(name for name in MOVERS if name != "cuMemcpyAsync")]
    check(set(rows) == {(load, size, name) for load in ("arithmetic", "memory") for size in (4096, 16384) for name in names}, rows)
    for (_, _, name), row in rows.items():
        check((row["bandwidth_gb_per_s"] > 0) == (name != "no lists") and row["latency_ns_p50"] > 0, row)


def blocks_urgent():
    done, result = with_json("blocks", "--urgent", "--memory", "1M")
    check("a list beside a long one of 1 MiB" in succeed(done).out, done.out)
    alone = [row for row in result["rows"] if row["condition"] == "alone"]
    check(len(alone) == 4 and all(row["long_bytes"] == 1 << 20 and row["latency_ns_p50"] > 0 for row in alone), result["rows"])


def blocks_bad_options():
    refuse(run("blocks", "--sizes", "4K,100"), "--sizes", "multiple of 16")
    refuse(run("blocks", "--sizes", "8"), "--sizes")
    refuse(run("blocks", "--counts", "16,,32"), "--counts")
    refuse(run("blocks", "--counts", "2000000"), "--counts")
    refuse(run("blocks", "--direction", "d2d"), "--direction", "h2d")
    refuse(run("blocks", "--methods", "magic"), "--methods", "cuMemcpyBatchAsync")
    refuse(run("blocks", "--memory", "1K", "--sizes", "4K"), "--memory")
    refuse(run("blocks", "--memory", "1K", "--urgent"), "--memory")
    refuse(run("blocks", "--memory", "65G"), "--memory")


def calibrate():
    # Where nothing can be written, it is said before anything is measured.
    refused = refuse(run("calibrate", "--budget-ms", "100", "--max", "64K", env={"PEERLANE_GPU": "sim", "XDG_CACHE_HOME": "/proc/nothing"}),
                     "/proc/nothing/peerlane/calibration-", "set XDG_CACHE_HOME")
    check("measured" not in refused.out, refused.out)
    with tempfile.TemporaryDirectory() as folder:
        env = {"PEERLANE_GPU": "sim", "XDG_CACHE_HOME": os.path.join(folder, "cache")}
        dry = succeed(run("calibrate", "--dry-run", "--budget-ms", "100", "--max", "64K", "--print", env=env)).out
        check("peerlane-calibration/1" in dry and "not kept" in dry and not os.path.exists(env["XDG_CACHE_HOME"]), dry)
        done, result = with_json("calibrate", "--budget-ms", "100", "--max", "256K", env=env)
        check("with copy kernel:" in succeed(done).out, done.out)
        files = os.listdir(os.path.join(env["XDG_CACHE_HOME"], "peerlane"))
        check(len(files) == 1 and re.fullmatch(r"calibration-[0-9a-f]{16}\.txt", files[0]), files)
        kept = os.path.join(env["XDG_CACHE_HOME"], "peerlane", files[0])
        check(f"kept in {kept}" in done.out and result["parameters"]["path"] == kept, done.out)
        with open(kept, encoding="utf-8") as file:
            lines = file.read().splitlines()
        check(lines[0] == "peerlane-calibration/1" and lines[1].startswith("machine gpu="), lines[:2])
        check(len([line for line in lines if line.startswith("curve ")]) > 10, lines)
        costs = [row for row in result["rows"] if row["kind"] == "cost"]
        check(costs and all(row["cost_ns"] > 0 for row in costs), costs[:3])
        # What was kept is what planners and explanations then use.
        explained, result = with_json("explain-copy", "--size", "64K", env=env)
        check(f"costs: {kept}" in succeed(explained).out, explained.out)
        swept, result = with_json("copy", "--direction", "d2d", "--min", "64", "--max", "64", "--time", "2", env=env)
        check(succeed(swept) and result["parameters"]["costs"] == files[0], result["parameters"])
        check(f"costs: {kept}" in succeed(run("explain-copy", "--costs", kept, env=env)).out, "--costs")
        # A damaged file is passed over, and refused where it was asked for.
        with open(kept, "w", encoding="utf-8") as file:
            file.write("peerlane-calibration/1\ncurve nonsense\n")
        check("costs: built in" in succeed(run("explain-copy", env=env)).out, "damaged")
        refuse(run("explain-copy", "--costs", kept, env=env), "line 2")
    nowhere = {"PEERLANE_GPU": "sim", "XDG_CACHE_HOME": "", "HOME": ""}
    refuse(run("calibrate", "--budget-ms", "10", "--max", "4K", env=nowhere), "XDG_CACHE_HOME")


def explain_copy():
    """Without any GPU: the built-in costs."""
    bare = {"PEERLANE_GPU": "real", "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": "/nonexistent"}
    text = succeed(run("explain-copy", "--size", "64K", "--d2h", env=bare)).out
    check("built in (there is no GPU here)" in text and SIM_HEADER not in text, text)
    env = {"PEERLANE_GPU": "sim", "XDG_CACHE_HOME": "/nonexistent"}
    for arguments in (["--h2d"], ["--d2h", "--pageable"], ["--d2d"], ["--p2p"], ["--d2h", "--cold"], ["--h2d", "--size", "3"]):
        text = succeed(run("explain-copy", *arguments, env=env)).out
        check("costs: built in" in text and "taken" in text and "with none:" in text, arguments, text)
    done, result = with_json("explain-copy", "--size", "64K", "--d2h", "--cold", env=env)
    ways = [row for row in result["rows"] if row["kind"] == "way"]
    check(sum(row["taken"] for row in ways) == 1 and not any(row["taken"] and row["method"].startswith("engine") for row in ways),
          ways)
    check(any(row["why"] == "the copy kernel is not resident" for row in ways), ways)
    check(any(row["kind"] == "crossover" and row["up_to_bytes"] == -1 for row in result["rows"]), "crossovers")


if __name__ == "__main__":
    OUT = sys.argv[1]
    globals()[sys.argv[2]]()
