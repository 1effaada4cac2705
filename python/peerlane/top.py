# SPDX-License-Identifier: Apache-2.0
"""`peerlane top`: what running Peerlane processes do, live in a terminal, from their statistics in shared memory.

    PEERLANE_STATISTICS=1 ./program         # the process makes its numbers readable (for this user)
    python3 -m peerlane.top                 # shows all of them

The files are laid out as src/base/live_counter.hpp says. With `rich` the view is live; --once and --json need the standard library alone.
"""

import json
import os
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import _output

__all__ = ["main"]

VERSION = 1
MAGIC = b"PEERLANE"
HEADER = struct.Struct("<8sIIIIIIQQQ64sIII")
ENTRY = struct.Struct("<QII48s")
U64 = struct.Struct("<Q")
PREFIX = "peerlane-statistics-"
LARGEST_FILE = 1 << 20
LONGEST_INTERVAL = 86400  # seconds

TOTAL, LEVEL = 0, 1


class Unreadable(Exception):
    """The file is not a statistics file of this version, or is not complete yet."""


@dataclass
class Snapshot:
    """The counters of one library in one process at one moment. Totals are unsigned, levels signed."""

    path: Path
    process_id: int
    process_start: int
    pid_namespace: int
    made_unix_ns: int
    program: str
    values: dict
    kinds: dict
    taken: float = field(default_factory=time.monotonic)


def harmless(text):
    """Names come from other programs, and may be of another user: they say nothing to the terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def text(raw):
    return harmless(raw.split(b"\0", 1)[0].decode("utf-8", "replace"))


def parse(path, data):
    """Decodes a statistics file. Raises Unreadable."""
    if len(data) < HEADER.size:
        raise Unreadable("too short")
    magic, version, header_bytes, entry_bytes, count, process, _, start, namespace, made, program, blocks, blocks_at, block_bytes = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Unreadable("no statistics, or not finished")
    if version != VERSION:
        raise Unreadable(f"layout {version}; this program reads {VERSION}")
    if entry_bytes < ENTRY.size or header_bytes < HEADER.size or header_bytes + count * entry_bytes > len(data):
        raise Unreadable("damaged")
    if blocks and (block_bytes < 8 * count or blocks_at + blocks * block_bytes > len(data)):
        raise Unreadable("damaged")
    values, kinds = {}, {}
    for i in range(count):
        value, kind, _, name = ENTRY.unpack_from(data, header_bytes + i * entry_bytes)
        value = (value + sum(U64.unpack_from(data, blocks_at + b * block_bytes + 8 * i)[0] for b in range(blocks))) % (1 << 64)
        if kind == LEVEL and value >= 1 << 63:
            value -= 1 << 64
        # Names are unique within a file. Several libraries of a process may use the same name, each in its own file.
        values[text(name)], kinds[text(name)] = value, kind
    return Snapshot(path, process, start, namespace, made, text(program), values, kinds)


def read(path):
    """Reads a statistics file. Raises Unreadable; OSError if the file was removed meanwhile."""
    # Another user may have made it: a pipe must not be waited for, and a mapped file that becomes shorter would end this program.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = os.fstat(fd).st_size
        if not HEADER.size <= size <= LARGEST_FILE:
            raise Unreadable("of another size")
        return parse(Path(path), os.pread(fd, size, 0))
    finally:
        os.close(fd)


def start_of(process_id):
    """Returns the start time of a process (field 22 of /proc/<pid>/stat); None: there is no such process."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat[stat.rindex(")") + 2:].split(" ")[19])


def pid_namespace():
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def is_dead(snapshot):
    """Whether the process that wrote the file has ended. False if it is in another PID namespace, in which its id cannot be checked."""
    return snapshot.pid_namespace == pid_namespace() and start_of(snapshot.process_id) != snapshot.process_start


def collect(folder, keep_stale=False):
    """Reads every file of the folder and removes those of dead processes. Returns (snapshots, names of removed files)."""
    found, removed = [], []
    for path in sorted(Path(folder).glob(PREFIX + "*")):
        try:
            one = read(path)
            if is_dead(one):
                if not keep_stale:
                    path.unlink(missing_ok=True)
                    removed.append(harmless(path.name))
                continue
            found.append(one)
        except (Unreadable, OSError):
            continue  # incomplete, of another user, or of another version
    return found, removed


