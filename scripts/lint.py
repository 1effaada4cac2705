#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the project's own rules, and runs the linters that are installed. Prints what was not checked.

    scripts/lint.py            check the whole tree; exit 1 on any error
    scripts/lint.py FILE...    only these files (rules about the tree as a whole still see everything)

Each rule is one function over a Tree and yields Findings; scripts/lint_test.py has a test for each. A line that must
break a rule carries `lint:allow(<rule>)` with the reason next to it. Only the standard library is used, so that the
rules run wherever the build does.
"""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import figures  # noqa: E402
import lint_links  # noqa: E402

LINES_WARN = 600  # consider which concept should have its own file
LINES_MAX = 700
CLANG_FORMAT_MAJOR = 14  # Debian 12's; other versions lay out some constructs differently

CXX = (".c", ".h", ".cpp", ".hpp", ".cu", ".cuh")
SCRIPT = (".py", ".sh")
CODE = CXX + SCRIPT

# Names that look like environment variables but are not. Those defined in CMake files, in include/ or by a #define are found
# automatically; these are the others.
NOT_ENVIRONMENT = {
    "PEERLANE_NO_NVCC": "scripts/setup.sh: do not install a CUDA compiler",
    "PEERLANE_ALLOW_SKIPS": "scripts/setup.sh: run the tests without the packages that only some of them need",
    "GDRCOPY_ENABLED": "docs/containers.md: of the device plug-in of Kubernetes",
    "PEERLANE_CLEAN_ROOM": "scripts/check-clean-room.sh: working folder",
}
# Quoted includes that no folder holds because the build writes them.
GENERATED_INCLUDE = re.compile(r"(^|/)generated_|_image\.hpp$|\.inc$")
# Where people keep checkouts; a path below one of them means that a file was written for one machine.
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(home|Users|work|workspace|builds)/[A-Za-z0-9_]")
# Folders that are everywhere, so finding them says nothing about a machine.
COMMON_DIRS = {"/", "/tmp", "/var/tmp", "/home", "/root", "/opt", "/srv", "/mnt", "/usr", "/usr/src", "/usr/local/src"}
# These two hold the patterns themselves.
SELF = {"scripts/lint.py", "scripts/lint_test.py"}
# Formatted as the kernel's code.
KERNEL_STYLE = ("driver/", "test/kernel/mock/")
# Captured output and stored results are data: tests depend on their spaces and lengths.
DATA = re.compile(r"(^|/)(golden|fixtures|corpus|testdata)/|^docs/results/|^LICENSE$|\.(svg|patch|diff)$")


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    text: str
    fatal: bool = True

    def __str__(self):
        return f"{self.path}:{self.line}: {'' if self.fatal else 'warning: '}{self.rule}: {self.text}"


@dataclass
class Tree:
    """Text of every file by path relative to the root; `executable` holds the paths with the x bit."""

    files: dict
    executable: set = field(default_factory=set)
    root: Path = None
    binary: set = field(default_factory=set)  # files that hold no text; their content is not in `files`

    def with_suffix(self, *suffixes):
        return {p: t for p, t in self.files.items() if p.endswith(suffixes)}


def load_tree(root):
    tree = Tree({}, set(), root)
    for name in list_files(root):
        path = root / name
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" in data:
            tree.binary.add(name)
            continue
        try:
            tree.files[name] = data.decode("utf-8")
        except UnicodeDecodeError:
            continue  # not text of ours
        if os.access(path, os.X_OK):
            tree.executable.add(name)
    return tree


def list_files(root):
    git = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         capture_output=True, text=True, check=False) if shutil.which("git") else None
    if git is not None and git.returncode == 0:
        return sorted(set(filter(None, git.stdout.split("\0"))))
    # A tarball, or a clone that belongs to somebody else: walk, leaving out what .gitignore would.
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [d for d in folders if d not in (".git", ".venv", "__pycache__") and not d.startswith("build")]
        names += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    return sorted(names)


def lines_of(text):
    return list(enumerate(text.split("\n"), 1))


def allowed(line, rule):
    return f"lint:allow({rule})" in line


def without_comments(line):
    return line.split("//", 1)[0]


def strip_cmake_comments(text):
    return re.sub(r"#.*", "", text)


# ---- Layers ------------------------------------------------------------------------------------------------------------


def layer_order(tree):
    """The list in the top CMakeLists.txt: a layer uses only layers before it."""
    match = re.search(r"foreach\(layer IN ITEMS ([^)]*)\)", tree.files.get("CMakeLists.txt", ""))
    return match.group(1).split() if match else []


def layer_deps(tree):
    """layer -> the layers whose targets its CMakeLists.txt names. A layer is a folder below src/ with a CMakeLists.txt, and what
    lies below it without one. It may have several targets, pl_<anything>."""
    texts = {m.group(1): strip_cmake_comments(text) for path, text in tree.files.items()
             if (m := re.fullmatch(r"src/(.+)/CMakeLists\.txt", path))}
    owner = {}
    for layer, text in texts.items():
        for name in re.findall(r"\bpl_layer\(\s*(\w+)", text) + re.findall(r"\badd_library\(\s*pl_(\w+)", text):
            owner[name] = layer
    return {layer: {owner[n] for n in re.findall(r"\bpl_(\w+)\b", text) if n in owner} - {layer} for layer, text in texts.items()}


def layer_of(deps, path):
    """The layer that a path below src/ belongs to, the innermost one; None for a path elsewhere."""
    folder = os.path.dirname(path.removeprefix("src/"))
    while folder and folder not in deps:
        folder = os.path.dirname(folder)
    return folder or None


def transitive(deps, layer):
    seen, todo = set(), [layer]
    while todo:
        for name in deps.get(todo.pop(), ()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def rule_layers(tree):
    order, deps = layer_order(tree), layer_deps(tree)
    for layer, names in sorted(deps.items()):
        path = f"src/{layer}/CMakeLists.txt"
        if layer not in order:
            yield Finding(path, 1, "layers", f"{layer} is missing in the layer list of CMakeLists.txt")
            continue
        for name in sorted(names):
            if name not in order or order.index(name) >= order.index(layer):
                yield Finding(path, 1, "layers", f"{layer} may not use {name}, which does not stand before it in CMakeLists.txt")
    for path, text in tree.with_suffix(*CXX).items():
        layer = layer_of(deps, path) if path.startswith("src/") else None
        for number, line in lines_of(text):
            include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not include or allowed(line, "layers"):
                continue
            name = include.group(1)
            if name.startswith("../") or "/../" in name:
                yield Finding(path, number, "layers", f'"{name}": no ../ in includes; name the header as its layer exports it')
            elif layer and not GENERATED_INCLUDE.search(name):
                yield from check_include(tree, deps, layer, path, number, name)


def rule_layer_table(tree):
    """The layers of docs/architecture.md are those of CMakeLists.txt, in that order."""
    path = "docs/architecture.md"
    if path not in tree.files:
        return
    order, told = layer_order(tree), re.findall(r"^\| `src/([\w/]+)` \|", tree.files[path], re.M)
    for number, line in lines_of(tree.files[path]):
        match = re.match(r"\| `src/([\w/]+)` \|", line)
        wanted = order[told.index(match.group(1))] if match and told.index(match.group(1)) < len(order) else None
        if match and match.group(1) != wanted:
            yield Finding(path, number, "layer-table", f"src/{match.group(1)} stands where CMakeLists.txt has {wanted or 'no layer'}")
            return
    if told != order:
        yield Finding(path, 1, "layer-table", f"the table lacks {', '.join(order[len(told):])}")


def rule_layer_picture(tree):
    """docs/images/layers.svg shows what the CMake files say."""
    import architecture_picture  # here, because it uses this module
    path = architecture_picture.PICTURE
    if path in tree.files and tree.files[path] != architecture_picture.draw(tree):
        yield Finding(path, 1, "layer-picture", "differs from the CMake files: run scripts/architecture_picture.py")


def rule_figures(tree):
    """Measured numbers in the documents match the result files, and each has a proof (scripts/figures.py)."""
    findings, _ = figures.check(tree.files, figures.reader(tree.files.__getitem__))
    for finding in findings:
        yield Finding(finding.path, finding.line, "figures", finding.text)


def rule_mutants(tree):
    """Each mutant matches its file exactly once and names a test that exists (scripts/mutants.py applies them)."""
    pages = [path for path in tree.files if path == "docs/async-mutants.md" or path.startswith("test/mutants/")]
    if not pages:
        return
    import mutants  # here, because nothing else needs it
    tests = "".join(content for path, content in tree.files.items() if path.startswith("test/"))
    for page in pages:
        text = tree.files[page]
        for found in mutants.ENTRY.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            old = "\n".join(part[1:] for part in found["diff"].splitlines() if part.startswith("-"))
            count = tree.files.get(found["file"], "").count(old)
            if count != 1:
                yield Finding(page, line, "mutants", f"the diff fits {found['file']} {count} times, it must fit once")
            is_of_googletest = not re.search(r"::|/|^ctest:", found["test"])
            for test in found["test"].split(":") if is_of_googletest else ():
                suite, _, name = test.strip("*").partition(".") if "." in test else ("", "", test.strip("*"))
                if not re.search(r"TEST(_F|_P)?\(" + (suite or r"\w+") + ", " + (r"\w+" if name in ("*", "") else name) + r"\)", tests):
                    yield Finding(page, line, "mutants", f"no test {test} in test/")


def check_include(tree, deps, layer, path, number, name):
    """Headers of src/ are named with their folder: "messaging/rndv.hpp"."""
    if f"src/{name}" in tree.files:
        owner = layer_of(deps, f"src/{name}")
        if owner != layer and owner not in transitive(deps, layer):
            yield Finding(path, number, "layers", f'"{name}" belongs to {owner}, which is not in the DEPS of {layer}')
    elif f"include/{name}" not in tree.files and f"uapi/{name}" not in tree.files:
        yield Finding(path, number, "layers", f'"{name}" is in no layer; write the folder below src/ ("base/status.hpp"), and <...> for a '
                                              "header from outside")


# ---- Environment -------------------------------------------------------------------------------------------------------


def rule_getenv(tree):
    for path, text in tree.with_suffix(*CXX).items():
        if path == "src/base/env.cpp" or path.startswith("test/"):
            continue
        for number, line in lines_of(text):
            if re.search(r"\b(secure_)?getenv\s*\(", without_comments(line)) and not allowed(line, "getenv"):
                yield Finding(path, number, "getenv", "register the variable in src/base/env.cpp and read it with env_read")


# ---- Threads ---------------------------------------------------------------------------------------------------------

# std::thread(...), a thread as a member, a thread in a vector.
STARTED_THREAD = re.compile(r"\bstd::j?thread\s*\(|\bthreads?_\s*\(\s*\[|\bthread\s+\w+\s*\(\s*\[|"
                            r"\b(threads|workers|helpers)_\.emplace_back\s*\(\s*\[")


def rule_threads(tree):
    for path, text in tree.with_suffix(*CXX).items():
        if not path.startswith("src/") or path == "src/os/blocked_signals.hpp":
            continue
        lines = lines_of(text)
        before = ""
        for number, line in lines:
            if STARTED_THREAD.search(without_comments(line)) and "blocked_signals" not in before and not allowed(line, "threads"):
                yield Finding(path, number, "threads", "start_thread (os/blocked_signals.hpp) keeps the application's signals away from it")
            before = line


def registered_variables(tree):
    names = set()
    for path, text in tree.files.items():
        if re.match(r"src/base/env[^/]*\.(cpp|hpp|def)$", path):
            names.update(re.findall(r'env_variable\{\s*"([A-Z0-9_]+)"', text))
    return names


def names_defined_in_code(tree):
    names = set()
    for path, text in tree.files.items():
        if path.endswith(CXX):
            names.update(re.findall(r"#\s*define\s+(\w+)", text))
        if path.startswith("include/"):
            names.update(re.findall(r"#\s*ifn?def\s+(\w+)", text))
            names.update(re.findall(r"^\s*((?:PEERLANE|GDRCOPY)_\w+)\s*(?:=|,|$)", text, re.M))
        if path.endswith(".map"):
            names.update(re.findall(r"^(\w+)\s*\{", text, re.M))  # a symbol version
        if path.endswith(("CMakeLists.txt", ".cmake")):
            code = strip_cmake_comments(text)
            names.update(re.findall(r"\b(?:option|set)\(\s*(\w+)", code))
            for call in re.findall(r"compile_definitions\(([^()]*(?:\([^()]*\)[^()]*)*)\)", code):
                names.update(re.findall(r"\b[A-Z][A-Z0-9_]+", call))
    return names


def rule_variables(tree):
    known = registered_variables(tree) | names_defined_in_code(tree) | set(NOT_ENVIRONMENT)
    for path, text in tree.files.items():
        if path in SELF or DATA.search(path):
            continue
        for number, line in lines_of(text):
            for name in re.findall(r"(?<![\w])(?:PEERLANE|GDRCOPY)_[A-Z0-9_]*", line):
                if name in known or allowed(line, "variables"):
                    continue
                if name.endswith("_") and any(k.startswith(name) for k in known):
                    continue  # a family, such as PEERLANE_SIM_*
                yield Finding(path, number, "variables", f"{name} is not registered in src/base/env.cpp")


# ---- Text --------------------------------------------------------------------------------------------------------------


def is_generated(text):
    return "generated by" in text[:400].lower()


def rule_length(tree):
    for path, text in tree.with_suffix(*CODE).items():
        count = text.count("\n")
        if count <= LINES_WARN or is_generated(text) or DATA.search(path):
            continue
        if count > LINES_MAX:
            yield Finding(path, count, "length", f"{count} lines, at most {LINES_MAX}: which noun wants its own file?")
        else:
            yield Finding(path, count, "length", f"{count} lines, {LINES_MAX} is the limit", fatal=False)


def rule_spdx(tree):
    for path, text in tree.with_suffix(*CODE).items():
        if "SPDX-License-Identifier: " not in "\n".join(text.split("\n", 4)[:4]) and not DATA.search(path):
            yield Finding(path, 1, "spdx", "the first lines lack `SPDX-License-Identifier: Apache-2.0`")


def rule_machine_paths(tree):
    own = []
    if tree.root is not None:
        for folder in (str(tree.root), str(tree.root.parent)):
            if folder not in COMMON_DIRS:
                own.append(folder)
    own_paths = [(folder, re.compile(rf"(?<![\w.-]){re.escape(folder)}(?![\w-])")) for folder in own]
    for path, text in tree.files.items():
        if path in SELF or not (MACHINE_PATH.search(text) or any(folder in text for folder in own)):
            continue
        for number, line in lines_of(text):
            if allowed(line, "machine-path"):
                continue
            found = MACHINE_PATH.search(line)
            hit = found.group(0) if found else next((folder for folder, pattern in own_paths if pattern.search(line)), None)
            if hit:
                yield Finding(path, number, "machine-path", f"{hit}... is a path of one machine")


def rule_words(tree):
    for path, text in tree.files.items():
        if path in SELF or DATA.search(path) or not re.search("TODO|FIXME|XXX", text):
            continue
        for number, line in lines_of(text):
            if allowed(line, "words"):
                continue
            if re.search(r"\bTODO\b(?!\s*\(#\d+\))", line):
                yield Finding(path, number, "words", "a TODO names its issue: TODO(#12)")
            word = re.search(r"\b(FIXME|XXX)\b", line)
            if word:
                yield Finding(path, number, "words", f"{word.group(1)}: mend it, or file an issue and write TODO(#12)")


def rule_whitespace(tree):
    for path, text in tree.files.items():
        if DATA.search(path):
            continue
        for number, line in lines_of(text) if re.search(r"[^\S\n]$", text, re.M) else ():
            if line != line.rstrip():
                yield Finding(path, number, "whitespace", "trailing white space")
        if text and not text.endswith("\n"):
            yield Finding(path, text.count("\n") + 1, "whitespace", "no newline at the end of the file")


def rule_version(tree):
    """The public header and the changelog's first section have the version of CMakeLists.txt."""
    project = re.search(r"^project\(\w+ VERSION (\d+)\.(\d+)\.\d+", tree.files.get("CMakeLists.txt", ""), re.M)
    if not project:
        return
    path = "include/peerlane/peerlane.h"
    for name, value in zip(("MAJOR", "MINOR"), project.groups()):
        found = re.search(rf"^#define PEERLANE_VERSION_{name} (\d+)$", tree.files.get(path, ""), re.M)
        if found and found.group(1) != value:
            yield Finding(path, 1, "version", f"PEERLANE_VERSION_{name} is {found.group(1)}, the project's is {value}")
    path = "CHANGELOG.md"
    section = re.search(r"^## (.*)$", tree.files.get(path, ""), re.M)
    if section and not re.fullmatch(rf"(Unreleased \()?{re.escape('.'.join(project.groups()))}\.\d+(\)| \(\d{{4}}-\d\d-\d\d\))", section.group(1)):
        yield Finding(path, 1, "version", f"the first section is \"{section.group(1)}\": write {'.'.join(project.groups())}.N (DATE), or Unreleased (VERSION)")


