#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""exports.py NM LIBRARY PREFIX HEADER...: the library exports exactly the functions that its public headers declare."""

import re
import subprocess
import sys


def declared(header, prefix):
    with open(header, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    # Bodies go, and with them the functions that are inline.
    text = text.replace('extern "C" {', "")
    while (bare := re.sub(r"\{[^{}]*\}", "\0", text)) != text:
        text = bare
    text = re.sub(r"static inline[^\0;]*\0", "", text)
    return set(re.findall(rf"\b({prefix}\w+)\s*\(", text))


def exported(nm, library):
    listing = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    # "A" are the names of symbol versions, not symbols.
    return {line.split()[-1].split("@")[0] for line in listing.splitlines() if line.split()[-2] != "A"}


def main(nm, library, prefix, *headers):
    wanted, found = set().union(*(declared(header, prefix) for header in headers)), exported(nm, library)
    for name in sorted(wanted - found):
        print(f"{name} is declared in {' or '.join(headers)} and not exported")
    for name in sorted(found - wanted):
        print(f"{name} is exported and declared nowhere: nobody may bind to it, so hide it")
    print(f"{len(wanted)} functions declared, {len(found)} symbols exported")
    return 0 if wanted == found and wanted else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
