# SPDX-License-Identifier: Apache-2.0
"""The per-call reference: what the public headers and the Python package say about themselves, as Markdown.

A header's text is its documentation already: the comment before a declaration is its description. So a page is the header in its own
order, comments as prose, declarations as code without their bodies.
"""

import ast
import re

NAME_IN_C = re.compile(r"\b((?:peerlane|gdr|gds|gdsync)_\w+)\s*\(")
TYPE_IN_C = re.compile(r"^(?:typedef\s+)?(?:struct|enum|union)\s+(\w+)\s*\{", re.M)
CXX_CLASS = re.compile(r"^(?:template\s*<[^>]*>\s*)?(?:class|struct|enum class)\s+(\w+)", re.M)


def without_bodies(code):
    """C++ with the body of every inline function replaced by a semicolon; initialisers in between go as well."""
    out, i, depth_of_parens = [], 0, 0
    while i < len(code):
        c = code[i]
        if c == "(":
            depth_of_parens += 1
        elif c == ")":
            depth_of_parens -= 1
        if c == "{" and depth_of_parens == 0 and is_body("".join(out)):
            end = matching(code, i)
            head = "".join(out)
            head = re.sub(r"\)\s*((?:const|noexcept|override|\s)*):(?!:)[^;{}]*$", r") \1", head).rstrip()
            out = [head, ";"]
            i = end + 1
            continue
        out.append(c)
        i += 1
    return re.sub(r"[ \t]+\n", "\n", "".join(out)).replace(" ;", ";")


def is_body(before):
    """Whether a brace that follows this text opens a function's body."""
    tail = before.rstrip()[-200:]
    return bool(re.search(r"\)\s*(?:const|noexcept|override|&|\s)*(?:->\s*[\w:<>,\s&*]+)?(?::(?!:)[^;{}]*)?$", tail)) and \
        not re.search(r"\b(?:enum|class|struct|namespace)\s+[\w\s:]*$", tail)


def matching(code, start):
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] == "{") - (code[i] == "}")
        if depth == 0:
            return i
    raise ValueError("a brace is not closed")


def prose(comment):
    """A comment's words: markers gone, paragraphs kept, a heading line between dashes as a heading."""
    text = re.sub(r"^\s*/\*+|\*+/\s*$", "", comment.strip())
    lines = [re.sub(r"^\s*(?:\*|//)? ?", "", line) for line in text.split("\n")]
    return "\n".join(lines).strip()


def heading_of(comment):
    """(heading, rest) of `---- Words ---- rest`, else (None, everything)."""
    match = re.match(r"^-{4}\s*(.+?)\s*-{4,}\.?\s*\n?(.*)$", comment, re.S)
    return (match.group(1).rstrip(":."), match.group(2).strip()) if match else (None, comment)


def chunks(code):
    """Pieces of a header between blank lines that stand outside braces and comments."""
    piece, depth, in_comment = [], 0, False
    for line in code.split("\n"):
        if not line.strip() and depth == 0 and not in_comment:
            if piece:
                yield "\n".join(piece)
            piece = []
            continue
        piece.append(line)
        bare = re.sub(r'//.*|"(?:\\.|[^"])*"', "", line)
        if in_comment and "*/" in bare:
            bare, in_comment = bare.split("*/", 1)[1], False
        if not in_comment:
            bare = re.sub(r"/\*.*?\*/", "", bare)
            if "/*" in bare:
                bare, in_comment = bare.split("/*", 1)[0], True
            depth += bare.count("{") - bare.count("}")
    if piece:
        yield "\n".join(piece)


def split_comment(piece):
    """(leading comment, the rest)."""
    match = re.match(r"\s*(/\*.*?\*/|(?://[^\n]*\n?)+)\s*(.*)$", piece, re.S)
    return (match.group(1), match.group(2)) if match else ("", piece)


def parts(code):
    """[(words, declarations)] of a chunk: a comment in the middle begins a new part where it stands at the left margin."""
    found, rest = [], code
    while rest.strip():
        comment, rest = split_comment(rest)
        cut = re.search(r"^(?=/\*|//)", rest, re.M)
        here, rest = (rest[:cut.start()], rest[cut.start():]) if cut and cut.start() > 0 else (rest, "")
        found.append((comment, here.rstrip()))
    return found


def cleaned(text):
    """Without include guards, includes, extern "C" and the details that are nobody's business."""
    text = re.sub(r'#ifdef __cplusplus\n(?:extern "C" \{|\})\n#endif\n?', "", text)
    text = re.sub(r"^#(?:ifndef|define) \w+_H_?\n|^#pragma once\n|^#include .*\n", "", text, flags=re.M)
    text = re.sub(r"^#endif.*\s*\Z", "", text, flags=re.M)
    while (match := re.search(r"^namespace detail \{", text, re.M)) is not None:
        end = matching(text, match.end() - 1)
        text = text[:match.start()] + re.sub(r"^[^\n]*", "", text[end + 1:], count=1)
    return re.sub(r"^namespace peerlane \{\n|^\}  // namespace peerlane\n?", "", text, flags=re.M)