def rule_links(tree):
    """Links of documents, and pages that programs name, exist (lint_links.py)."""
    for path, number, line, problem in lint_links.problems(tree.files, tree.binary):
        if path not in SELF and not allowed(line, "links"):
            yield Finding(path, number, "links", problem)


def rule_navigation(tree):
    """Each page and each public header is in the site's navigation. Otherwise `make docs` fails, which few people run."""
    path = "mkdocs.yml"
    if path not in tree.files:
        return
    listed = set(re.findall(r"[\w./-]+\.md\b", tree.files[path]))
    omitted = re.search(r"^OMITTED = \((.*)\)", tree.files.get("scripts/site_hooks.py", ""), re.M)
    omitted = set(re.findall(r'"([^"]+)"', omitted.group(1))) if omitted else set()
    pages = {name.removeprefix("docs/") for name in tree.files if re.match(r"docs/(?!figures/).*\.md$", name)}
    headers = {name.removeprefix("include/") for name in tree.files if re.match(r"include/.*\.h(pp)?$", name)} - omitted
    for page in sorted((pages | {f"reference/{name}.md" for name in headers}) - listed):
        yield Finding(path, 1, "navigation", f"{page} is not in nav")


# The printed length as an exit status: it is taken modulo 256, so a message of 255 characters and its newline would mean success.
PRINTED_LENGTH = re.compile(r"\breturn\s+(?:std::)?(?:v?f?printf|f?puts)\s*\(.*\)\s*;")


