#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each lint rule finds its fault, and accepts the most similar correct line."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import architecture_picture  # noqa: E402
import lint  # noqa: E402

LAYERS = {
    "CMakeLists.txt": "foreach(layer IN ITEMS base os map capi)\n",
    "src/base/CMakeLists.txt": "pl_layer(base SOURCES a.cpp)\n",
    "src/base/text.hpp": "",
    "src/os/CMakeLists.txt": "pl_layer(os SOURCES fd.cpp DEPS pl_base)\n",
    "src/os/fd.hpp": '#include "base/text.hpp"\n',
    "src/map/CMakeLists.txt": "pl_layer(map SOURCES map.cpp\n  DEPS pl_os)  # not pl_capi\n",
    "src/map/map.hpp": '#include "os/fd.hpp"\n#include "base/text.hpp"\n#include <os/other.hpp>\n',
    "src/map/inner/part.cpp": '#include "map/map.hpp"\n',
    "src/capi/CMakeLists.txt": "add_library(gdrapi SHARED gdrapi.cpp)\ntarget_link_libraries(gdrapi PRIVATE pl_map pl_options)\n",
    "src/capi/gdrapi.cpp": '#include "gdrapi.h"\n#include "map/map.hpp"\n#include "base/text.hpp"\n#include "generated_kernels.hpp"\n#include "copy_engine_image.hpp"\n',
    "include/gdrapi.h": "",
}
REGISTRY = {"src/base/env.cpp": 'env_variable{"PEERLANE_GPU", x},\n    env_variable{\n  "PEERLANE_SIM_SEED", y}\n'}


def run(rule, files, executable=(), root=None):
    return [(f.path, f.line) for f in rule(lint.Tree(dict(files), set(executable), root)) if f.fatal]


