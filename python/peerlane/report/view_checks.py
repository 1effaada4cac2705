# SPDX-License-Identifier: Apache-2.0
"""`sanity`, `doctor`, `info`, `env`, `demo`: findings rather than curves."""

from . import words
from .model import Notice, Picture, Table
from .topology import draw
from .view_copy import capital, groups
from .view_foundation import copylat, pplat

LEVELS = {"ok": "ok", "note": "note", "BLOCKER": "bad"}


def sanity(result):
    rows = result.rows
    failed = [r for r in rows if outcome(r) == "FAILED"]
    out: list = [Notice(f"{r['case']} failed: {r.get('reason', '')}", "bad") for r in failed]
    out.append(Table("Cases", ["case", "outcome", "what it asserts, or why it was waived", "seconds"],
                     [[r["case"], outcome(r), r.get("reason") or r.get("asserts", ""), words.rounded(r.get("seconds"))] for r in rows], "<<<>",
                     folded=len(rows) > 12))
    count = groups(rows, outcome)
    return out, ["Cases: " + ", ".join(f"{len(some)} {name.lower()}" for name, some in count.items()) + "."]


def outcome(row):
    if "outcome" in row:
        return row["outcome"]
    return "WAIVED" if row.get("waived") else "PASSED" if row.get("passed") else "FAILED"


def doctor(result):
    return findings(result.rows)


def gate(result):
    rows = [r for r in result.rows if r.get("kind") == "finding"]
    table = Table("Checks", ["state", "check", "GPU", "why", "GB/s", "at least"],
                  [[r["state"], r["check"], str(r["gpu"]) if r["gpu"] >= 0 else "–", r["reason"], words.rounded(r["value"] or None),
                    words.rounded(r["limit"] or None)] for r in rows], "<<><>>")
    verdict = result.parameters.get("verdict", "")
    bad = [Notice(verdict, "bad")] if verdict.startswith("unfit") else []
    return [*bad, table], [capital(verdict) + "."]


def gate_false_alarms(result):
    table = Table("Machines", ["machine", "runs", "called unfit", "by this check first", "what the gate said"],
                  [[r["machine"], str(r["runs"]), str(r["unfit"]), ", ".join(r["checks"]), r["example"]] for r in result.rows], "<>><<")
    return [table], [f"{r['machine']}: {r['unfit']} of {r['runs']} runs called unfit." for r in result.rows[:1]]


def findings(rows):
    order = {"BLOCKER": 0, "note": 1, "ok": 2}
    table = Table("Findings", ["level", "subject", "what", "fix"],
                  [[r["level"], r["subject"], r["what"], r["fix"]] for r in sorted(rows, key=lambda r: order.get(r["level"], 3))], "<<<<")
    count = groups(rows, lambda r: r["level"])
    return [table], ["Findings: " + ", ".join(f"{len(count[k])} {k}" for k in order if k in count) + "."]


def info(result):
    gpus, backends = result.rows_of("gpu"), result.rows_of("backend")
    out = []
    if gpus:
        devices = [{"label": f"GPU{r['ordinal']}", "name": r["name"], "bus_id": r["bus_id"], "numa_node": r.get("numa_node", -1),
                    "cpus": r.get("near_cpus", words.UNKNOWN), "pcie": r.get("pcie_link", "").split(" now")[0].replace("gen", "PCIe gen")} for r in gpus]
        out.append(picture("GPUs of this machine", devices, {}))
        out.append(Table("GPUs", ["GPU", "bus id", "memory", "BAR1", "PCIe", "CPUs near by", "NUMA node"],
                         [[r["name"], r["bus_id"], gib(r.get("memory_bytes")), gib(r.get("bar1_bytes")), r.get("pcie_link", "–"),
                           r.get("near_cpus", "–"), str(r["numa_node"]) if r.get("numa_node", -1) >= 0 else "–"] for r in gpus], "<<>><<>"))
    if backends:
        out.append(Table("Ways to map GPU memory", ["backend", "usable", "why not"],
                         [[r["name"], "yes" if r["usable"] else "no", r["reason"]] for r in backends], "<<<"))
    usable = next((r["name"] for r in backends if r["usable"]), None)
    return out, [f"{words.plural(len(gpus), 'GPU')}; mapping backend: {usable or 'none'}."]