def rule_printed_length(tree):
    for path, text in tree.with_suffix(*CXX, ".md").items():
        if DATA.search(path) or not PRINTED_LENGTH.search(text):
            continue
        for number, line in lines_of(text):
            if PRINTED_LENGTH.search(line) and not allowed(line, "printed-length"):
                yield Finding(path, number, "printed-length",
                              "returns a length: print to stderr and return 1 (`return fprintf(stderr, ...), 1;`)")


def rule_binary(tree):
    for path in tree.binary:
        if not DATA.search(path) and not path.endswith(".png"):
            yield Finding(path, 1, "binary", "a binary file: keep what makes it, not what is made")


# ---- Names -------------------------------------------------------------------------------------------------------------

# Prepositions, articles and question words. They need the sentence around them: name the role (`destination`, `reason`).
BARE_WORDS = frozenset("""of by at to from into onto upon via with without until since than an the its these those here there
                           what how when where who whom whose why which""".split())
# Names of the standard library: at() of containers, what() of exceptions.
STANDARD_CALLS = frozenset(("at", "what"))
# Words that only this project used, as parts of an identifier, and the field's terms for what was meant.
PRIVATE_WORDS = {
    "lane": "transport, shm queue, session (a lane is UCX's, a warp's or a register's)", "outlet": "send queue, shm queue",
    "door": "value service", "doors": "value services", "landing": "receive slot", "carrier": "transport, send queue",
    "rescue": "release, cancel", "rescued": "released, cancelled", "depart": "leave", "departed": "gone", "surely": "is_...",
    "wish": "options, hint", "wishes": "options, hints", "sleeper": "waiter, proxy thread", "sleepers": "waiters",
    "crew": "workers", "bell": "doorbell, wakeup", "bells": "doorbells, wakeups",
}
# The same for whole identifiers; as parts they are allowed (`look_up`).
PRIVATE_NAMES = {"look": "classify, inspect, poll, check", "looks": "polls, checks", "told": "reply, describe_...",
                 "filling": "catch-up, fill progress"}