@dataclass
class Process:
    """The counters of a process, summed over its libraries, and their rates a second since the previous reading."""

    process_id: int
    program: str
    age_s: float
    values: dict
    rates: dict
    foreign: bool = False


def combine(snapshots, before):
    """Returns [Process] from the current snapshots and {path: Snapshot} of the previous reading."""
    processes: dict[tuple, Process] = {}
    own_namespace = pid_namespace()
    for one in snapshots:
        key = (one.pid_namespace, one.process_id, one.process_start)
        process = processes.setdefault(key, Process(one.process_id, one.program, time.time() - one.made_unix_ns / 1e9, {}, {},
                                                    one.pid_namespace != own_namespace))
        earlier = before.get(one.path)
        if earlier is not None and earlier.made_unix_ns != one.made_unix_ns:
            earlier = None  # a new process reuses the file name
        for name, value in one.values.items():
            process.values[name] = process.values.get(name, 0) + value
            if one.kinds[name] == TOTAL and earlier is not None and name in earlier.values and one.taken > earlier.taken:
                change = (value - earlier.values[name]) % (1 << 64)
                process.rates[name] = process.rates.get(name, 0.0) + change / (one.taken - earlier.taken)
    return sorted(processes.values(), key=lambda p: (-sum(v for k, v in p.rates.items() if k.endswith(".bytes")), p.process_id))


# ---- What a process does, in words ---------------------------------------------------------------------------------------


def size_words(count):
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def count_words(count):
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.3g}" if count and abs(count) < 10 else f"{count:.0f}"


def bar1_bytes(process):
    """Describes the GPU memory that this process has mapped in BAR1: by its own calls, and in the planner's cache."""
    return process.values.get("mapping.bytes", 0) + process.values.get("copy.mapped_bytes", 0)


def engine_words(process):
    """Describes the copy kernel, whose leases last about 0.2 ms; each lease is a launch."""
    if "engine.leases" not in process.values:
        return "–"
    state = "hot" if process.rates.get("engine.leases", 0) > 0 else "cold" if process.values["engine.leases"] else "never started"
    return state + (", held" if process.values.get("engine.holds", 0) > 0 else "")


def ways(process, group):
    """Returns [(method, count, bytes, count a second, bytes a second)] of a group ("copy", "messages", "streams"), the busiest first; omits
    methods that were not used."""
    out = []
    for name in process.values:
        parts = name.split(".")
        if len(parts) != 3 or parts[0] != group or parts[2] != "count" or not process.values[name]:
            continue
        volume = f"{group}.{parts[1]}.bytes"
        out.append((parts[1], process.values[name], process.values.get(volume, 0), process.rates.get(name, 0.0), process.rates.get(volume, 0.0)))
    return sorted(out, key=lambda w: (-w[4], -w[2], w[0]))


def store_words(process):
    puts, gets, others = (process.rates.get(f"store.{k}", 0) for k in ("puts", "gets", "other_requests"))
    served = sum(process.values.get(f"store.{k}", 0) for k in ("puts", "gets", "other_requests"))
    return f"{count_words(puts)} puts, {count_words(gets)} gets, {count_words(others)} others a second" if served else ""


def header_line(process):
    return (f"{process.program} ({process.process_id}{', another pid namespace' if process.foreign else ''}), "
            f"{process.values.get('mapping.open', 0) + process.values.get('copy.mappings', 0)} mappings, BAR1 {size_words(bar1_bytes(process))}, "
            f"engine {engine_words(process)}, {process.values.get('streams.channels', 0)} channels")


def as_text(processes, removed):
    """Returns the plain view: a paragraph for each process."""
    lines = []
    for process in processes:
        lines.append(header_line(process))
        for group, noun in (("copy", "copies"), ("messages", "messages"), ("streams", "stream operations")):
            for way, count, volume, rate, speed in ways(process, group):
                lines.append(f"  {noun:18} {way:20} {count_words(count):>8} {size_words(volume):>10} {count_words(rate):>8}/s {size_words(speed):>10}/s")
        if store_words(process):
            lines.append(f"  {'store':18} {store_words(process)}")
    if not processes:
        lines.append("no process publishes statistics: start it with PEERLANE_STATISTICS=1")
    lines += [f"removed what a dead process left: {name}" for name in removed]
    return "\n".join(lines)