class Layers(unittest.TestCase):
    def test_allowed_includes_pass(self):
        self.assertEqual(run(lint.rule_layers, LAYERS), [])

    def test_dependencies_are_followed(self):
        deps = lint.layer_deps(lint.Tree(LAYERS))
        self.assertEqual(lint.transitive(deps, "capi"), {"map", "os", "base"})

    def test_a_folder_with_two_targets(self):
        files = {**LAYERS, "src/os/CMakeLists.txt": "pl_layer(os SOURCES fd.cpp DEPS pl_base)\nadd_library(pl_topology STATIC t.cpp)\n",
                 "src/map/CMakeLists.txt": "pl_layer(map SOURCES map.cpp DEPS pl_base pl_topology)"}
        self.assertEqual(lint.layer_deps(lint.Tree(files))["map"], {"os", "base"})
        self.assertEqual(run(lint.rule_layers, files), [])

    def test_upward_include(self):
        files = {**LAYERS, "src/os/fd.hpp": '\n#include "map/map.hpp"\n'}
        self.assertEqual(run(lint.rule_layers, files), [("src/os/fd.hpp", 2)])

    def test_include_without_its_folder(self):
        files = {**LAYERS, "src/os/fd.hpp": '#include "text.hpp"\n'}
        self.assertEqual(run(lint.rule_layers, files), [("src/os/fd.hpp", 1)])

    def test_a_layer_below_another(self):
        files = {**LAYERS, "CMakeLists.txt": "foreach(layer IN ITEMS base os map map/inner capi)\n",
                 "src/map/inner/CMakeLists.txt": "pl_layer(inner SOURCES part.cpp DEPS pl_base)\n"}
        self.assertEqual(run(lint.rule_layers, files), [("src/map/inner/part.cpp", 1)])
        files["src/map/inner/CMakeLists.txt"] = "pl_layer(inner SOURCES part.cpp DEPS pl_map)\n"
        self.assertEqual(run(lint.rule_layers, files), [])

    def test_include_of_a_layer_that_is_not_a_dependency(self):
        files = {**LAYERS, "src/map/CMakeLists.txt": "pl_layer(map SOURCES map.cpp DEPS pl_base)"}
        self.assertIn(("src/map/map.hpp", 1), run(lint.rule_layers, files))

    def test_the_table_of_layers(self):
        rows = [f"| `src/{name}` | what it knows |" for name in ("base", "os", "map", "capi")]
        page = lambda rows: {**LAYERS, "docs/architecture.md": "\n".join(rows) + "\n"}  # noqa: E731
        self.assertEqual(run(lint.rule_layer_table, page(rows)), [])
        self.assertEqual(run(lint.rule_layer_table, page([rows[0], rows[2], rows[1], rows[3]])), [("docs/architecture.md", 2)])
        self.assertEqual(run(lint.rule_layer_table, page(rows[:3])), [("docs/architecture.md", 1)])
        self.assertEqual(run(lint.rule_layer_table, page([*rows, "| `src/old` | gone |"])), [("docs/architecture.md", 5)])

    def test_layer_picture(self):
        picture = architecture_picture.draw(lint.Tree(LAYERS))
        self.assertIn(">capi<", picture)
        self.assertEqual(run(lint.rule_layer_picture, {**LAYERS, architecture_picture.PICTURE: picture}), [])
        self.assertEqual(run(lint.rule_layer_picture, {**LAYERS, architecture_picture.PICTURE: picture + " "}), [(architecture_picture.PICTURE, 1)])

    def test_figures(self):
        files = {"docs/a.md": "\nA copy takes 5 us.\n", "docs/results/a.json": '{"rows": [{"us": 5.2}]}',
                 "docs/figures/a.txt": "file a a.json\nA copy takes {} us\n    max(a[us>0].us)\n"}
        self.assertEqual(run(lint.rule_figures, files), [])
        self.assertEqual(run(lint.rule_figures, {**files, "docs/a.md": "\nA copy takes 6 us.\n"}), [("docs/a.md", 2)])
        self.assertEqual(run(lint.rule_figures, {"docs/a.md": files["docs/a.md"]}), [("docs/a.md", 2)])

    def test_mutants(self):
        page = "\n## a rule\n`src/triggered/a.cpp` · `suite.name`\n```diff\n-  one();\n-  two();\n+  one();\n```\n"
        files = {"docs/async-mutants.md": page, "src/triggered/a.cpp": "{\n  one();\n  two();\n}\n", "test/triggered/a_test.cpp": "TEST(suite, name) {\n"}
        self.assertEqual(run(lint.rule_mutants, files), [])
        self.assertEqual(run(lint.rule_mutants, {**files, "docs/async-mutants.md": page.replace("suite.name", "suite.*")}), [])
        self.assertEqual(run(lint.rule_mutants, {**files, "src/triggered/a.cpp": "  one();\n"}), [("docs/async-mutants.md", 2)])
        self.assertEqual(run(lint.rule_mutants, {**files, "test/triggered/a_test.cpp": ""}), [("docs/async-mutants.md", 2)])
        page = "\n## a rule\n`src/triggered/a.cpp` · `stream_test` · `suite.name:suite.other` · expression\n```diff\n-one()\n+true\n```\n"
        files = {"test/mutants/a.md": page, "src/triggered/a.cpp": "  one();\n", "test/triggered/a_test.cpp": "TEST(suite, name) {\nTEST(suite, other) {\n"}
        self.assertEqual(run(lint.rule_mutants, files), [])
        self.assertEqual(run(lint.rule_mutants, {**files, "test/triggered/a_test.cpp": "TEST(suite, name) {\n"}), [("test/mutants/a.md", 2)])

    def test_unknown_header(self):
        files = {**LAYERS, "src/os/fd.hpp": '#include "stdio.h"\n'}
        self.assertEqual(run(lint.rule_layers, files), [("src/os/fd.hpp", 1)])

    def test_parent_folder_in_include(self):
        for name in ("../base/text.hpp", "x/../text.hpp"):
            files = {**LAYERS, "test/os/fd_test.cpp": f'#include "{name}"\n'}
            self.assertEqual(run(lint.rule_layers, files), [("test/os/fd_test.cpp", 1)])

    def test_dependency_that_stands_later(self):
        files = {**LAYERS, "src/os/CMakeLists.txt": "pl_layer(os SOURCES fd.cpp DEPS pl_base pl_map)"}
        self.assertEqual(run(lint.rule_layers, files), [("src/os/CMakeLists.txt", 1)])

    def test_layer_that_the_list_lacks(self):
        files = {**LAYERS, "src/extra/CMakeLists.txt": "pl_layer(extra SOURCES a.cpp)"}
        self.assertEqual(run(lint.rule_layers, files), [("src/extra/CMakeLists.txt", 1)])