# Files with lanes of UCX, of a warp or of a vector register.
LANE_OF_THE_FIELD = re.compile(r"ucx|gpu_lane|rdma_lane|^(kO|o)ver_?[lL]ane$", re.I)
LANE_FILES = re.compile(r"^(src|test)/ucx/|^src/arch/|\.cuh?$")
COMMENT_OR_LITERAL = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'')


IDENTIFIER = re.compile(r"(?<!\w)([A-Za-z_]\w*)(?=\s*(\())?")


def without_comments_and_literals(text):
    """C or C++ with blanks in their place, so that lines and columns stay."""
    return COMMENT_OR_LITERAL.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


def parts_of(name):
    return [part.lower() for part in re.split(r"_|(?<=[a-z0-9])(?=[A-Z])", name) if part]


@functools.cache
def complaint_about(name, is_call, has_lanes):
    """What is wrong with an identifier, or None; `has_lanes`: of a file where the field has lanes."""
    bare = name.rstrip("_")
    if bare in BARE_WORDS and not (bare in STANDARD_CALLS and is_call):
        return f"{name} needs the sentence around it: name the role (destination, reason, deadline, peer)"
    if re.match(r"kMost([A-Z]|$)", name):
        return f"{name}: limits are kMaxX and kMinX"
    if bare in PRIVATE_NAMES:
        return f"{name} is this project's own word; the field says {PRIVATE_NAMES[bare]}"
    for part in parts_of(name):
        if part in PRIVATE_WORDS and not (part == "lane" and (has_lanes or LANE_OF_THE_FIELD.search(name))):
            return f"{name}: \"{part}\" is this project's own word; the field says {PRIVATE_WORDS[part]}"
    return None


