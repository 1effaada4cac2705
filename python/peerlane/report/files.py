# SPDX-License-Identifier: Apache-2.0
"""Reads result files (docs/results.md) and refuses everything else with a sentence that says why."""

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = "peerlane-result/1"
LARGEST_FILE_BYTES = 256 << 20
LARGEST_TEXT_BYTES = 256 << 10
LARGEST_NUMBER = 1e100   # sums of squares stay finite
SMALLEST_NUMBER = 1e-100  # and so do ratios
OBJECTS = ("machine", "parameters", "units")
LISTS = ("command_line", "notes", "rows", "samples")

# Every tool that writes result files (docs/results.md, "Rows by tool"), with its title in a report. A name that is not here is newer
# than this program.
TOOLS = {"apiperf": "Cost of mapping calls", "async": "Streams that signal each other", "bandwidth": "Links", "blocks": "Scattered blocks",
         "calibrate": "Calibration of the copy planner", "copy": "Copies", "copybw": "Bandwidth of CPU copies",
         "copylat": "Latency of CPU copies", "demo": "Everything in short", "device_put_bench": "Transfers that kernels start",
         "dma_bench": "DMA channels", "dma_barrier_bench": "What makes bytes arrive first", "device_neighbor_bench": "Puts into another process", "dma_engines_bench": "Scattered blocks by copy engines", "kv_cache": "Pages of a KV cache",
         "weights": "Weights of files", "dma_order_bench": "Bytes behind their completion words",
         "dma_peer_bench": "DMA channels between GPUs", "dma_planner_bench": "Copies by DMA channel",
         "dma_submit_bench": "What a submission costs", "dma_urgent_bench": "Short lists beside long ones",
         "device_peer_bench": "Kernels that put into another GPU", "device_remote_bench": "Kernels that put into another process, as between hosts", "device_turns_bench": "Rings that share an engine", "both_ways_bench": "Copy kernels of both directions",
         "host_pool_bench": "Host pools while they are pinned", "doctor": "Doctor",
         "env": "Environment", "eviction_bench": "Which value leaves a cache first", "explain-copy": "Why a copy goes its way", "gate": "Fit for a job",
         "gate_false_alarms": "False alarms of the gate", "info": "This machine", "matching_bench": "Matching of messages", "nixl_bench": "NIXL transfers", "p2p": "Messages",
         "prefill_decode": "A cache from prefill to decode", "several_gpus_bench": "Several GPUs of a process", "between_hosts_bench": "Proxies between hosts",
         "pplat": "CPU and kernel in turns", "sanity": "Correctness", "soak": "Random load and faults",
         "store gpu-direct-demo": "GPU memory and the store", "store perf": "The store's operations",
         "store_batch_engine_bench": "Many values by one call", "store_batch_bench": "Batches of the store from a client", "store_bench": "The store's engine", "store_compare": "The store and its rivals", "store_scale_bench": "Many small keys", "python_cost": "Calls from Python",
         "topo": "Topology"}


class Refused(Exception):
    """The file is not a result file; the message says why."""


@dataclass
class Result:
    """One result file. `label`: a short name that is unique in the report."""

    path: Path
    tool: str
    command_line: list
    simulated: bool
    passed: bool
    machine: dict
    parameters: dict
    units: dict
    notes: list
    rows: list
    samples: list
    label: str = ""
    logs: list = field(default_factory=list)  # texts of the same run

    def rows_of(self, kind):
        return [row for row in self.rows if row.get("kind", "") == kind]

    def samples_of(self, series):
        """Returns the raw samples of a series in ns or GB/s, or None."""
        for one in self.samples:
            if one.get("series") == series:
                return one.get("samples_ns") or one.get("samples_gb_per_s")
        return None


@dataclass
class Text:
    """A text file that is shown unchanged beside the results."""

    path: Path
    text: str
    label: str = ""


def read(path):
    """Returns a Result, or a Text if the name ends in .txt. Raises Refused."""
    path = Path(path)
    try:
        data = content(path, LARGEST_TEXT_BYTES if path.suffix == ".txt" else LARGEST_FILE_BYTES).decode("utf-8")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: not UTF-8 text (byte {error.start})") from error
    return Text(path, plain(path, data)) if path.suffix == ".txt" else parse(path, data)