def as_json(processes, removed):
    body = [{"process_id": p.process_id, "program": p.program, "age_s": round(p.age_s, 3), "bar1_bytes": bar1_bytes(p), "engine": engine_words(p),
             "values": p.values, "rates_per_s": {k: round(v, 3) for k, v in p.rates.items()}} for p in processes]
    return json.dumps({"processes": body, "removed": removed}, indent=1)


# ---- Live ------------------------------------------------------------------------------------------------------------------


def rich_view(processes, removed):
    """Returns the view for rich. Requires rich."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    parts: list = []
    for process in processes:
        table = Table(box=None, pad_edge=False, expand=True)
        table.add_column("what")
        table.add_column("way")
        for title in ("count", "volume", "a second", "rate"):
            table.add_column(title, justify="right")
        for group, noun in (("copy", "copies"), ("messages", "messages"), ("streams", "streams")):
            for way, count, volume, rate, speed in ways(process, group):
                busy = "bold" if rate > 0 else "dim"
                table.add_row(noun, way, count_words(count), size_words(volume), count_words(rate), f"{size_words(speed)}/s", style=busy)
        if store_words(process):
            table.add_row("store", store_words(process))
        # Text, so that rich does not interpret brackets in names of programs as markup.
        parts.append(Panel(table, title=Text(header_line(process)), title_align="left"))
    if not processes:
        parts.append(Text("no process publishes statistics: start it with PEERLANE_STATISTICS=1"))
    parts += [Text(f"removed what a dead process left: {name}", style="dim") for name in removed]
    parts.append(Text("Ctrl-C ends", style="dim"))
    return Group(*parts)


def live(folder, interval_s, rounds):
    """Updates the view until Ctrl-C, or `rounds` times."""
    from rich.live import Live

    removed_lately: list[str] = []
    before: dict[Path, Snapshot] = {}
    with Live(rich_view([], []), screen=sys.stdout.isatty(), auto_refresh=False) as view:
        while rounds != 0:
            snapshots, removed = collect(folder)
            removed_lately = (removed_lately + removed)[-3:]
            view.update(rich_view(combine(snapshots, before), removed_lately), refresh=True)
            before = {one.path: one for one in snapshots}
            rounds -= 1
            if rounds != 0:
                time.sleep(interval_s)


def find_rich():
    """Makes `rich` importable if a private environment has it (peerlane.report --setup, a clone's .venv)."""
    try:
        import rich.live  # noqa: F401
        return True
    except ImportError:
        pass
    try:
        from peerlane.report.plotly_script import private_environment
        bases = [own] if (own := private_environment()) else []
    except ImportError:
        bases = []
    bases += [parent / ".venv" for parent in Path(__file__).resolve().parents[1:6]]
    wanted = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for folder in (base / wanted for base in bases):
        if (folder / "rich").is_dir():
            sys.path.append(str(folder))
            return True
    return False


def arguments(argv):
    parser = _output.Parser(prog="peerlane top", description="Shows live activity of Peerlane processes that were started with "
                                     "PEERLANE_STATISTICS=1 by the same user.")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="time between updates (default 1)")
    parser.add_argument("--once", action="store_true", help="measure one interval, print it as plain text, and exit")
    parser.add_argument("--json", nargs="?", const="-", type=_output.place, metavar="FILE", help="like --once, as JSON; without FILE, or with -, to standard output")
    parser.add_argument("--looks", type=int, default=-1, metavar="N", help="end the live view after this many updates")
    parser.add_argument("--folder", type=_output.place, default=os.environ.get("PEERLANE_STATISTICS_FOLDER") or "/dev/shm", metavar="DIR", help="folder of the statistics (default %(default)s)")
    given = parser.parse_args(argv)
    if not 0 < given.interval <= LONGEST_INTERVAL:  # NaN is neither
        parser.error(f"--interval: more than 0, and at most {LONGEST_INTERVAL}")
    return given


def main(argv=None):
    return _output.run("peerlane top", lambda: show(arguments(argv)))


def show(given):
    try:
        if not given.once and not given.json:
            if find_rich():
                live(given.folder, given.interval, given.looks)
                return 0
            print("peerlane top: the live view needs rich (python3 -m pip install rich); --once does without", file=sys.stderr)
            return 1
        first, removed = collect(given.folder)
        time.sleep(given.interval)
        second, more = collect(given.folder)
        processes = combine(second, {one.path: one for one in first})
        text = (as_json if given.json else as_text)(processes, removed + more)
        if given.json in (None, "-"):
            print(text)
        else:
            _output.write_file(given.json, text + "\n")
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