def rule_names(tree):
    """Identifiers use the field's terms: no bare prepositions, articles or question words, no private language."""
    for path, text in tree.with_suffix(*CXX).items():
        if DATA.search(path):
            continue
        originals, has_lanes = text.split("\n"), LANE_FILES.search(path) is not None
        for number, line in lines_of(without_comments_and_literals(text)):
            if re.match(r"\s*#\s*include\b", line) or allowed(originals[number - 1], "names"):
                continue
            seen = set()
            for match in IDENTIFIER.finditer(line):
                problem = complaint_about(match.group(1), match.group(2) is not None, has_lanes)
                if problem and problem not in seen:
                    seen.add(problem)
                    yield Finding(path, number, "names", problem)


# The same words in comments, texts, logs and documents. What English needs (look, told, filling) is not among them.
PRIVATE_TEXT = re.compile(r"\b(lanes?|outlets?|doors?|landings?|carriers?|rescue[ds]?|depart(?:ed|s|ures?)?|surely|wish(?:es)?|sleepers?"
                          r"|crews?|bells?)\b", re.I)
# Files in which a lane is one of UCX, RDMA, PCIe, a warp or DLPack; and the results of the first runs.
TEXT_OF_THE_FIELD = re.compile(r"UCX|ucx|RDMA|PCIe|slot's lanes|fewer lanes|lanes_in|\blanes\b.*c_uint|\.lanes\b|front-door|lane\[", re.M)