def content(path, limit):
    """Returns the bytes of a file. A pipe that nobody writes to is empty: opening it does not wait for a writer."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        state = os.fstat(file.fileno())
        if stat.S_ISDIR(state.st_mode):
            raise Refused(f"{path}: a folder; give the files in it")
        os.set_blocking(file.fileno(), True)
        data = file.read(limit + 1) if state.st_size <= limit else b""
    size = max(state.st_size, len(data))
    if size > limit:
        raise Refused(f"{path}: {f'{size} bytes' if stat.S_ISREG(state.st_mode) else 'it does not end'}; at most {limit} bytes are read")
    if not data.strip():
        raise Refused(f"{path}: empty")
    return data


def plain(path, data):
    bad = next((c for c in data if ord(c) < 32 and c not in "\n\t\r\f\x1b"), None)
    if bad is not None:
        raise Refused(f"{path}: not plain text (character {ord(bad)})")
    return data


def no_constant(word):
    raise Refused(f"{word} is no JSON")


def number(kind):
    """Returns what reads numbers of a kind, within the limits that every result has."""
    def read_number(text):
        value = kind(text) if len(text) < 400 else float("inf")
        if abs(value) > LARGEST_NUMBER:
            raise Refused(f"{text[:20]}{'...' if len(text) > 20 else ''} is larger than any number of a result")
        return value if value == 0 or abs(value) >= SMALLEST_NUMBER else kind(0)
    return read_number


def parse(path, data):
    try:
        body = json.loads(data, parse_constant=no_constant, parse_int=number(int), parse_float=number(float))
    except Refused as error:
        raise Refused(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(f"{path}: not a result file: JSON, but not an object")
    schema = body.get("schema")
    if schema != SCHEMA:
        if isinstance(schema, str) and schema.startswith("peerlane-result/"):
            raise Refused(f'{path}: schema "{schema}": this program reads {SCHEMA}')
        if "nvbandwidth" in body:
            raise Refused(f"{path}: nvbandwidth's own JSON; `peerlane bandwidth --json FILE` writes what this reads")
        raise Refused(f'{path}: not a result file: "schema" is not "{SCHEMA}"')
    tool = body.get("tool")
    if not isinstance(tool, str) or tool not in TOOLS:
        raise Refused(f'{path}: tool "{tool}" is not known to this program; known: {", ".join(TOOLS)}')
    check_shape(path, body)
    return Result(path=path, tool=tool, command_line=body["command_line"], simulated=body["simulated"], passed=body["passed"],
                  machine=description(body["machine"]), parameters=body["parameters"], units=body["units"], notes=body["notes"],
                  rows=body["rows"], samples=body["samples"])


def description(machine):
    """Keeps only values of the expected type (number, text or bool); replaces the others by "unknown"."""
    numbers = ("cpu_count", "cpu_clock_mhz", "gpu_count", "gpu_sm_clock_mhz", "gpu_memory_clock_mhz", "cuda_version")
    right = lambda k, v: isinstance(v, bool) if k == "simulated" else isinstance(v, (int, float)) if k in numbers else isinstance(v, str)  # noqa: E731
    return {k: v if right(k, v) else "unknown" for k, v in machine.items()}


def check_shape(path, body):
    for name, kind in [(n, dict) for n in OBJECTS] + [(n, list) for n in LISTS] + [("simulated", bool), ("passed", bool)]:
        if not isinstance(body.get(name), kind):
            raise Refused(f'{path}: not a whole result file: "{name}" is missing or of another type')
    for place, row in enumerate(body["rows"]):
        if not isinstance(row, dict):
            raise Refused(f'{path}: "rows"[{place}] is not an object')
    for place, one in enumerate(body["samples"]):
        if not isinstance(one, dict) or not isinstance(one.get("series"), str):
            raise Refused(f'{path}: "samples"[{place}] has no series')
        for name in ("samples_ns", "samples_gb_per_s"):
            values = one.get(name, [])
            if not isinstance(values, list) or not all(type(v) in (int, float) for v in values):
                raise Refused(f'{path}: "samples"[{place}]: "{name}" is not a list of numbers')


def label_all(items):
    """Returns the shortest unique names of the files: as many of their last path components as needed."""
    depth = 1
    names = [i.path.with_suffix("").parts if isinstance(i, Result) else i.path.parts for i in items]
    while depth < 8:
        labels = ["/".join(parts[-depth:]) for parts in names]
        if len(set(labels)) == len(labels):
            break
        depth += 1
    for item, label in zip(items, labels if items else ()):
        item.label = label


def attach_logs(items):
    """Attaches each text to the result with the same stem in the same folder. Returns (results, texts without a result)."""
    results = [i for i in items if isinstance(i, Result)]
    by_stem = {r.path.with_suffix(""): r for r in results}
    alone = []
    for text in (i for i in items if isinstance(i, Text)):
        owner = by_stem.get(text.path.with_suffix(""))
        if owner is not None:
            owner.logs.append(text)
        else:
            alone.append(text)
    return results, alone