class Environment(unittest.TestCase):
    def test_getenv(self):
        call = 'auto x = std::getenv("HOME");\n'
        self.assertEqual(run(lint.rule_getenv, {"src/os/fd.cpp": call}), [("src/os/fd.cpp", 1)])
        self.assertEqual(run(lint.rule_getenv, {"tools/a.cpp": "x = secure_getenv (name);\n"}), [("tools/a.cpp", 1)])
        for path in ("src/base/env.cpp", "test/base/env_test.cpp", "docs/a.md"):
            self.assertEqual(run(lint.rule_getenv, {path: call}), [])
        self.assertEqual(run(lint.rule_getenv, {"src/a.cpp": "// as getenv() does\nsetenv(a, b, 1);\n"}), [])

    def test_registered_variables_pass(self):
        files = {**REGISTRY, "README.md": "`PEERLANE_GPU=sim`, PEERLANE_SIM_SEED, PEERLANE_SIM_*, PEERLANE_*\n"}
        self.assertEqual(run(lint.rule_variables, files), [])

    def test_unregistered_variable(self):
        for path in ("README.md", "src/a.cpp", "scripts/a.sh"):
            files = {**REGISTRY, path: "\nset GDRCOPY_NO_SUCH=1\n"}
            self.assertEqual(run(lint.rule_variables, files), [(path, 2)])
        self.assertEqual(run(lint.rule_variables, {**REGISTRY, "README.md": "PEERLANE_RM_*\n"}), [("README.md", 1)])

    def test_names_that_are_no_variables(self):
        files = {
            **REGISTRY,
            "CMakeLists.txt": 'option(PEERLANE_TESTS "x" ON)\ntarget_compile_definitions(a PRIVATE PEERLANE_AT="$<A:b>")\n',
            "include/peerlane/peerlane.h": "#define PEERLANE_H\nenum x {\n  PEERLANE_MAP_DEFAULT = 0,\n  PEERLANE_LAST\n};\n",
            "src/capi/a.map": "PEERLANE_0 {\n  global: *;\n};\n",
            "docs/a.md": "PEERLANE_0 -DPEERLANE_TESTS=OFF PEERLANE_AT PEERLANE_H PEERLANE_MAP_DEFAULT PEERLANE_LAST PEERLANE_NO_NVCC\n",
        }
        self.assertEqual(run(lint.rule_variables, files), [])


