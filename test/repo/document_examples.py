#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""document_examples.py INCLUDE_DIR CC CXX FILE.md...: the C and C++ examples of the documents compile as they stand there.

An example is the body of a function that gets `device_ptr`; its #include lines are moved to the top.
"""

import re
import subprocess
import sys


def program(language, body):
    includes = re.findall(r"^#include .*$", body, re.M)
    rest = re.sub(r"^#include .*$", "", body, flags=re.M)
    standard = ["#include <cstdio>", "#include <cstdint>"] if language == "c++" else ["#include <stdio.h>", "#include <stdint.h>"]
    return "\n".join([*standard, *includes, "int example(uint64_t device_ptr);",
                      "int example(uint64_t device_ptr) {", rest, "return 0; }", ""])


def main(include, cc, cxx, *documents):
    failed = count = 0
    for document in documents:
        with open(document, encoding="utf-8") as file:
            text = file.read()
        for name, body in re.findall(r"^```(c|cpp)\n(.*?)^```$", text, re.M | re.S):
            language, standard, compiler = ("c++", "c++20", cxx) if name == "cpp" else ("c", "c99", cc)
            done = subprocess.run([compiler, "-x", language, f"-std={standard}", "-Wall", "-Werror", "-fsyntax-only", "-I", include, "-"],
                                  input=program(language, body), capture_output=True, text=True, check=False)
            count += 1
            if done.returncode != 0:
                failed += 1
                print(f"{document}: an example in {name} does not compile:\n{body}\n{done.stderr}")
    print(f"{count} examples, {failed} do not compile")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
