#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""document_examples.py OUT_FOLDER ROOT CC CXX: the examples of README.md and docs/ do what they say, on the simulated GPU.

By the word behind the fence:
  c, cpp    the body of a function that gets `device_ptr` (1 MiB of GPU memory, whose first word is 1); #include lines are moved to the top.
            Compiled and run; it must return 0 and print nothing.
  python    run; where the package was not built, compiled, and that is said aloud
  sh        run, line by line, in an empty folder, with the built programs in PATH
  json      parsed
  nothing   no command of ours
Two processes run what opens messages or streams. /var/tmp/store stands for a folder where a store serves.
`<!-- run after: COMMANDS -->` before a fence of `sh` names what the page takes for granted (a file, a program of the reader's), and may
define a function `peerlane` that makes a benchmark smaller.
`<!-- not run: reason -->` before a fence leaves it at looking: of lines that call our programs, the command and its options must
exist, and `make` targets.
Between backticks in a sentence, a call of `peerlane` or `make` is looked at in the same way.
A line that calls our programs can be pasted as it stands: what explains it comes after a #. It stands in a fence, which has a copy button.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

TOGETHER = ("peerlane/communicator.h", "peerlane/communicator.hpp", "peerlane/triggered.h", "peerlane/triggered.hpp", "communicator.open(", "triggered.open(")
STORE = "/var/tmp/store"
OURS = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:peerlane|nvbandwidth|osu_\w+|mpirun|srun|store_bench)\s", re.M)
PATIENCE_S = 250  # a machine may be busy with other tests
HARNESS_INCLUDES = """#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
"""
HARNESS = """
static void* driver;
static int call_failed(const char* what) { fprintf(stderr, "the simulated GPU: %s failed\\n", what); return 1; }
static uint64_t some_device_memory(void) {
  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!driver) { call_failed(dlerror()); exit(99); }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  int (*retain)(void**, int) = (int (*)(void**, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
  int (*current)(void*) = (int (*)(void*))dlsym(driver, "cuCtxSetCurrent");
  int (*allocate)(uint64_t*, size_t) = (int (*)(uint64_t*, size_t))dlsym(driver, "cuMemAlloc_v2");
  int (*set)(uint64_t, unsigned char, size_t) = (int (*)(uint64_t, unsigned char, size_t))dlsym(driver, "cuMemsetD8_v2");
  void* context = 0;
  uint64_t pointer = 0;
  if (init(0) || retain(&context, 0) || current(context) || allocate(&pointer, 1 << 20) || set(pointer, 0, 1 << 20) || set(pointer, 1, 1)) {
    call_failed("cuInit, cuMemAlloc or cuMemset");
    exit(99);
  }
  return pointer;
}
int main(int argc, char** argv) {
  const int which = argc > 1 ? atoi(argv[1]) : -1;
  const uint64_t device_ptr = some_device_memory();
  switch (which) {
"""


class Example:
    def __init__(self, document, line, language, body, remark):
        self.location, self.language, self.body = f"{document}:{line}", language, body
        self.not_run = remark.startswith("not run: ")
        self.preparation = remark[len("run after:"):] if remark.startswith("run after:") else ""


def examples_of(path, root):
    """Every fenced block with its line, language and the remark above it."""
    found, fence, lines = [], None, path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        match = re.match(r"^( *)```(\w*)\s*$", line)
        if match and fence is None:
            fence = (number, match.group(2), [], remark_above(lines[:number - 1]))
        elif match:
            found.append(Example(path.relative_to(root), fence[0], fence[1], "\n".join(fence[2]) + "\n", fence[3]))
            fence = None
        elif fence is not None:
            fence[2].append(line)
    if fence is not None:
        raise AssertionError(f"{path}:{fence[0]}: the fence is not closed")
    return found


def remark_above(lines):
    """The text of the remark that ends where the lines end, or nothing."""
    text = "\n".join(lines).rstrip()
    if not text.endswith("-->"):
        return ""
    return textwrap.dedent(text[text.rfind("<!--") + len("<!--"):-len("-->")]).strip()