class Text(unittest.TestCase):
    def test_length(self):
        line = "int x;\n"
        self.assertEqual(run(lint.rule_length, {"src/a.cpp": line * 701}), [("src/a.cpp", 701)])
        self.assertEqual(run(lint.rule_length, {"src/a.cpp": line * 700}), [])
        for path, text in (("a.json", line * 900), ("src/a.cpp", "// Generated by x\n" + line * 900), ("src/a.def", line * 900)):
            self.assertEqual(run(lint.rule_length, {path: text}), [])
        warnings = list(lint.rule_length(lint.Tree({"src/a.cpp": line * 601})))
        self.assertEqual([w.fatal for w in warnings], [False])

    def test_spdx(self):
        self.assertEqual(run(lint.rule_spdx, {"src/a.cpp": "int x;\n"}), [("src/a.cpp", 1)])
        self.assertEqual(run(lint.rule_spdx, {"src/a.cpp": "// SPDX-License-Identifier: Apache-2.0\nint x;\n"}), [])
        self.assertEqual(run(lint.rule_spdx, {"a.sh": "#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\n"}), [])
        self.assertEqual(run(lint.rule_spdx, {"README.md": "words\n"}), [])

    def test_machine_paths(self):
        for text in ("/home/ada/peerlane\n", "cd /builds/x1\n", '"/builds/agent/main"\n'):
            self.assertEqual(run(lint.rule_machine_paths, {"docs/a.md": text}), [("docs/a.md", 1)])
        for text in ("/usr/local/cuda/bin\n", "$HOME/builds/x\n", "build/out/x\n", "/tmp/work\n", "/homestead\n"):
            self.assertEqual(run(lint.rule_machine_paths, {"docs/a.md": text}), [])

    def test_path_of_this_checkout(self):
        root = Path("/data/checkouts/peerlane")
        for text in ("x /data/checkouts/peerlane/src\n", "/data/checkouts\n"):
            self.assertEqual(run(lint.rule_machine_paths, {"a.md": text}, root=root), [("a.md", 1)])
        self.assertEqual(run(lint.rule_machine_paths, {"a.md": "/data/checkouts2 /data\n"}, root=root), [])
        self.assertEqual(run(lint.rule_machine_paths, {"a.md": "/tmp/x\n"}, root=Path("/tmp/peerlane")), [])

    def test_words(self):
        for text in ("// TODO later\n", "// TODO(ada): x\n", "// FIXME\n", "XXX\n"):
            self.assertEqual(run(lint.rule_words, {"src/a.cpp": text}), [("src/a.cpp", 1)])
        for text in ("// TODO(#12): x\n", "mktemp /tmp/a.XXXXXX\n", "todo\n"):
            self.assertEqual(run(lint.rule_words, {"src/a.cpp": text}), [])

    def test_whitespace(self):
        self.assertEqual(run(lint.rule_whitespace, {"a.md": "x \n"}), [("a.md", 1)])
        self.assertEqual(run(lint.rule_whitespace, {"a.md": "x\r\ny\n"}), [("a.md", 1)])
        self.assertEqual(run(lint.rule_whitespace, {"a.md": "x\ny"}), [("a.md", 2)])
        self.assertEqual(run(lint.rule_whitespace, {"a.md": "x\n\ny\n", "empty": ""}), [])
        self.assertEqual(run(lint.rule_whitespace, {"test/tools/golden/a.txt": "x \n"}), [])

    def test_links(self):
        text = "[a](docs/a.md#part) [b](LICENSE) [c](docs/) [d](https://example.org/x) [e](#here)\n# Here\n"
        files = {"README.md": text, "docs/a.md": "[up](../README.md)\n## Part\n", "LICENSE": ""}
        self.assertEqual(run(lint.rule_links, files), [])
        self.assertEqual(run(lint.rule_links, {"docs/a.md": "\n[b](b.md)\n"}), [("docs/a.md", 2)])
        pages = {"docs/a.md": "# A\n[b](b.md#one)\n[a](#a)\n[b](b.md#two)\n[a](#b)\n", "docs/b.md": "## One\n"}
        self.assertEqual(run(lint.rule_links, pages), [("docs/a.md", 4), ("docs/a.md", 5)])

    def test_pages(self):
        page = {"docs/a.md": '\n# Title\n## What it `does`, and [why](a.md)\n```sh\n# no heading\n```\n<a id="own"></a>\n'}
        self.assertEqual(run(lint.rule_links, {**page, "src/base/a.cpp": 'f("(docs/a.md)");\nf("docs/a.md#what-it-does-and-why docs/a.md#own.")'}), [])
        self.assertEqual(run(lint.rule_links, {**page, "src/base/a.cpp": 'f("give TLS (docs/b.md)");\n// docs/a.md#no-heading\n'}),
                         [("src/base/a.cpp", 1), ("src/base/a.cpp", 2)])

    def test_printed_length(self):
        for line in ('if (!a) return std::puts(text);\n', '  return printf("%s\\n", f(x));\n', 'return fprintf(stderr, "x");\n'):
            self.assertEqual(run(lint.rule_printed_length, {"docs/a.md": line}), [("docs/a.md", 1)])
        for line in ('return std::fprintf(stderr, "x\\n"), 1;\n', 'puts("x"); return 1;\n', "return puts_[0];\n"):
            self.assertEqual(run(lint.rule_printed_length, {"docs/a.md": line, "examples/a.c": line}), [])

    def test_threads(self):
        for line in ("  thread_ = std::thread([this] { run(); });\n", "      thread_([this, a = 1] { run(a); }) {}\n",
                     "for (;;) threads_.emplace_back([this] { run(); });\n", "std::thread guard([&] {\n"):
            self.assertEqual(run(lint.rule_threads, {"src/a/b.cpp": line}), [("src/a/b.cpp", 1)])
            self.assertEqual(run(lint.rule_threads, {"tools/a/b.cpp": line}), [])
        for line in ("  thread_ = start_thread([this] { run(); });\n", "std::thread thread_;\n", "std::thread::hardware_concurrency();\n",
                     "const blocked_signals during_start;\nthread_ = std::jthread([] {});\n"):
            self.assertEqual(run(lint.rule_threads, {"src/a/b.cpp": line}), [])

    def test_binary(self):
        tree = lint.Tree({}, binary={"tools/probe", "docs/topology.png", "test/store/corpus/1"})
        self.assertEqual([f.path for f in lint.rule_binary(tree)], ["tools/probe"])

    def test_a_line_can_be_excused(self):
        self.assertEqual(run(lint.rule_words, {"a.md": "XXX lint:allow(words): quoted\n"}), [])
        self.assertEqual(run(lint.rule_words, {"a.md": "XXX lint:allow(getenv): quoted\n"}), [("a.md", 1)])