def gib(count):
    return f"{words.rounded(count / (1 << 30), 4)} GiB" if words.known(count) else "–"


def env(result):
    rows = result.rows
    problems = [Notice(f"{r['variable']}: {r['problem']}", "bad") for r in rows if r.get("problem")]
    head, columns = ["variable", "value", "default", "meaning"], ("variable", "value", "default", "meaning")
    lines = lambda some: [[str(r.get(c, "")) for c in columns] for r in some]  # noqa: E731
    given = [r for r in rows if r["is_set"]]
    out = problems + ([Table("Variables that are set", head, lines(given), "<<<<")] if given else [])
    out.append(Table("All variables", head, lines(rows), "<<<<", folded=True))
    return out, [f"{len(given)} of {len(rows)} variables are set."]


def demo(result):
    """A file that contains short results of all other commands."""
    steps = result.rows_of("step")
    out = [Table("Steps", ["step", "result", "what", "seconds"],
                 [[r["step"], r["result"], r["text"], words.rounded(r["seconds"])] for r in steps], "<<<>")]
    more, _ = info(result)
    out += more
    part = Part(result)
    curves, summary = copylat(part.with_rows(result.rows_of("")))
    out += curves
    trips = [dict(r, mode="cpu_produces", to_gpu_flag="gpumem", to_cpu_flag="hostmem", mismatched_words=0) for r in result.rows_of("round_trip")]
    trip_blocks, trip_summary = pplat(part.with_rows(trips))
    checks, _ = sanity(part.with_rows(result.rows_of("sanity")))
    done = "; ".join(f"{r['step']}: {r['result']}" for r in steps)
    return out + trip_blocks + checks, [f"Steps. {capital(done)}."] + summary + trip_summary


class Part:
    """Some rows of a result, with its samples."""

    def __init__(self, result):
        self.samples_of = result.samples_of
        self.rows = []

    def with_rows(self, rows):
        self.rows = rows
        return self

    def rows_of(self, kind):
        return [r for r in self.rows if r.get("kind", "") == kind]


def soak(result):
    """The load and faults of a random run, and every broken promise that it found."""
    broken = result.rows_of("violation")
    out: list = [Notice(f"{r['part']}: {r['text']}", "bad") for r in broken]
    counts = result.rows_of("count")
    for part in dict.fromkeys(r["part"] for r in counts):
        out.append(Table(capital(part), ["what", "times"], [[r["what"], f"{r['count']:,}"] for r in counts if r["part"] == part], "<>"))
    given = ", ".join(f"{name} {value}" for name, value in result.parameters.items())
    return out, [(f"{words.plural(len(broken), 'broken promise')}" if broken else "Nothing broken") + f" ({given})."]


# ---- topo ------------------------------------------------------------------------------------------------------------


def topo(result):
    devices = result.rows_of("device")
    relations = {(r["from"], r["to"]): r["relation"] for r in result.rows_of("relation")}
    out = [picture("Topology", [with_pcie(d) for d in devices], relations)] if devices else []
    labels = [d["label"] for d in devices]
    out.append(Table("Distances", [""] + labels, [[a] + [relations.get((a, b), "") for b in labels] for a in labels], "<" * (1 + len(labels)),
                     folded=True, note="NV#: so many NVLinks; PIX, PXB: below one bridge; PHB: one host bridge; NODE: one NUMA node; SYS: across nodes."))
    advice = result.rows_of("advice")
    if advice:
        out.append(Table("Advice", ["what"], [[r["text"]] for r in advice], "<"))
    lines = result.rows_of("line")
    if lines:
        out.append(Table("Lines to use", ["for", "rank", "line"],
                         [[r["stack"], "all" if r["rank"] < 0 else str(r["rank"]), r["text"]] for r in lines], "<><", folded=True))
    checks, summary = findings(result.rows_of("check"))
    gpus = sum(d["label"].startswith("GPU") for d in devices)
    return out + checks, [f"{words.plural(gpus, 'GPU')}, {words.plural(len(devices) - gpus, 'network device')}."] + summary


def with_pcie(device):
    rate, width = device.get("path_gt_per_s", 0), device.get("path_width", 0)
    return dict(device, pcie=f"PCIe {words.rounded(rate)} GT/s x{width}" if width else "")


def picture(title, devices, relations):
    svg, sentences = draw(devices, relations)
    return Picture(title, svg, sentences)
