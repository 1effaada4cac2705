# SPDX-License-Identifier: Apache-2.0
"""Makes a report from result files: a section for each file, comparisons of files that measured the same, and the machines."""

import re

from . import compare, files, view_channels, view_checks, view_copy, view_foundation, view_links, view_messages, view_store, words
from .model import Facts, Log, Notice, Report, Section, Table

VIEWS = {"apiperf": view_foundation.apiperf, "async": view_messages.streams, "bandwidth": view_links.blocks, "blocks": view_channels.blocks,
         "calibrate": view_copy.calibrate, "copy": view_copy.blocks, "copybw": view_foundation.copybw, "copylat": view_foundation.copylat,
         "demo": view_checks.demo, "device_put_bench": view_channels.by_kind,
         "dma_bench": view_copy.dma_bench, "dma_barrier_bench": view_channels.by_kind, "device_neighbor_bench": view_channels.by_kind,
         "dma_order_bench": view_channels.by_kind, "dma_engines_bench": view_channels.by_kind,
         "kv_cache": view_channels.by_kind, "weights": view_channels.by_kind, "matching_bench": view_channels.by_kind, "several_gpus_bench": view_channels.by_kind, "between_hosts_bench": view_channels.by_kind,
         "nixl_bench": view_channels.by_kind, "prefill_decode": view_channels.by_kind,
         **dict.fromkeys(("both_ways_bench", "device_peer_bench", "device_remote_bench", "device_turns_bench", "dma_peer_bench", "dma_submit_bench", "dma_urgent_bench", "host_pool_bench"),
                         view_channels.by_kind),
         "dma_planner_bench": view_copy.dma_planner_bench, "doctor": view_checks.doctor, "env": view_checks.env, "eviction_bench": view_channels.by_kind,
         "explain-copy": view_copy.explain,
         "gate": view_checks.gate, "gate_false_alarms": view_checks.gate_false_alarms,
         "info": view_checks.info, "p2p": view_messages.p2p, "pplat": view_foundation.pplat, "sanity": view_checks.sanity,
         "soak": view_checks.soak,
         "store gpu-direct-demo": view_store.demo, "store perf": view_store.perf, "store_batch_engine_bench": view_channels.by_kind, "store_batch_bench": view_channels.by_kind, "store_bench": view_store.bench, "store_compare": view_store.rivals, "store_scale_bench": view_channels.by_kind,
         "python_cost": view_foundation.python_cost, "topo": view_checks.topo}

# Escape sequences for terminal colours, which are removed.
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def anchor(label):
    return re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-").lower() or "file"


def build(results, texts, title):
    """Returns the whole report. It raises nothing for well-formed files: the rows of an unknown tool become a table."""
    machines = list_machines(results)
    comparisons = compare.sections(results)
    sections = [section(result, machines) for result in results]
    if texts:
        sections.append(Section("texts", "Texts", "shown as they are", blocks=[Log(t.label, COLOURS.sub("", t.text)) for t in texts]))
    # With two files, the reader wants the comparison first; with more, the results.
    report = Report(title, comparisons + sections if len(results) <= 2 else sections + comparisons)
    report.facts = machine_blocks(machines)
    report.summary = overview(results)
    return report


def overview(results):
    dates = sorted(r.machine.get("utc_date", "") for r in results if words.known(r.machine.get("utc_date")))
    out = [f"{words.plural(len(results), 'result file')}" + (f", measured {dates[0][:10]}" if dates else "") +
           (f" to {dates[-1][:10]}" if dates and dates[-1][:10] != dates[0][:10] else "") + "."]
    failed = [r.label for r in results if not r.passed]
    if failed:
        out.append(f"Not passed: {', '.join(failed)}.")
    simulated = [r.label for r in results if r.simulated]
    if simulated:
        out.append(f"Made on the simulated GPU, so no time in it is a GPU's: {', '.join(simulated)}.")
    return out


# ---- Sections ----------------------------------------------------------------------------------------------------------


def section(result, machines):
    blocks, summary = view_of(result)
    out = Section(anchor(result.label), f"{files.TOOLS[result.tool]}: {result.label}", summary=summary)
    if result.simulated:
        out.state = "simulated"
        out.blocks.append(Notice("Made on the simulated GPU: no time here is a GPU's.", "note"))
    elif not result.passed:
        out.state = "failed"
        out.blocks.append(Notice("A check or comparison failed (the exit code was not 0).", "bad"))
    out.blocks += [Notice(note) for note in result.notes if isinstance(note, str)]
    out.blocks += blocks
    out.blocks.append(Facts("How it was made", provenance(result, machines), quiet=True))
    out.blocks += [Log(f"Text of the run ({t.path.name})", COLOURS.sub("", t.text)) for t in result.logs]
    out.subtitle = machine_name(result.machine)
    return out