class Navigation(unittest.TestCase):
    def test_pages_and_headers_are_listed(self):
        files = {"mkdocs.yml": "nav:\n  - A: a.md\n  - H: reference/x/h.hpp.md\n", "docs/a.md": "", "docs/figures/b.md": "",
                 "include/x/h.hpp": "", "include/x/none.h": "", "scripts/site_hooks.py": 'OMITTED = ("x/none.h", "y.h")\n'}
        self.assertEqual(run(lint.rule_navigation, files), [])
        self.assertEqual(run(lint.rule_navigation, {**files, "docs/results/c.md": "", "include/x/i.h": ""}), [("mkdocs.yml", 1)] * 2)


class Version(unittest.TestCase):
    def test_one_version(self):
        cmake = {"CMakeLists.txt": "project(peerlane VERSION 1.3.2 LANGUAGES C)\n"}
        header = "#define PEERLANE_VERSION_MAJOR {}\n#define PEERLANE_VERSION_MINOR {}\n"
        for major, minor, count in ((1, 3, 0), (1, 2, 1), (0, 2, 2)):
            files = {**cmake, "include/peerlane/peerlane.h": header.format(major, minor)}
            self.assertEqual(run(lint.rule_version, files), [("include/peerlane/peerlane.h", 1)] * count)
        for section, count in (("1.3.2 (2026-01-31)", 0), ("Unreleased (1.3.3)", 0), ("1.4.0 (2026-01-31)", 1), ("Unreleased", 1), ("1.3.2", 1)):
            self.assertEqual(run(lint.rule_version, {**cmake, "CHANGELOG.md": f"# C\n\n## {section}\n\n## 0.1\n"}), [("CHANGELOG.md", 1)] * count)


