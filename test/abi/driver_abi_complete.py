#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""driver_abi_complete.py driver_abi.hpp driver_abi_test.cpp: every constant and struct of the first is compared in the second."""

import re
import sys


def names(text):
    text = re.sub(r"//[^\n]*", "", text)
    for space, body in re.findall(r"namespace (\w+) \{\s*enum[^{]*\{(.*?)\};", text, re.S):
        for name in re.findall(r"(\w+)\s*=", body):
            yield f"{space}::{name}"
    yield from re.findall(r"^(?:struct|union) (\w+) \{", text, re.M)


def main(header, test):
    with open(header, encoding="utf-8") as file:
        wanted = sorted(set(names(file.read())))
    with open(test, encoding="utf-8") as file:
        text = file.read()
    missing = [n for n in wanted if not re.search(rf"\b{re.escape(n)}\b", text)]
    for name in missing:
        print(f"{name} is not compared with the real header: add a SAME_... line to driver_abi_test.cpp")
    print(f"{len(wanted)} names, {len(missing)} missing")
    return 1 if missing or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
