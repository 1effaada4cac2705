#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `peerlane bandwidth` and `nvbandwidth` on the simulated GPU: exit codes, output grammar, files, interrupts.

usage: bandwidth_e2e.py OUT_FOLDER SCHEMA CASE        one function below for each case; CMakeLists.txt lists them
"""
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

OUT = SCHEMA = ""
SKIPPED = "SKIPPED:"  # what ctest and scripts/test_summary.py look for
SIM_HEADER = "simulated GPU: timings are not a GPU's"
QUICK = ["-b", "64K", "-i", "2", "--loopCount", "2"]


def environment(**more):
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PEERLANE_")}
    return {**variables, "PEERLANE_GPU": "sim", **more}


def run(*arguments, name="peerlane", **more):
    command = [os.path.join(OUT, name)] + (["bandwidth"] if name == "peerlane" else []) + list(arguments)
    return subprocess.run(command, env=environment(**more), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=170, check=False)


def check(condition, *facts):
    if not condition:
        raise AssertionError(" | ".join(str(fact) for fact in facts))


def expect_code(done, code):
    check(done.returncode == code, f"exit code {done.returncode}, not {code}", done.stdout[-1500:], done.stderr[-1500:])
    return done


def with_file(*arguments, code=0, **more):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        done = expect_code(run(*arguments, "--json", path, **more), code)
        with open(path, encoding="utf-8") as file:
            return done, json.load(file)


def cells(result, **wanted):
    return [row for row in result["rows"] if row["kind"] == "cell" and all(row[k] == v for k, v in wanted.items())]


def tests(result):
    return {row["testcase"]: row for row in result["rows"] if row["kind"] == "testcase"}


# ---- ours ------------------------------------------------------------------------------------------------------------------


def host():
    done, result = with_file("-t", "host_to_device_memcpy_ce", "1", *QUICK, "--no-judge")
    check(SIM_HEADER in done.stdout, done.stdout)
    check("host_to_device_memcpy_ce (0)" in done.stdout and "GB/s" in done.stdout, done.stdout)
    found = cells(result, testcase="host_to_device_memcpy_ce")
    check(found and all(row["state"] == "measured" and row["median"] > 0 and row["bytes"] == 65536 for row in found), found)
    check(len([s for s in result["samples"] if "samples_gb_per_s" in s]) >= 2, result["samples"])


def bidirectional():
    _, result = with_file("-t", "2", *QUICK, "--no-judge")
    check({row["part"] for row in cells(result)} == {"", "opposite", "total"}, cells(result))


def pairs():
    _, result = with_file("-t", "4", "7", *QUICK, "--no-judge", PEERLANE_SIM_DEVICES="2")
    check({row["part"] for row in cells(result, index=7)} == {"write1", "write2", "total"}, cells(result, index=7))
    check({row["state"] for row in cells(result, index=4)} == {"measured", "not_applicable"}, cells(result, index=4))


def all_single_node():
    _, result = with_file(*QUICK, "--no-judge", PEERLANE_SIM_DEVICES="2")
    bad = [row for row in result["rows"] if row["kind"] == "testcase" and row["state"] not in ("passed", "waived")]
    check(not bad, bad)
    ran = tests(result)
    check(len(ran) == 44 + 13 + 9, sorted(ran))  # of the original, ours, ours by DMA channel
    waived = {key for key, row in ran.items() if row["state"] == "waived"}
    check(not {key for key in waived if key.endswith("_ce")}, waived)


def sweep():
    done, result = with_file("-t", "0", "--size-sweep", "4K:16K", "-i", "2", "--no-judge")
    check([row["bytes"] for row in cells(result, column="0")] == [4096, 8192, 16384], cells(result))
    check("16 KiB" in done.stdout, done.stdout)


def transfers():
    line = "H -> [ce] -> G0, G0 -> H x 32K"
    done, result = with_file("--transfer", line, *QUICK, "--no-judge")
    check("H -> [ce@G0] -> G0" in done.stdout, done.stdout)
    check([row["bytes"] for row in cells(result, part="")] == [65536, 32768], cells(result))
    check(len(cells(result, part="total")) == 1, cells(result))
    wrong = run("--transfer", "H -> [warp] -> G0", *QUICK)
    expect_code(wrong, 2)
    check("column 7" in wrong.stdout and "^" in wrong.stdout, wrong.stdout)


def by_channel():
    """Every testcase by DMA channel: measured and verified, one piece and scattered blocks; waived with the reason without channels."""
    ours = re.findall(r"\d+, (\w+_dma):", expect_code(run("-l"), 0).stdout)
    check(len(ours) == 9, ours)
    _, result = with_file("-t", *ours, *QUICK, "--no-judge")
    for key in ours:
        check(tests(result)[key]["state"] == "passed", tests(result)[key])
    check({row["executor"] for row in cells(result, part="")} == {"DMA"}, cells(result))
    both = [row["part"] for row in cells(result) if row["testcase"] == "host_to_device_bidirectional_dma"]
    check(sorted(set(both)) == ["", "opposite", "total"], both)
    _, result = with_file("-t", "host_to_device_dma", *QUICK, "--no-judge", "--host-memory", "pageable", code=5)
    check("only supports pinned memory" in tests(result)["host_to_device_dma"]["reason"], tests(result))
    listed = expect_code(run("-l", name="nvbandwidth"), 0).stdout
    check("_dma" not in listed, "the original's list stays the original's")
    _, result = with_file("--transfer", "H -> [dma:4] -> G0 x 1M, G0 -> [dma] -> H x 1M", *QUICK, "--no-judge")
    check([row["executor_width"] for row in cells(result, part="")] == [4, 0], cells(result))


def unknown_testcase():
    done, result = with_file("-t", "no_such_test", "0", *QUICK, "--no-judge", code=2)
    check("no such testcase" in done.stdout, done.stdout)
    check(tests(result)["host_to_device_memcpy_ce"]["state"] == "passed", tests(result))


def waived_only():
    _, result = with_file("-t", "device_to_device_memcpy_read_ce", *QUICK, code=5, PEERLANE_SIM_DEVICES="1")
    check("needs two GPUs" in tests(result)["device_to_device_memcpy_read_ce"]["reason"], tests(result))


def usage():
    for arguments in (["--no-such-option"], ["-b", "0"], ["-t", "0", "-p", "host"], ["-p", "nonsense"],
                      ["--baseline", "/nonexistent.json"], ["--jsonl", "/nonexistent/x"], ["--threshold", "x"], ["--csv", "-"], ["--jsonl", "-"]):
        done = expect_code(run(*arguments), 1)
        check("peerlane bandwidth:" in done.stderr, done.stderr)
    check("--size-sweep" in expect_code(run("-h"), 0).stdout, "help")
    check("69, host_device_latency:" in expect_code(run("-l"), 0).stdout, "list")


def baseline():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "old.json")
        # One sample: of two on a busy machine the confidence interval may be wider than any difference.
        arguments = ["-t", "0", "-b", "64K", "-i", "1", "--loopCount", "2", "--no-judge"]
        expect_code(run(*arguments, "--json", path), 0)
        with open(path, encoding="utf-8") as file:
            old = json.load(file)
        for factor, code in ((100, 3), (1e-5, 0)):
            for row in old["rows"]:
                if row["kind"] == "cell":
                    row["median"], row["mean"], row["ci95"] = row["median"] * factor, row["mean"] * factor, 0
            with open(path, "w", encoding="utf-8") as file:
                json.dump(old, file)
            # A simulated GPU's rates jump: the earlier run is made far better, then far worse.
            done, now = with_file(*arguments, "--baseline", path, "--threshold", "50", code=code)
            check({row["baseline_verdict"] for row in cells(now)} == {"slow" if code else "fast"}, cells(now))
            check("baseline (" in done.stdout, done.stdout)


def judged():
    """A link that trained down makes the rate low, with the link as the reason."""
    links = {"PEERLANE_SIM_LINKS": "pcie=3x8/5x16,hbm=5120@2619,numa=0", "PEERLANE_SIM_RATES": "h2d=2,d2h=2"}
    _, result = with_file("-t", "0", "-b", "1M", "-i", "2", code=3, **links)
    check({row["verdict"] for row in cells(result)} == {"low"}, cells(result))
    check(all("PCIe 3.0 x8" in row["verdict_reason"] for row in cells(result)), cells(result))
    check(tests(result)["host_to_device_memcpy_ce"]["state"] == "slow", tests(result))
    expect_code(run("-t", "0", "-b", "1M", "-i", "2", "--no-judge", **links), 0)
    expect_code(run("-t", "0", "-b", "1", "-i", "2", name="nvbandwidth", **links), 0)
    expect_code(run("-t", "0", "-b", "1", "-i", "2", "--threshold", "10", name="nvbandwidth", **links), 3)


def files():
    with tempfile.TemporaryDirectory() as folder:
        table, lines = os.path.join(folder, "x.csv"), os.path.join(folder, "x.jsonl")
        expect_code(run("-t", "0", "2", *QUICK, "--no-judge", "--csv", table, "--jsonl", lines), 0)
        with open(table, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        check(rows and all(row["testcase"] and row["bytes"] == "65536" for row in rows), rows)
        with open(lines, encoding="utf-8") as file:
            objects = [json.loads(line) for line in file]
        check(len([o for o in objects if o["kind"] == "cell"]) == len(rows), objects)
        check(len([o for o in objects if o["kind"] == "testcase"]) == 2, objects)
        check(all("samples" in o for o in objects if o["kind"] == "cell"), objects)


def json_to_stdout():
    done = expect_code(run("-t", "0", *QUICK, "--no-judge", "-j"), 0)
    check(json.loads(done.stdout)["tool"] == "bandwidth", done.stdout[:200])
    check("host_to_device_memcpy_ce" in done.stderr, done.stderr)


def schema():
    try:
        import jsonschema
    except ImportError:
        print(SKIPPED, "jsonschema is not installed for", sys.executable, "(apt-get install python3-jsonschema)")
        return
    with open(SCHEMA, encoding="utf-8") as file:
        rules = json.load(file)
    jsonschema.Draft202012Validator.check_schema(rules)
    for arguments, code in ((["-t", "0", "2", "4", "32", "34", "no_such_test"], 2), (["--transfer", "H -> G0"], 0)):
        _, result = with_file(*arguments, *QUICK, "--no-judge", code=code, PEERLANE_SIM_DEVICES="2")
        jsonschema.validate(result, rules, cls=jsonschema.Draft202012Validator)


def interrupt():
    with tempfile.TemporaryDirectory() as folder:
        path, lines = os.path.join(folder, "result.json"), os.path.join(folder, "x.jsonl")
        command = [os.path.join(OUT, "peerlane"), "bandwidth", "-p", "host_to", "device_to_host", "-b", "256K", "-i", "500",
                   "--no-judge", "--json", path, "--jsonl", lines]
        with subprocess.Popen(command, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 100
            while not (os.path.exists(lines) and os.path.getsize(lines) > 0) and time.monotonic() < deadline:
                check(process.poll() is None, "ended by itself", process.returncode)
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=100)
        check(process.returncode == 4, process.returncode, out[-500:], err[-500:])
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        check(result["parameters"]["interrupted"] is True and result["passed"] is False, result["parameters"])
        check([row for row in cells(result) if row["state"] == "measured"], "nothing that was measured is in the file")


# ---- under the original's name ---------------------------------------------------------------------------------------------


def compat_text():
    done = expect_code(run("-t", "0", "38", *QUICK, name="nvbandwidth"), 0)
    lines = done.stdout.splitlines()
    check(lines[0] == SIM_HEADER and lines[1] == "nvbandwidth Version: v0.10.0", lines[:3])
    check(re.fullmatch(r"Built from Git version: peerlane-\S+", lines[2]), lines[2])
    check("Running host_to_device_memcpy_ce." in lines, done.stdout)
    start = lines.index("Running host_to_device_memcpy_ce.")
    check(lines[start + 1] == "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", lines[start + 1])
    check(re.fullmatch(r" {2}( {9}\d)+", lines[start + 2]), lines[start + 2])
    check(re.fullmatch(r" 0( *\d+\.\d\d)+", lines[start + 3]), lines[start + 3])
    check(re.fullmatch(r"SUM host_to_device_memcpy_ce \d+\.\d\d", lines[start + 5]), lines[start + 5])
    check(re.fullmatch(r"COEFFICIENT_OF_VARIATION host_to_device_memcpy_ce \d+\.\d\d", lines[start + 6]), lines[start + 6])
    check("memcpy local GPU(column) bandwidth (GB/s)" in lines, done.stdout)
    check(expect_code(run("--version", name="nvbandwidth"), 0).stdout.startswith("nvbandwidth Version: v0.10.0\n"), "--version")


def compat_of_2026():
    """What 0.9 and 0.10 of the original added: options, testcases, outputs."""
    several = expect_code(run("-t", "34", "device_local_read_sm", "-t", "41", "43", *QUICK, name="nvbandwidth"), 0).stdout
    names = re.findall(r"^Running (\S+)\.$", several, re.M)
    check(names == ["device_to_device_memcpy_read_tma", "device_local_read_sm", "device_local_write_sm",
                    "device_local_copy_tma"], names)
    check("ERROR" not in several, several)
    perf = expect_code(run("-t", "38", *QUICK, "-F", "perf", name="nvbandwidth"), 0).stdout
    check("&&&& PERF device_local_copy " in perf, perf)
    root = json.loads(expect_code(run("-t", "38", *QUICK, "-H", "--format", "json", name="nvbandwidth"), 0).stdout)
    check(root["nvbandwidth"]["testcases"][0]["coefficient_of_variation"] >= 0, root)
    done = expect_code(run("-t", "38", *QUICK, "--format", "xml", name="nvbandwidth"), 1)
    check("not one of text, json, perf" in done.stdout, done.stdout)

    unknown = expect_code(run("-t", "4", *QUICK, "--pair", "GPU-0", "GPU-1", name="nvbandwidth", PEERLANE_SIM_DEVICES="3"), 1)
    uuids = re.findall(r"GPU-[0-9a-f-]{36}", unknown.stderr)
    check(len(set(uuids)) == 3, unknown.stderr)
    pair = expect_code(run("-t", "4", *QUICK, "--pair", uuids[0], uuids[2], name="nvbandwidth", PEERLANE_SIM_DEVICES="3"), 0)
    rows = [line.split() for line in pair.stdout.splitlines() if re.match(r"^ \d( +\S+){3}$", line)]
    measured = {(r, c) for r, row in enumerate(rows) for c, cell in enumerate(row[1:]) if cell != "N/A"}
    check(measured == {(0, 2), (2, 0)}, pair.stdout)
    done = expect_code(run("-t", "0", *QUICK, "-P", "2", name="nvbandwidth"), 0)
    check("--targetNumPairs is for tests of several processes" in done.stderr, done.stderr)


def confidential():
    """Tests that need host memory which GPU and CPU share are waived, and say why; copy engines are not."""
    done = expect_code(run("-t", "0", "16", "32", *QUICK, name="nvbandwidth", PEERLANE_SIM_MODE="confidential"), 0)
    check("Running host_to_device_memcpy_ce." in done.stdout, done.stdout)
    for key in ("host_to_device_memcpy_sm", "host_device_latency_sm"):
        check(f"Waived: {key}: confidential computing is on (NVML)" in done.stdout, done.stdout)


def compat_codes():
    expect_code(run("-t", "no_such_test", *QUICK, name="nvbandwidth"), 0)
    done = expect_code(run("--no-such-option", name="nvbandwidth"), 1)
    check("ERROR: Invalid Arguments" in done.stdout, done.stdout)
    done = expect_code(run("-t", "4", *QUICK, name="nvbandwidth", PEERLANE_SIM_DEVICES="1"), 0)
    check("Waived: device_to_device_memcpy_read_ce: needs two GPUs, 1 is visible\n" in done.stdout, done.stdout)
    listed = expect_code(run("-l", name="nvbandwidth"), 0).stdout
    check("38, device_local_copy:" in listed and "56, " in listed and "57, " not in listed, "list", listed)
    check(expect_code(run("-l", "-j", name="nvbandwidth"), 0).stdout == "", "-l -j prints nothing")
    # Beginnings of the original's options, whatever other options Peerlane has; flags in one word: its -j has no value.
    for words in (["--js", "--b", "1"], ["-vjb1"], ["-sjb1"], ["--sk", "-jb1"]):
        done = expect_code(run("-t", "38", *words, "-i", "1", name="nvbandwidth"), 0)
        check("testcases" in json.loads(done.stdout)["nvbandwidth"], words, done.stdout)
    refused = expect_code(run("-t", "38", "--test", "1", name="nvbandwidth"), 1)
    check("ERROR: Invalid Arguments" in refused.stdout, refused.stdout)


def compat_json():
    done = expect_code(run("-t", "0", "6", "-j", "-v", *QUICK, name="nvbandwidth", PEERLANE_SIM_DEVICES="2"), 0)
    root = json.loads(done.stdout)["nvbandwidth"]
    check(root["testcases"][0]["status"] == "Passed" and isinstance(root["testcases"][0]["bandwidth_matrix"][0][0], str), root)
    check(len(root["testcases"][1]["bandwidth_matrix"]) == 6, root["testcases"][1])
    check(done.stdout.startswith('{\n   "nvbandwidth" : \n   {\n      "CUDA Runtime Version" : '), done.stdout[:100])


def compat_bugs():
    done = expect_code(run("-t", "5", "7", "19", "29", *QUICK, "-v", "--compat-bugs", PEERLANE_SIM_DEVICES="2"), 0)
    check("memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)" in done.stdout, done.stdout)
    check("MIN device_to_device_memcpy_write_ce 0.00" in done.stdout, done.stdout)


def main():
    global OUT, SCHEMA
    OUT, SCHEMA, case = sys.argv[1:4]
    globals()[case]()


if __name__ == "__main__":
    main()