class Names(unittest.TestCase):
    def test_bare_words(self):
        for name in ("of", "by", "at", "to_", "what", "how", "where", "when", "who", "why", "from", "into", "until", "since", "here", "the"):
            self.assertEqual(run(lint.rule_names, {"src/a.cpp": f"\nint {name} = 1;\n"}), [("src/a.cpp", 2)], name)
        self.assertEqual(run(lint.rule_names, {"src/a.hpp": "struct a { location where; };\n"}), [("src/a.hpp", 1)])
        self.assertEqual(run(lint.rule_names, {"test/a.c": "void f(int of, int by);\n"}), [("test/a.c", 1)] * 2)
        for line in ("x.at(3);", "const char* what() const;", "int value_of(int a, int b);", "bool is_at_end;", "int before, after;"):
            self.assertEqual(run(lint.rule_names, {"src/a.cpp": line + "\n"}), [], line)

    def test_comments_and_literals_are_not_names(self):
        text = '// at what\n/* of\n   lane */ f("by the crew", \'\\\'\', R"(to)", 1\'000);\n#include <linux/at.h>\n'
        self.assertEqual(run(lint.rule_names, {"src/a.cpp": text}), [])
        self.assertEqual(run(lint.rule_names, {"src/a.cpp": "/* a\n b */ int of;\n"}), [("src/a.cpp", 2)])
        self.assertEqual(run(lint.rule_names, {"scripts/a.py": "of = 1\n"}), [])

    def test_limits_are_called_max(self):
        for name in ("kMost", "kMostBytes"):
            self.assertEqual(run(lint.rule_names, {"src/a.cpp": f"constexpr int {name} = 1;\n"}), [("src/a.cpp", 1)])
        self.assertEqual(run(lint.rule_names, {"src/a.cpp": "constexpr int kMaxBytes = 1, kMostly = 2, has_most = 3;\n"}), [])

    def test_private_words(self):
        for name in ("store_lane", "shm_outlet", "kDoorTimeout", "landing", "carrier_", "rescueThread", "surely_host", "nccl_wish",
                     "departed_ranks", "sleepers", "look", "told", "crew", "ring_bell"):
            self.assertEqual(run(lint.rule_names, {"src/a.cpp": f"int {name};\n"}), [("src/a.cpp", 1)], name)
        for name in ("ucx_lanes", "use_gpu_lanes", "has_rdma_lane", "kOverLane", "peerlane", "doorbell", "indoor", "look_up", "is_told"):
            self.assertEqual(run(lint.rule_names, {"src/a.cpp": f"int {name};\n"}), [], name)
        self.assertEqual(run(lint.rule_names, {"src/ucx/a.hpp": "struct lane;\n", "src/copy/a.cu": "int lane;\n"}), [])

    def test_python_names(self):
        for line in ("at = 1", "def f(where): pass", "for of in x: pass", "self.told = 1", "def _look(): pass", "try:\n  x\nexcept E as why: pass"):
            self.assertEqual([p for p, _ in run(lint.rule_python_names, {"python/a.py": line + "\n"})], ["python/a.py"], line)
        for line in ("x.at(1)", "f(where=1)", "offset = at_least = 1", "what: str  # lint:allow(names): a field of JSON", "print <<"):
            self.assertEqual(run(lint.rule_python_names, {"python/a.py": line + "\n"}), [], line)
        self.assertEqual(run(lint.rule_python_names, {"test/a.py": "at = 1\n"}), [])

    def test_private_words_in_texts(self):
        for line in ("// The lane broke.", "# a rescue", "Doors of the store", 'log("the outlet is full");', "what it departed from", "sleepers"):
            self.assertEqual(run(lint.rule_text, {"docs/a.md": line + "\n"}), [("docs/a.md", 1)], line)
        for line in ("the UCX lane", "RDMA lanes", "x8 PCIe lanes", "a doorbell", "indoors", "look at it", "told so", "results/front-door/a.json"):
            self.assertEqual(run(lint.rule_text, {"docs/a.md": line + "\n"}), [], line)
        self.assertEqual(run(lint.rule_text, {"src/ucx/a.hpp": "// a lane\n", "docs/results/a.md": "a lane\n"}), [])
        self.assertEqual(run(lint.rule_text, {"src/a.cpp": "// a bell  lint:allow(text): of a church\n"}), [])

    def test_a_name_can_be_excused(self):
        self.assertEqual(run(lint.rule_names, {"src/a.cpp": "int lane;  // lint:allow(names): a field of CUDA\n"}), [])

    def test_file_names(self):
        files = {"test/store/lane_server_test.cpp": "", "src/ucx/lanes.hpp": "", "docs/results/store/ucx_lane.json": "", "src/peerlane.cpp": ""}
        self.assertEqual(run(lint.rule_file_names, files), [("test/store/lane_server_test.cpp", 1)])

    def test_unity(self):
        line = "set_source_files_properties(a.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)\n"
        self.assertEqual(run(lint.rule_unity, {"src/a/CMakeLists.txt": line, "cmake/Other.cmake": "\n" + line}),
                         [("src/a/CMakeLists.txt", 1), ("cmake/Other.cmake", 2)])
        self.assertEqual(run(lint.rule_unity, {"cmake/Kernels.cmake": line, "src/a/CMakeLists.txt": "# " + line}), [])


