#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""top_test.py OUT_FOLDER: `peerlane top` on files made here, and on a real process that copies on the simulated GPU.

Exit code 77 is not used: without rich the live view alone is left out, and that is printed.
"""

import contextlib
import ctypes
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from peerlane import top  # noqa: E402

OUT = ""
NEVER_A_PROCESS = 1 << 22  # above every pid_max


def made(folder, name, values, process=None, start=None, namespace=None, magic=b"PEERLANE", version=1, entry_bytes=64, program=b"prog"):
    """A statistics file: values is {name: (kind, number)}."""
    process = os.getpid() if process is None else process
    start = top.start_of(process) or 1 if start is None else start
    namespace = top.pid_namespace() if namespace is None else namespace
    head = struct.pack("<8sIIIIIIQQQ64sIII", magic, version, 256, entry_bytes, len(values), process, 0, start, namespace, time.time_ns(), program,
                       2, 6144, 1024)
    body = head.ljust(256, b"\0")
    blocks = [b"", b""]
    for key, (kind, number) in values.items():  # a part beside the name, the rest counted by two threads
        body += struct.pack("<QII48s", (number - 300) % (1 << 64), kind, 0, key.encode()).ljust(entry_bytes, b"\0")
        blocks = [blocks[0] + struct.pack("<Q", 100), blocks[1] + struct.pack("<Q", 200)]
    body = body.ljust(6144, b"\0") + blocks[0].ljust(1024, b"\0") + blocks[1].ljust(1024, b"\0")
    path = Path(folder) / (top.PREFIX + name)
    path.write_bytes(body.ljust(8192, b"\0"))
    return path


class Files(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def test_values(self):
        path = made(self.folder, "a", {"copy.cpu_store.count": (0, 7), "mapping.open": (1, -2)})
        one = top.read(path)
        self.assertEqual(one.values, {"copy.cpu_store.count": 7, "mapping.open": -2})
        self.assertEqual((one.program, one.process_id), ("prog", os.getpid()))

    def test_larger_entries_of_a_later_program_are_read(self):
        self.assertEqual(top.read(made(self.folder, "a", {"x": (0, 1), "y": (0, 2)}, entry_bytes=96)).values, {"x": 1, "y": 2})

    def test_what_is_not_understood_is_left_alone(self):
        for name, changes in (("version", {"version": 2}), ("magic", {"magic": b"\0" * 8}), ("entries", {"entry_bytes": 8})):
            made(self.folder, name, {"x": (0, 1)} if name != "entries" else {}, process=NEVER_A_PROCESS, start=5, **changes)
        (self.folder / (top.PREFIX + "short")).write_bytes(b"PEERLANE")
        (self.folder / (top.PREFIX + "text")).write_text("hello")
        (self.folder / (top.PREFIX + "link")).symlink_to(self.folder / (top.PREFIX + "version"))
        found, removed = top.collect(self.folder)
        self.assertEqual((found, removed), ([], []))
        self.assertEqual(len(list(self.folder.iterdir())), 6)

    def test_names_say_nothing_to_the_terminal(self):
        made(self.folder, "a\x1b[2J\udcff", {}, process=NEVER_A_PROCESS, start=5)
        made(self.folder, "b", {"copy.\x1b]0;x\x07\x9b.count": (0, 7)}, program=b"p\x1b[31m\r\n\xff")
        for words in (["--once"], ["--json"]):
            text = self.shown(*words)
            self.assertIn("p\ufffd[31m\ufffd\ufffd" if words == ["--once"] else "ufffd[31m", text)
            self.assertTrue(all(c.isprintable() or c == "\n" for c in text), repr(text))

    def test_a_pipe_is_not_waited_for(self):
        os.mkfifo(self.folder / (top.PREFIX + "pipe"))
        self.assertEqual(top.collect(self.folder), ([], []))

    def test_a_character_set_that_lacks_the_signs(self):
        made(self.folder, "a", {})
        for words in (["--once"], ["--json"]):
            done = subprocess.run([sys.executable, "-B", "-m", "peerlane.top", "--folder", str(self.folder), "--interval", "0.01", *words], cwd=ROOT / "python",
                                  env={**os.environ, "PYTHONIOENCODING": "ascii"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            self.assertIn("prog", done.stdout)

    def test_damaged_files_never_raise_anything_else(self):
        import random
        rng = random.Random(4)
        data = made(self.folder, "a", {f"n{i}": (i % 2, i) for i in range(20)}).read_bytes()
        for _ in range(500):
            broken = bytearray(data[:rng.choice([300, 1000, 8192])])
            for _ in range(rng.randrange(1, 20)):
                broken[rng.randrange(min(len(broken), 400))] = rng.randrange(256)
            with contextlib.suppress(top.Unreadable):
                top.parse(Path("x"), bytes(broken))

    def test_what_dead_processes_left_is_removed(self):
        gone = made(self.folder, "gone", {}, process=NEVER_A_PROCESS, start=5)
        reused = made(self.folder, "reused", {}, start=top.start_of(os.getpid()) - 1)  # the number lives, the process does not
        elsewhere = made(self.folder, "elsewhere", {}, process=NEVER_A_PROCESS, start=5, namespace=top.pid_namespace() + 1)
        mine = made(self.folder, "mine", {})
        found, removed = top.collect(self.folder)
        self.assertEqual({one.path for one in found}, {elsewhere, mine})
        self.assertEqual(sorted(removed), sorted([gone.name, reused.name]))
        self.assertTrue(elsewhere.exists() and mine.exists() and not gone.exists() and not reused.exists())

    def test_rates_of_two_libraries_add_up_and_survive_overflow(self):
        first = [top.read(made(self.folder, n, {"copy.bounce.bytes": (0, v), "mapping.open": (1, 1)})) for n, v in (("a", 2**64 - 100), ("b", 50))]
        second = [top.read(made(self.folder, n, {"copy.bounce.bytes": (0, v), "mapping.open": (1, 2)})) for n, v in (("a", 100), ("b", 150))]
        for one, two in zip(first, second):
            two.made_unix_ns, one.taken, two.taken = one.made_unix_ns, 10.0, 12.0
        (process,) = top.combine(second, {one.path: one for one in first})
        self.assertAlmostEqual(process.rates["copy.bounce.bytes"], (200 + 100) / 2)
        self.assertEqual(process.values["mapping.open"], 4)
        self.assertNotIn("mapping.open", process.rates)

    def test_another_process_under_the_same_name_starts_from_nothing(self):
        before = top.read(made(self.folder, "a", {"copy.bounce.bytes": (0, 10)}))
        now = top.read(made(self.folder, "a", {"copy.bounce.bytes": (0, 5)}))
        now.taken = before.taken + 1
        (process,) = top.combine([now], {before.path: before})
        self.assertEqual(process.rates, {})

    def test_words(self):
        made(self.folder, "a", {"engine.leases": (0, 3), "engine.holds": (1, 1), "mapping.open": (1, 2), "mapping.bytes": (1, 1 << 21), "streams.channels": (1, 4),
                                "copy.mapped_bytes": (1, 1 << 21), "store.gets": (0, 2), "copy.cpu_load.count": (0, 9), "copy.cpu_load.bytes": (0, 900)})
        text = self.shown("--once")
        for words in ("2 mappings", "BAR1 4.19 MB", "cold, held", "4 channels", "cpu_load", "0 gets"):
            self.assertIn(words, text)

    def shown(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(top.main(["--folder", str(self.folder), "--interval", "0.001", *arguments]), 0)
        return out.getvalue()

    def test_json(self):
        made(self.folder, "a", {"mapping.bytes": (1, 5)})
        body = json.loads(self.shown("--json"))
        self.assertEqual(body["processes"][0]["bar1_bytes"], 5)

    def refused(self, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                code = top.main(["--folder", str(self.folder), *arguments])
            except SystemExit as end:
                code = end.code
        return code, said.getvalue().splitlines()[-1]

    def test_intervals_and_places_that_cannot_be(self):
        for interval in ("0", "-1", "nan", "1e309", "1e10"):
            code, line = self.refused("--once", "--interval", interval)
            self.assertEqual(code, 2, line)
            self.assertIn("--interval: more than 0", line)
        for place in ("/dev/full", str(self.folder / "none/file")):
            code, line = self.refused("--interval", "0.001", "--json", place)
            self.assertEqual(code, 1, line)
            self.assertTrue(line.startswith(f"peerlane top: {place}: "), line)
        self.assertIn("empty value", self.refused("--json", "")[1])

    def test_live_view(self):
        if not top.find_rich():
            print("NOT TESTED: the live view (rich is not installed)")
            return
        made(self.folder, "a", {"copy.bounce.count": (0, 5)}, program=b"a[red]b")
        self.assertIn("a[red]b", self.shown("--looks", "2"))
        self.assertIn("PEERLANE_STATISTICS=1", self.shown_of_nothing())

    def shown_of_nothing(self):
        for path in self.folder.iterdir():
            path.unlink()
        return self.shown("--looks", "1")


class Buffer(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("size_bytes", ctypes.c_size_t), ("memory", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


def copy_until_told(writes):
    """The child: maps 128 KiB of the simulated GPU, writes and reads, copies by the planner, says so, and waits."""
    cuda, library = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL), ctypes.CDLL("libpeerlane.so.0")
    context, pointer, session, mapping, copier = (ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p())
    done = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
            cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)), library.peerlane_session_open(None, ctypes.byref(session)),
            library.peerlane_map(session, pointer, ctypes.c_size_t(1 << 17), 0, ctypes.byref(mapping))]
    data = ctypes.create_string_buffer(64)
    done += [library.peerlane_mapping_write(mapping, ctypes.c_size_t(0), data, ctypes.c_size_t(64)) for _ in range(writes)]
    done += [library.peerlane_mapping_read(mapping, ctypes.c_size_t(0), data, ctypes.c_size_t(8))]
    done += [library.peerlane_copier_open(None, ctypes.byref(copier)),
             library.peerlane_copy(copier, Buffer(pointer.value, 64, 2, 0), Buffer(ctypes.addressof(data), 64, 1, 0))]
    print("ready" if not any(done) else f"failed: {done}", flush=True)
    sys.stdin.readline()
    print(library.peerlane_unmap(mapping), flush=True)
    sys.stdin.readline()


class RealProcess(unittest.TestCase):
    writes = 1000

    def start(self, folder, **more):
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{OUT}/sim:{OUT}", "PEERLANE_STATISTICS_FOLDER": folder, **more}
        process = subprocess.Popen([sys.executable, "-B", __file__, OUT, "--child", str(self.writes)], env=environment, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(process.stdout.readline().strip(), "ready")
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.communicate()

    def test_counts_while_it_runs_and_nothing_after(self):
        with tempfile.TemporaryDirectory() as folder:
            process = self.start(folder, PEERLANE_STATISTICS="1")
            (one,) = top.collect(folder)[0]
            self.assertEqual(one.process_id, process.pid)
            self.assertEqual((one.values["copy.mapping_write.count"], one.values["copy.mapping_write.bytes"]), (self.writes, 64 * self.writes))
            self.assertEqual((one.values["copy.mapping_read.count"], one.values["copy.mapping_read.bytes"]), (1, 8))
            self.assertEqual(one.values["mapping.open"], 1)
            self.assertGreaterEqual(one.values["mapping.bytes"], 1 << 17)
            self.assertEqual(sum(v for k, v in one.values.items() if k.startswith("copy.") and k.endswith(".count") and "mapping" not in k), 1)
            process.stdin.write("unmap\n")
            process.stdin.flush()
            self.assertEqual(process.stdout.readline().strip(), "0")
            (later,) = top.collect(folder)[0]
            self.assertEqual((later.values["mapping.open"], later.values["mapping.bytes"]), (0, 0))
            process.communicate("end\n")
            self.assertEqual(os.listdir(folder), [])

    def test_a_killed_process_leaves_nothing_after_a_look(self):
        with tempfile.TemporaryDirectory() as folder:
            process = self.start(folder, PEERLANE_STATISTICS="1")
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.assertEqual(len(os.listdir(folder)), 1)
            found, removed = top.collect(folder)
            self.assertEqual((found, len(removed), os.listdir(folder)), ([], 1, []))

    def test_off_by_default(self):
        with tempfile.TemporaryDirectory() as folder:
            self.start(folder)
            self.assertEqual(os.listdir(folder), [])

    def test_the_program_starts_it(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([f"{OUT}/peerlane", "top", "--once", "--interval", "0.01", "--folder", folder], cwd="/", text=True, capture_output=True,
                                  check=False, timeout=50)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("no process publishes", done.stdout)


if __name__ == "__main__":
    OUT = sys.argv.pop(1)
    if sys.argv[1:2] == ["--child"]:
        copy_until_told(int(sys.argv[2]))
    else:
        unittest.main()