def unfenced_commands(path, root):
    """[(location, line)] of commands of ours in blocks that are code by indentation alone."""
    text = re.sub(r"^( *)```.*?^ *```", lambda m: "\n" * m.group(0).count("\n"), path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [(f"{path.relative_to(root)}:{number}", line.strip()) for number, line in enumerate(text.split("\n"), 1)
            if line.startswith("    ") and OURS.match(line.strip())]


def commands_in_sentences(path, root):
    """`peerlane ...` and `make ...` between backticks, as examples that are looked at."""
    text = re.sub(r"^( *)```.*?^ *```", lambda m: "\n" * m.group(0).count("\n"), path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [Example(path.relative_to(root), number, "sentence", code.replace("\\|", "|"), "not run: it stands in a sentence")
            for number, line in enumerate(text.split("\n"), 1) for code in re.findall(r"`((?:[A-Z_]+=\S+ )*(?:peerlane|make) [^`]+)`", line)]


def program(examples):
    """One program of all examples of a language: its argument is the number of the one to run."""
    includes, bodies, cases = [], [], []
    for number, example in enumerate(examples):
        includes += re.findall(r"^#include .*$", example.body, re.M)
        rest = re.sub(r"^#include .*$", "", example.body, flags=re.M)
        path, line = example.location.rsplit(":", 1)
        bodies.append(f'#line {line} "{path}"\nstatic int example_{number}(uint64_t device_ptr) {{\n{rest}\nreturn 0; }}\n')
        cases.append(f"    case {number}: return example_{number}(device_ptr);\n")
    return "\n".join([HARNESS_INCLUDES, *dict.fromkeys(includes), "", *bodies]) + HARNESS + "".join(cases) + "  }\n  return 98;\n}\n"


class Checks:
    def __init__(self, out, root, cc, cxx, folder):
        self.out, self.root, self.cc, self.cxx, self.folder = out, root, cc, cxx, folder
        self.failures, self.counts, self.help_texts, self.server = [], {}, {}, None
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PEERLANE_", "OMPI_", "PMI", "MV2_", "SLURM_"))}
        self.environment.update(PEERLANE_GPU="sim", LD_LIBRARY_PATH=f"{out}/sim:{out}", PATH=f"{out}:{os.environ['PATH']}",
                                XDG_CACHE_HOME=str(folder), ROOT=str(root))

    def count(self, word):
        self.counts[word] = self.counts.get(word, 0) + 1

    def fail(self, example, text):
        self.failures.append(f"{example.location}: {text}\n{example.body}")

    def spawn(self, command, **more):
        environment = {**self.environment, **more}
        return subprocess.Popen(command, env=environment, cwd=self.folder, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def finish(self, process):
        """(exit code, output); "timed out" for what does not end."""
        try:
            text, _ = process.communicate(timeout=PATIENCE_S)
            return process.returncode, text
        except subprocess.TimeoutExpired:
            process.kill()
            return "timed out", process.communicate()[0]

    # ---- C and C++ -----------------------------------------------------------------------------------------------------

    def compiled(self, language, examples):
        if not examples:
            return
        looked_at, to_run = [e for e in examples if e.not_run], [e for e in examples if not e.not_run]
        binary = self.folder / f"examples_{language}"
        self.compile(language, looked_at, ["-fsyntax-only"])
        if self.compile(language, to_run, ["-o", str(binary), f"-L{self.out}", *self.libraries(), "-ldl", "-lpthread"]):
            for number, example in enumerate(to_run):
                self.run_compiled(binary, number, example)

    def libraries(self):
        names = ("peerlane", "gdrapi", "peerlane_store")
        return [f"-l{name}" for name in names if Path(self.out, f"lib{name}.so").exists()]

    def compile(self, language, examples, options):
        """All of them as one program; whether it compiles."""
        if not examples:
            return False
        suffix, standard, compiler = (".cpp", "c++20", self.cxx) if language == "cpp" else (".c", "gnu99", self.cc)
        source = self.folder / f"examples{suffix}"
        source.write_text(self.with_store(program(examples)))
        done = subprocess.run([compiler, str(source), f"-std={standard}", "-Wall", "-Werror", "-I", f"{self.root}/include", *options],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.failures.append(f"the examples in {language} do not compile:\n{done.stderr}")
            return False
        for _ in examples:
            self.count(f"{language} compiled")
        return True

    def run_compiled(self, binary, number, example):
        for rank, (code, text) in enumerate(self.run_processes(example, [str(binary), str(number)])):
            if code != 0 or text:
                self.fail(example, f"process {rank}: exit code {code}, output {text!r}")
        self.count(f"{example.language} run")

    def run_processes(self, example, command, **more):
        """[(exit code, output)] of the one or two processes that the example needs."""
        ranks = 2 if any(words in example.body for words in TOGETHER) else 1
        if ranks == 2:
            more.update(PEERLANE_LINK_SIZE="2", PEERLANE_LINK_RENDEZVOUS=f"file:{tempfile.mkdtemp(dir=self.folder)}")
        processes = [self.spawn(command, **more, **({"PEERLANE_LINK_RANK": str(rank)} if ranks == 2 else {})) for rank in range(ranks)]
        return [self.finish(process) for process in processes]

    def with_store(self, text):
        """The text with the test's folder, in which a store serves from now on."""
        if STORE not in text:
            return text
        folder = self.folder / "store"
        if self.server is None:
            self.server = self.spawn([f"{self.out}/peerlane", "store", "serve", "--data", str(folder), "--listen", "none", "--arena", "64M",
                                      "--chunk", "64M"])
            self.server.stdout.readline()  # it serves
        return text.replace(STORE, str(folder))

    def end(self):
        if self.server is not None:
            self.server.terminate()
            self.server.communicate()

    # ---- Python, shell, data ---------------------------------------------------------------------------------------------

    def python(self, example):
        try:
            compile(example.body, example.location, "exec")
        except SyntaxError as error:
            return self.fail(example, f"no Python: {error}")
        self.count("python compiled")
        interpreter = self.python_with_package()
        if interpreter is None or example.not_run:
            return None
        for rank, (code, text) in enumerate(self.run_processes(example, [interpreter, "-c", example.body], PYTHONPATH=f"{self.out}/python")):
            if code != 0:
                self.fail(example, f"process {rank}: exit code {code}: {text}")
        self.count("python run")
        return None

    def python_with_package(self):
        """A Python for which the package was built, or None."""
        if "python" not in self.help_texts:
            candidates = [str(p) for p in (self.root / ".venv/bin/python",) if p.exists()] + [sys.executable]
            works = lambda p: self.finish(self.spawn([p, "-c", "import peerlane; peerlane.map"], PYTHONPATH=f"{self.out}/python"))[0] == 0  # noqa: E731
            self.help_texts["python"] = next((p for p in candidates if works(p)), None)
        return self.help_texts["python"]

    def shell(self, example):
        self.lines(example)
        if example.not_run:
            return
        folder = tempfile.mkdtemp(dir=self.folder)
        body = f"{example.preparation}\n{example.body}".replace(STORE, f"{folder}/store")  # a script starts its own server
        process = subprocess.Popen(["bash", "-eu", "-o", "pipefail", "-c", body], env=self.environment, cwd=folder, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        code, text = self.finish(process)
        with contextlib.suppress(ProcessLookupError):  # what it left behind
            os.killpg(process.pid, signal.SIGKILL)
        self.count("sh run")
        if code != 0:
            self.fail(example, f"exit code {code}: {text[-3000:]}")

    def data(self, example):
        try:
            json.loads(example.body)
            self.count("json parsed")
        except ValueError as error:
            self.fail(example, f"no JSON: {error}")

    # ---- Lines that call our programs --------------------------------------------------------------------------------------

    def help_of(self, command):
        if command not in self.help_texts:
            code, text = self.finish(self.spawn([f"{self.out}/peerlane", *command.split(), "-h"]))
            self.help_texts[command] = text if code == 0 else None
        return self.help_texts[command]

    def sentence(self, example):
        self.make_target(example, example.body)
        match = re.match(r"(?:[A-Z_]+=\S+ )*peerlane ([a-z][a-z0-9-]*)(.*)", example.body)
        if not match:
            return
        self.command(example, match.group(1), match.group(2))
        for inner in match.group(2).split()[:1] if match.group(1) in ("p2p", "async", "store") else []:
            for word in re.findall(r"[a-z][a-z_-]+", inner if re.match("[a-z]", inner) else ""):  # pingpong|stencil|multigrid
                if self.help_of(f"{match.group(1)} {word}") is None:
                    self.fail(example, f"there is no `peerlane {match.group(1)} {word}`")

    def lines(self, example):
        if example.language == "" and not example.not_run and OURS.search(example.body):
            self.fail(example, "commands of ours: `sh` behind the fence runs them, or say why not: <!-- not run: reason -->")
        for line in example.body.replace("\\\n", " ").split("\n"):
            line = re.split(r"\s+#", line.strip())[0]
            if OURS.match(line) and re.search(r"\S\s{3,}\S", line):
                self.fail(example, f"`{line}` cannot be pasted: words that explain it come after a #")
            self.make_target(example, line)
            match = re.search(r"(?:^|[\s/;])peerlane\s+([a-z][a-z0-9-]*)(.*)", line)
            if match and " = " not in line:
                self.command(example, match.group(1), match.group(2))

    def command(self, example, name, rest):
        text = self.help_of(name)
        if text is None and f'command{{"{name}",' in (self.root / "tools/main.cpp").read_text():
            return self.count("command lines of commands that this build lacks")
        if text is None:
            return self.fail(example, f"unknown command `peerlane {name}`")
        self.count("command lines")
        inner = re.match(r"\s+([a-z][a-z_-]*)\b", rest)  # `peerlane p2p latency`: its options are told by `peerlane p2p latency -h`
        if inner and name in ("p2p", "async", "store"):
            text += self.help_of(f"{name} {inner.group(1)}") or ""
        unquoted = re.sub(r"\"[^\"]*\"|'[^']*'", " ", rest.split("|")[0].split(";")[0].split("&&")[0])
        for option in re.findall(r"(?<=\s)(--?[A-Za-z][\w-]*)", unquoted):
            known = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)
            if not known:
                self.fail(example, f"`peerlane {name}` has no option {option}")
        return None

    def make_target(self, example, line):
        match = re.match(r"make ([a-z]+)\b", line)
        if match:
            self.count("make targets")
            if not re.search(rf"^{match.group(1)}:", (self.root / "Makefile").read_text(), re.M):
                self.fail(example, f"there is no target {match.group(1)}")

    def look_at(self, examples):
        if not Path(self.out, "libpeerlane_store.so").exists():
            print("NOT CHECKED: the examples of the store (it was not built)")
            examples = [e for e in examples if "peerlane/store.h" not in e.body and STORE not in e.body]
        for language in ("c", "cpp"):
            self.compiled(language, [e for e in examples if e.language == language])
        other = {"python": self.python, "sh": self.shell, "json": self.data, "": self.lines, "yaml": self.lines, "dockerfile": self.lines,
                 "cmake": self.lines, "text": self.lines, "diff": self.lines, "sentence": self.sentence}
        for example in (e for e in examples if e.language not in ("c", "cpp")):
            if example.language in other:
                other[example.language](example)
            else:
                self.fail(example, f"what is to be done with `{example.language}`? Known: c, cpp, {', '.join(filter(None, other))}")


def main(out, root, cc, cxx):
    root = Path(root).resolve()
    documents = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    examples = [example for document in documents for example in examples_of(document, root)]
    sentences = [example for document in documents for example in commands_in_sentences(document, root)]
    bare = [f"{location}: `{line}` stands in no fence" for document in documents for location, line in unfenced_commands(document, root)]
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(str(Path(out).resolve()), root, cc, cxx, Path(folder))
        checks.failures += bare
        try:
            checks.look_at(examples + sentences)
        finally:
            checks.end()
    for failure in checks.failures:
        print(failure)
    if any(e.language == "python" for e in examples) and not checks.counts.get("python run"):
        print("NOT CHECKED: the examples in Python (the package was not built: no nanobind)")
    left = sum(e.not_run for e in examples)
    print(f"{len(documents)} documents, {len(examples)} examples: " + ", ".join(f"{n} {word}" for word, n in sorted(checks.counts.items())) +
          f"; {left} by remark not run; {len(checks.failures)} wrong")
    return 1 if checks.failures or not checks.counts.get("cpp run") else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