class Scripts(unittest.TestCase):
    def test_executable(self):
        text = "#!/usr/bin/env bash\n"
        self.assertEqual(run(lint.rule_executable, {"scripts/a.sh": text}), [("scripts/a.sh", 1)])
        self.assertEqual(run(lint.rule_executable, {"scripts/a.sh": text}, executable=["scripts/a.sh"]), [])
        self.assertEqual(run(lint.rule_executable, {"scripts/a.sh": "echo\n"}), [("scripts/a.sh", 1)])

    def test_bash_syntax(self):
        self.assertEqual(run(lint.rule_bash, {".ci/run": "#!/usr/bin/env bash\nif true\n"}), [(".ci/run", 1)])
        self.assertEqual(run(lint.rule_bash, {".ci/run": "#!/usr/bin/env bash\ntrue\n"}), [])


class Outside(unittest.TestCase):
    def test_missing_linters_are_said_aloud(self):
        tree = lint.Tree({"src/a.cpp": "int  x;\n", "a.sh": "#!/usr/bin/env bash\n"})
        with mock.patch("shutil.which", return_value=None):
            skipped = []
            self.assertEqual(list(lint.run_clang_format(tree, skipped)) + list(lint.run_shellcheck(tree, skipped)), [])
        self.assertEqual(len(skipped), 2)
        self.assertIn("not installed", skipped[0])

    @unittest.skipIf(lint.clang_format_reason(), lint.clang_format_reason())
    def test_clang_format(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = Path(folder) / "a.cpp"
            bad.write_text("int   x;\n")
            tree = lint.Tree({"a.cpp": bad.read_text()}, set(), Path(folder))
            self.assertEqual([f.path for f in lint.run_clang_format(tree, [])], ["a.cpp"])
            bad.write_text("int x;\n")
            self.assertEqual(list(lint.run_clang_format(tree, [])), [])

    def test_files_are_found_without_git(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("src/a.cpp", "build/x.cpp", ".venv/y.py"):
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n")
            with mock.patch("shutil.which", return_value=None):
                self.assertEqual(lint.list_files(Path(folder)), ["src/a.cpp"])

    def test_the_command_reports_and_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            scripts = Path(folder) / "scripts"
            scripts.mkdir()
            for name in ("lint.py", "figures.py", "lint_links.py", "architecture_picture.py"):
                (scripts / name).write_bytes(Path(lint.__file__).with_name(name).read_bytes())
                (scripts / name).chmod(0o755)
            (scripts / "bad.py").write_text("x = 1\n")
            done = subprocess.run([sys.executable, str(scripts / "lint.py")], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn("scripts/bad.py:1: spdx:", done.stdout)
            self.assertIn("1 errors", done.stdout)


if __name__ == "__main__":
    unittest.main()