def header_page(path, text):
    """Markdown of one header's page; <a id> before what can be linked to."""
    cxx = path.endswith((".hpp", ".cuh"))
    intro, body = split_comment(re.sub(r"^//\s*SPDX[^\n]*\n|^/\*\s*SPDX[^\n]*\n \*\n", lambda m: "/*\n" if m.group(0).startswith("/*") else "", text))
    out = [f"# `{path}`", "", prose(intro), ""]
    body = cleaned(body)
    body = without_bodies(body) if cxx else body
    for piece in chunks(body):
        for comment, code in parts(piece):
            out += section(prose(comment), code, "cpp" if cxx else "c")
    return "\n".join(out) + "\n"


def section(words, code, language):
    out = []
    heading, words = heading_of(words)
    if heading:
        out += [f"## {heading}", ""]
    names = names_in(code)
    out += [f'<a id="{name}"></a>' for name in names] + [""]
    if words:
        out += [re.sub(r"(?<![`\w])_(?=\w)", r"\\_", words.replace("*", "\\*").replace("<", "&lt;")), ""]
    if code.strip():
        out += [f"```{language}", code.strip("\n"), "```", ""]
    return out


def names_in(code):
    found = [m.group(1) for pattern in (NAME_IN_C, TYPE_IN_C, CXX_CLASS) for m in pattern.finditer(code)]
    return list(dict.fromkeys(found))


# ---- Python --------------------------------------------------------------------------------------------------------------


def exported(init):
    """({private module: names}, public modules) of the package's __init__.py: its tables _HOMES and _MODULES."""
    tables = {getattr(t, "id", ""): node.value for node in ast.parse(init).body if isinstance(node, ast.Assign) for t in node.targets}
    return tuple(ast.literal_eval(tables[name]) for name in ("_HOMES", "_MODULES"))


def is_property(node):
    return isinstance(node, ast.FunctionDef) and any(getattr(each, "id", "") == "property" for each in node.decorator_list)


def signature(node):
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(b for b in map(ast.unparse, node.bases) if "_core." not in b)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if is_property(node):
        return node.name + returns.replace(" -> ", ": ")
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    arguments = re.sub(r"\b18446744073709551615\b", "WHOLE_TAG", ast.unparse(node.args)).removeprefix("self, ").removeprefix("self")
    return f"{kind} {node.name}({arguments}){returns}"


def members(node, compiled):
    """What a class offers: its own public functions and fields, then what it has from its compiled base."""
    own = [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and not n.name.startswith("_")]
    for base in node.bases:
        inherited = compiled.get(ast.unparse(base).removeprefix("_core.")) if "_core." in ast.unparse(base) else None
        have = {n.name for n in own}
        own += [n for n in members(inherited, compiled) if n.name not in have] if inherited else []
    return own


def words_of(node):
    return ast.get_docstring(node) or ""


def python_entry(node, anchor, compiled):
    """A function or class; what stands in a class without a word is NumPy's or Python's business and left out."""
    out = [f'### `{node.name}` <a id="{anchor}"></a>', ""] if anchor else []
    out += ["```python", signature(node)]
    if isinstance(node, ast.ClassDef):
        out += [f"    {ast.unparse(n)}" for n in node.body if isinstance(n, ast.AnnAssign) and not ast.unparse(n.target).startswith("_")]
    out += ["```", "", words_of(node), ""]
    if isinstance(node, ast.ClassDef):
        described = [n for n in members(node, compiled) if words_of(n)]
        out += [f"- `{signature(n)}`: {words_of(n)}" for n in described if is_property(n)] + [""]
        for inner in (n for n in described if not is_property(n)):
            out += python_entry(inner, "", compiled)
    return out


def of_the_module(tree, compiled):
    """[node] of a module's functions and classes, those that it only passes on from the compiled half included."""
    out = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            out.append(node)
        elif isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            out += [compiled[name] for name in (ast.unparse(v).removeprefix("_core.") for v in values) if name in compiled]
    return out


def python_page(package):
    """Markdown for the folder of the Python package, or None where there is none."""
    init, stub = package / "__init__.py", package / "_core.pyi"
    if not init.exists():
        return None
    text = init.read_text(encoding="utf-8")
    compiled = {n.name: n for n in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(n, ast.ClassDef)} if stub.exists() else {}
    out = ["# Python: `peerlane`", "", ast.get_docstring(ast.parse(text)) or "", ""]
    homes, modules = exported(text)
    for name in [*homes, *modules]:
        path = package / f"{name}.py"
        if name == "_version" or not path.exists():
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        wanted = homes.get(name)
        nodes = [n for n in of_the_module(tree, compiled) if (n.name in wanted if wanted else not n.name.startswith("_"))]
        if wanted is None:
            out += [f"## `peerlane.{name}`", "", words_of(tree), ""]
        for node in nodes:
            out += python_entry(node, node.name if wanted else f"{name}.{node.name}", compiled)
    return "\n".join(out) + "\n"