def rule_text(tree):
    """Comments, logs and documents use the field's terms."""
    for path, text in tree.files.items():
        if path in SELF or DATA.search(path) or LANE_FILES.search(path) or path.startswith("docs/figures/") or not PRIVATE_TEXT.search(text):
            continue
        for number, line in lines_of(text):
            found = PRIVATE_TEXT.search(line)
            if not found or allowed(line, "text") or allowed(line, "names") or TEXT_OF_THE_FIELD.search(line):
                continue
            word = found.group(1).lower()
            term = next((PRIVATE_WORDS[key] for key in (word, word[:-1], word[:-2]) if key in PRIVATE_WORDS), "leave, release, certainly")
            yield Finding(path, number, "text", f"\"{found.group(1)}\" is this project's own word; the field says {term}")


def rule_python_names(tree):
    """The same for what Python code defines, but for tests."""
    for path, text in tree.with_suffix(".py").items():
        if path in SELF or DATA.search(path) or path.startswith("test/"):
            continue
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except SyntaxError:
            continue  # a template, or for a newer Python
        lines = text.split("\n")
        for node in nodes:
            name = (node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else
                    node.arg if isinstance(node, ast.arg) else
                    node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)) else
                    node.attr if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) else None)
            problem = name and complaint_about(name.lstrip("_"), False, False)
            if problem and not allowed(lines[node.lineno - 1], "names"):
                yield Finding(path, node.lineno, "names", problem)


def rule_file_names(tree):
    for path in tree.files:
        problem = None if DATA.search(path) or path.startswith("docs/") else next(
            (part for part in parts_of(re.sub(r"[.-]", "_", os.path.basename(path))) if part in PRIVATE_WORDS), None)
        if problem and not LANE_FILES.search(path):
            yield Finding(path, 1, "names", f"\"{problem}\" is this project's own word; the field says {PRIVATE_WORDS[problem]}")