def view_of(result):
    """Returns the blocks and sentences of the tool's view; a table of the rows if the file lacks fields that the view needs."""
    try:
        blocks, summary = VIEWS[result.tool](result)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, AttributeError) as error:
        return [Notice(f"These rows are not laid out as this program knows them ({type(error).__name__}: {error}); shown as they are."),
                raw_table(result.rows)], [f"{words.plural(len(result.rows), 'row')}, shown as they are."]
    if not blocks and result.rows:
        return [raw_table(result.rows)], [f"{words.plural(len(result.rows), 'row')}."]
    return blocks, summary


def raw_table(rows, limit=500):
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[shown(row.get(c)) for c in columns] for row in rows[:limit]]
    note = f"The first {limit} of {len(rows)} rows." if len(rows) > limit else ""
    return Table("Rows", columns, lines, "<" * len(columns), folded=len(rows) > 20, note=note)


def shown(value):
    if isinstance(value, float):
        return words.rounded(value, 5)
    return "" if value is None else str(value)


def provenance(result, machines):
    position = next(i for i, (_, labels) in enumerate(machines) if result.label in labels)
    items = [("file", str(result.path)), ("command", " ".join(quoted(w) for w in map(str, result.command_line))),
             ("machine", f"{chr(ord('A') + position % 26)}{position // 26 or ''}: {machine_name(result.machine)}"),
             ("date", result.machine.get("utc_date", "")), ("revision", result.machine.get("git_revision", "")),
             ("backend", result.machine.get("backend", ""))]
    items += [(name, shown(value) if not isinstance(value, list) else shortened(value)) for name, value in result.parameters.items()]
    return [(name, value) for name, value in items if words.known(value)]


def shortened(values):
    text = ", ".join(shown(v) for v in values[:8])
    return f"{text}, ... ({len(values)})" if len(values) > 8 else text


def quoted(word):
    return word if re.fullmatch(r"[\w@%+=:,./-]+", word) else "'" + word.replace("'", "'\\''") + "'"


# ---- Machines ------------------------------------------------------------------------------------------------------------

SAME_MACHINE = ("gpu_name", "gpu_count", "cpu_model", "cpu_count", "driver_version", "driver_flavor", "cuda_version", "kernel", "simulated")
MACHINE_LINES = (("GPU", ("gpu_count", "gpu_name"), "{} × {}"), ("GPU clocks", ("gpu_sm_clock_mhz", "gpu_memory_clock_mhz"), "{} MHz, memory {} MHz"),
                 ("CPU", ("cpu_count", "cpu_model"), "{} × {}"), ("CPUs used", ("cpus",), "{}"),
                 ("driver", ("driver_version", "driver_flavor"), "{} ({})"), ("CUDA", ("cuda_version",), "{}"), ("kernel", ("kernel",), "{}"),
                 ("backend", ("backend",), "{}"), ("CPU copies", ("copy_to_device", "copy_to_host"), "writes {}, reads {}"),
                 ("Peerlane", ("peerlane_version",), "{}"))


def machine_name(machine):
    if machine.get("simulated") is True:
        return "simulated GPU"
    name = machine.get("gpu_name", "")
    count = machine.get("gpu_count", -1)
    if not words.known(name):
        cpu = machine.get("cpu_model", "")
        return cpu if words.known(cpu) else "machine not told"
    return f"{count} × {name}" if isinstance(count, int) and count > 1 else name


def same_machine(one, other):
    """By what both tell: a run that used no GPU does not know its name."""
    return all(one.get(k) == other.get(k) or not words.known(one.get(k)) or not words.known(other.get(k)) for k in SAME_MACHINE)


def list_machines(results):
    """[(machine, labels of the files made there)]; files that name no GPU come last, so that they find one that does."""
    out: list = []
    for result in sorted(results, key=lambda r: not words.known(r.machine.get("gpu_name"))):
        home = next((entry for entry in out if same_machine(entry[0], result.machine)), None)
        if home is None:
            out.append((dict(result.machine), [result.label]))
        else:
            home[0].update((k, v) for k, v in result.machine.items() if not words.known(home[0].get(k)))
            home[1].append(result.label)
    return out


def machine_blocks(machines):
    out = []
    for number, (machine, labels) in enumerate(machines):
        described = dict(machine, cuda_version=cuda_words(machine.get("cuda_version")))
        items = [(word, pattern.format(*(described[key] for key in keys))) for word, keys, pattern in MACHINE_LINES
                 if all(words.known(described.get(key)) for key in keys)]
        items.append(("files", ", ".join(labels) if len(labels) <= 6 else f"{len(labels)}"))
        letter = f"{chr(ord('A') + number % 26)}{number // 26 or ''}"
        out.append(Facts(f"Machine {letter}: {machine_name(machine)}", items))
    return out


def cuda_words(version):
    return f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) and version > 0 else words.UNKNOWN
