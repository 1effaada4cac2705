#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""elf_check.py NM READELF LIBRARY MAP_FILE SONAME PLAIN|SANITIZED [NAME...]

What programs meet when they load the library, read from the file itself:
  - it exports the names of its version script, no more and no fewer, under that script's version; each NAME is among them;
  - its SONAME, which its file name goes on from, the links that clients open (lib.so, the SONAME) beside it, -z nodelete;
  - it needs libc and the dynamic linker only (plain builds: sanitizers bring their run times);
  - its thread-local storage stays small: it is initial-exec, so dlopen serves it from the 1.6 KiB that glibc keeps for
    all libraries of a process together, and a library that asks for much fails to load next to others.
"""

import os
import re
import subprocess
import sys

TLS_LIMIT_BYTES = 128  # of the some 1.6 KiB that the dynamic linker keeps for libraries that are opened late


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def names_of_map(path):
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    version, exported = re.search(r"(\w*)\s*{\s*global:(.*?)local:", text, flags=re.S).groups()
    return {name + "@@" + version if version else name for name in re.findall(r"\w+", exported)}


def exported(nm, library):
    rows = [line.split() for line in run(nm, "-D", "--defined-only", library).splitlines()]
    return {row[-1] for row in rows if row[-2] != "A"}  # A: the name of a symbol version


def check(nm, readelf, library, map_file, soname, build, names):
    wanted, found = names_of_map(map_file), exported(nm, library)
    for name in sorted(wanted ^ found):
        yield f"{name} is {'exported but not' if name in found else 'not exported but'} in {os.path.basename(map_file)}"
    for name in names:
        if name not in {one.split("@")[0] for one in found}:
            yield f"{name}: a name of the original library is missing"
    if not os.path.basename(library).startswith(soname + "."):
        yield f"the file's name does not go on from {soname}"
    dynamic = run(readelf, "-dW", library)
    if f"Library soname: [{soname}]" not in dynamic:
        yield f"the SONAME is not {soname}"
    if "NODELETE" not in dynamic:
        yield "not linked with -z nodelete: clients that dlclose it keep pointers into it"
    needed = set(re.findall(r"Shared library: \[(.*?)\]", dynamic))
    strangers = {n for n in needed if n != "libc.so.6" and not n.startswith("ld-linux")}
    if build == "PLAIN" and strangers:
        yield f"needs {', '.join(sorted(strangers))}"
    folder = os.path.dirname(library)
    for link in (soname, soname.split(".so")[0] + ".so"):
        if not os.path.samefile(os.path.join(folder, link), library):
            yield f"{link} does not lead to {os.path.basename(library)}"
    tls = re.search(r"^\s*TLS\s+(?:0x\w+\s+){4}(0x\w+)", run(readelf, "-lW", library), flags=re.M)
    if build == "PLAIN" and tls and int(tls.group(1), 16) > TLS_LIMIT_BYTES:
        yield f"{int(tls.group(1), 16)} bytes of thread-local storage, at most {TLS_LIMIT_BYTES}"


def main(arguments):
    nm, readelf, library, map_file, soname, build, *names = arguments
    problems = list(check(nm, readelf, os.path.realpath(library), map_file, soname, build, names))
    for problem in problems:
        print(f"{os.path.basename(library)}: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