def rule_unity(tree):
    """Names of one target do not collide, so that every file can be in a unity build; generated objects are left out of it."""
    for path, text in tree.files.items():
        if not path.endswith(("CMakeLists.txt", ".cmake")) or path == "cmake/Kernels.cmake":
            continue
        for number, line in lines_of(text):
            if "SKIP_UNITY_BUILD_INCLUSION" in re.sub(r"#.*", "", line) and not allowed(line, "unity"):
                yield Finding(path, number, "unity", "rename what collides; only generated objects stay out of unity builds")


# ---- Scripts -----------------------------------------------------------------------------------------------------------


def rule_executable(tree):
    for path, text in tree.files.items():
        if text.startswith("#!") and path not in tree.executable:
            yield Finding(path, 1, "executable", "starts with #! but is not executable: chmod +x")
        if path.endswith(".sh") and not text.startswith("#!"):
            yield Finding(path, 1, "executable", "a shell script starts with #!/usr/bin/env bash")


def shell_scripts(tree):
    return [p for p, t in tree.files.items() if re.match(r"#!.*\b(ba)?sh\b", t)]


def rule_bash(tree):
    for path in shell_scripts(tree):
        done = subprocess.run(["bash", "-n"], input=tree.files[path], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield Finding(path, 1, "bash", done.stderr.strip().split("\n")[0])


RULES = (rule_layers, rule_layer_table, rule_layer_picture, rule_figures, rule_mutants, rule_getenv, rule_threads, rule_variables,
         rule_length, rule_spdx, rule_machine_paths, rule_words, rule_names, rule_python_names, rule_text, rule_file_names, rule_unity, rule_whitespace,
         rule_links, rule_navigation, rule_version, rule_printed_length, rule_binary, rule_executable, rule_bash)

# ---- Linters from outside ----------------------------------------------------------------------------------------------


def clang_format_reason():
    """The reason why clang-format cannot be used here, or None."""
    if shutil.which("clang-format") is None:
        return "clang-format is not installed"
    text = subprocess.run(["clang-format", "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"version (\d+)", text)
    if not match or int(match.group(1)) != CLANG_FORMAT_MAJOR:
        return f"clang-format {match.group(1) if match else '?'} is installed, the layout is defined by {CLANG_FORMAT_MAJOR}"
    return None


def run_clang_format(tree, skipped):
    reason = clang_format_reason()
    files = [p for p in tree.with_suffix(*CXX) if not DATA.search(p) and not p.startswith(KERNEL_STYLE)]
    if reason:
        skipped.append(f"layout of {len(files)} C and C++ files ({reason})")
        return
    done = subprocess.run(["clang-format", "--dry-run", *files], cwd=tree.root, capture_output=True, text=True, check=False)
    seen = set()
    for match in re.finditer(r"^(.+?):(\d+):\d+: (?:warning|error): ", done.stderr, re.M):
        if match.group(1) not in seen:  # one finding for each file is enough: clang-format -i mends all of them
            seen.add(match.group(1))
            yield Finding(match.group(1), int(match.group(2)), "format", f"run: clang-format -i {match.group(1)}")


def run_shellcheck(tree, skipped):
    files = shell_scripts(tree)
    if shutil.which("shellcheck") is None:
        skipped.append(f"shellcheck of {len(files)} scripts (shellcheck is not installed)")
        return
    done = subprocess.run(["shellcheck", "-x", "-f", "gcc", "-S", "warning", *files], cwd=tree.root, capture_output=True,
                          text=True, check=False)
    for match in re.finditer(r"^(.+?):(\d+):\d+: \w+: (.*)$", done.stdout, re.M):
        yield Finding(match.group(1), int(match.group(2)), "shellcheck", match.group(3))


def main(arguments):
    root = Path(__file__).resolve().parent.parent
    tree = load_tree(root)
    skipped = []
    findings = [finding for rule in RULES for finding in rule(tree)]
    findings += run_clang_format(tree, skipped)
    findings += run_shellcheck(tree, skipped)
    if arguments:
        wanted = {os.path.relpath(os.path.abspath(a), root) for a in arguments}
        findings = [f for f in findings if f.path in wanted]
    for finding in sorted(findings, key=lambda f: (f.path, f.line)):
        print(finding)
    for text in skipped:
        print(f"lint: NOT CHECKED: {text}")
    errors = sum(f.fatal for f in findings)
    print(f"lint: {len(tree.files)} files, {errors} errors, {len(findings) - errors} warnings, {len(skipped)} checks left out")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
