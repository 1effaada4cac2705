#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares every measured number in the documents with its result file, or updates the numbers.

    scripts/figures.py             compare every page with its result files; exit 1 on any difference
    scripts/figures.py --update    write the files' numbers into the pages
    scripts/figures.py --eval 'cl[size_bytes=8].latency_ns_p50' --file cl=foundation/h100/copylat.json     try an expression

A page is README.md, CHANGELOG.md, CONTRIBUTING.md, SECURITY.md, or any page below docs/. It has a proof file: README.md has
docs/figures/README.txt, docs/blocks.md has docs/figures/blocks.txt, docs/results/p2p/README.md has docs/figures/results/p2p/README.txt.
The comments of the public headers and the Python package are one page together, with docs/figures/comments.txt: there every number of
ns, us, GB/s or operations a second needs a proof (times in ms and s are settings and time-outs). A proof file consists of

    # a remark
    file lat p2p/h200x2/latency.json                a result file below docs/results/ (JSON or text); /src/... from the root
    let L(who, size) = lat[via=$who size_bytes=$size].latency_ns_p50 / 1000         an abbreviation, with or without parameters
    8 bytes between two GPUs: {} us, UCX {}         words of the page, exactly once there; {} stands for a number
        L(ours, 8); L(ucx, 8)                       what the numbers are, one expression for each {}
    looks again after {} ms                         a number that is no measurement (as often as it stands in the page)
        not measured: a setting

Words are compared without line breaks and without the targets of links. {} demands the number that is printed, rounded as it is printed;
{2} two significant digits; {<} and {>} a bound that holds. An expression has numbers, + - * /, parentheses, min, max, median, sum, count
(over several rows), NAME[conditions].field (rows of a JSON file), NAME.field.field (other fields), and NAME/regex/ (group 1 in a text
file). Conditions are field=value, also with != < > <= >= and ~ (regex); 64K, 16M and 1G are powers of two; "..." quotes.

A number with a unit of measurement, alone in a table cell, or with decimals in a line with such a number is an error if no proof names it,
so none comes in without one.
"""

import argparse
import json
import re
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "docs/results/"
NUMBER = r"\d{1,3}(?: \d{3})+(?![\d.])|\d+(?:\.\d+)?"
# What follows a measured number. "a second" also with a noun before it: 4400 sleeps a second.
UNIT = r" ?(?:us|ns|ms|s|GB/s|MB/s|GiB/s|MiB/s|M/s|op/s|%|million|times)(?![\w/])| (?:(?!B |KiB |MiB )\w+ )?a second\b"
JOINED = r"(?: to |-|, | and |; )"
MEASURED = re.compile(rf"(?<![\w.^/-])(?:(?:{NUMBER}){JOINED})*(?:{NUMBER})(?:{UNIT})")
CELL = re.compile(rf"(?:{NUMBER})(?:{JOINED}(?:{NUMBER}))*")
DECIMAL = re.compile(r"(?<![\w./-])\d+\.\d+(?![\w.]*\d|\w)")
SUFFIX = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# The sources that users read. A file that moves keeps its proofs, because their words are searched in all of these.
COMMENTS, COMMENTS_PROOF = "the public comments", "docs/figures/comments.txt"
SOURCES = re.compile(r"include/.*\.(?:h|hpp|cuh)|python/peerlane/[^/]*\.pyi?")
CLAIM = re.compile(rf"(?<![\w.^/-])({NUMBER}) ?(?:us|ns|GB/s|MB/s|GiB/s|MiB/s|M/s|op/s)(?![\w/])|(?<![\w.^/-])({NUMBER})(?: million)?(?: \w+)? a second\b")
AGGREGATES = {"min": min, "max": max, "median": statistics.median, "sum": sum, "count": len}
LEAST_WORDS = 6  # letters that a proof "not measured" must have in addition to its {}


class Fault(Exception):
    """A proof is wrong, or does not fit the page."""


# ---- Pages -------------------------------------------------------------------------------------------------------------


@dataclass
class Text:
    """A page as proofs see it: no code blocks, remarks or link targets, one space for any white space. at[i]: offset in the page."""

    words: str
    positions: list


def blanked(page):
    """The page with everything that is not prose replaced by NUL, of the same length."""
    drop = lambda match: "\0" * len(match.group(0))  # noqa: E731
    page = re.sub(r"^( *)(```|~~~).*?^ *\2[^\S\n]*$", drop, page, flags=re.M | re.S)
    page = re.sub(r"<!--.*?-->", drop, page, flags=re.S)
    return re.sub(r"\]\([^)\s]*\)", drop, page)


def text_of(page):
    words, positions = [], []
    for offset, char in enumerate(blanked(page)):
        if char in "\0[":
            continue
        if char.isspace():
            if words and words[-1] == " ":
                continue
            char = " "
        words.append(char)
        positions.append(offset)
    positions.append(len(page))
    return Text("".join(words), positions)


def line_number(page, offset):
    return page.count("\n", 0, offset) + 1


def measured_numbers(page):
    """(offset, number as printed) of each number that looks measured: with a unit, alone in a table cell, or with decimals beside one."""
    prose = re.sub(r"`[^`\n]*`", lambda m: "\0" * len(m.group(0)), blanked(page))
    prose = re.sub(r"^(?:    |\t)(?! *[|*-]).*$", lambda m: m.group(0) if after_list(prose, m.start()) else "\0" * len(m.group(0)), prose, flags=re.M)
    found = {}
    for match in MEASURED.finditer(prose):
        numbers = re.sub(rf"(?:{UNIT})$", "", match.group(0))
        found.update((match.start() + n.start(), n.group(0)) for n in re.finditer(NUMBER, numbers))
    for row in re.finditer(r"^\|(.*)\|[^\S\n]*$", prose, re.M):
        cells = [c for c in re.finditer(r"[^|]+", row.group(1)) if CELL.fullmatch(c.group(0).strip())]
        if any("." in c.group(0) for c in cells):
            for cell in cells:
                found.update((row.start(1) + cell.start() + n.start(), n.group(0)) for n in re.finditer(NUMBER, cell.group(0)))
    # "UCX 9.5" after "1.82 us": a decimal in a line with a measured number is one as well.
    lines = {prose.count("\n", 0, offset) for offset in found}
    found.update((d.start(), d.group(0)) for d in DECIMAL.finditer(prose) if prose.count("\n", 0, d.start()) in lines)
    return sorted(found.items())


def after_list(prose, offset):
    """Whether an indented line continues a list item or a paragraph; it is code only after an empty line."""
    above = prose[:offset].rstrip("\n").rsplit("\n", 1)[-1]
    return not (prose[:offset].endswith("\n\n") or above.startswith("    ")) or bool(re.match(r"\s*[-*\d]", above))


# ---- Proof files -------------------------------------------------------------------------------------------------------


@dataclass
class Claim:
    line: int
    words: str
    items: list = field(default_factory=list)
    reason: str = None  # why its numbers are not measurements

    def slots(self):
        return re.findall(r"\{([\d<>]*)\}", self.words)

    def pattern(self):
        parts = re.split(r"\{[\d<>]*\}", self.words.replace("[", ""))  # as text_of() leaves them out
        return re.compile((rf"(?<![\d.])({NUMBER})(?!\d|\.\d)").join(re.escape(p) for p in parts))


@dataclass
class Proof:
    path: str
    claims: list = field(default_factory=list)
    files: dict = field(default_factory=dict)  # short name -> path
    macros: dict = field(default_factory=dict)  # name -> (parameters, text)
    partial: bool = False  # tables of a result folder: numbers without a proof are allowed


def parse_proof(path, text):
    proof = Proof(path)
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            if not proof.claims:
                raise Fault(f"{path}:{number}: an expression before any words of the page")
            add_items(proof.claims[-1], line.strip())
        elif match := re.fullmatch(r"file (\w+) (\S+)", line):
            proof.files[match.group(1)] = match.group(2)[1:] if match.group(2).startswith("/") else RESULTS + match.group(2)
        elif match := re.fullmatch(r"let (\w+)(?:\(([^)]*)\))? = (.+)", line):
            proof.macros[match.group(1)] = ([p.strip() for p in (match.group(2) or "").split(",") if p.strip()], match.group(3))
        elif line.startswith("partial: "):
            proof.partial = True
        else:
            proof.claims.append(Claim(number, re.sub(r"\s+", " ", line.strip())))
    for claim in proof.claims:
        check_form(path, claim)
    return proof


def add_items(claim, line):
    if line.startswith("not measured: "):
        claim.reason = line[len("not measured: "):]
    else:
        claim.items += [item.strip() for item in re.split(r";(?:\s+|$)", line) if item.strip()]


def check_form(path, claim):
    origin = f"{path}:{claim.line}"
    if not claim.slots():
        raise Fault(f"{origin}: no {{}} in `{claim.words}`")
    if claim.reason is not None and len(re.findall(r"[A-Za-z]", re.sub(r"\{[^}]*\}", "", claim.words))) < LEAST_WORDS:
        raise Fault(f"{origin}: `{claim.words}` would excuse numbers that nobody thought of; take more words of the page")
    if claim.reason is None and len(claim.items) != len(claim.slots()):
        raise Fault(f"{origin}: {len(claim.slots())} numbers and {len(claim.items)} expressions in `{claim.words}`")
    if claim.reason is not None and (claim.items or not claim.reason.strip()):
        raise Fault(f"{origin}: either expressions or `not measured: REASON`")


# ---- Expressions -------------------------------------------------------------------------------------------------------


TOKEN = re.compile(r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE]-?\d+)?(?![\w.]))|(?P<name>[A-Za-z_]\w*)|(?P<symbol>[-+*/(),]))")
CONDITION = re.compile(r'\s*(\w[\w.]*)\s*(!=|>=|<=|=|<|>|~)\s*("[^"]*"|[^\s\]]+)')


class Expression:
    """Evaluates one expression. A value is a list of numbers, one for each row; operations go row by row."""

    def __init__(self, text, proof, load):
        self.text, self.proof, self.load, self.place = self.expanded(text, proof.macros), proof, load, 0

    def expanded(self, text, macros, depth=0):
        if depth > 10:
            raise Fault(f"`{text}`: abbreviations that name each other")
        for name, (parameters, body) in macros.items():
            call = rf'\b{name}\(((?:"[^"]*"|[^()"])*)\)' if parameters else rf"(?<![$\w.=]){name}\b(?!\()"

            def replace(match, parameters=parameters, body=body, name=name):
                given = [a.strip() for a in re.findall(r'(?:"[^"]*"|[^,"])+', match.group(1))] if parameters else []
                if len(given) != len(parameters):
                    raise Fault(f"{name} takes {len(parameters)} values: {match.group(0)}")
                for parameter, value in zip(parameters, given):
                    body = re.sub(rf"\${parameter}\b", lambda _, value=value: value, body)
                return f"({body})" if re.search(r"\s[-+*/]\s", body) else body

            text, count = re.subn(call, replace, text)
            if count:
                return self.expanded(text, macros, depth + 1)
        return text

    def value(self):
        result = self.sum()
        if self.text[self.place:].strip():
            raise Fault(f"`{self.text}`: what is `{self.text[self.place:].strip()}`?")
        if len(result) != 1:
            raise Fault(f"`{self.text}`: expected one value, got {len(result)}")
        return result[0]

    def accept(self, *symbols):
        match = TOKEN.match(self.text, self.place)
        if match and match.group("symbol") in symbols:
            self.place = match.end()
            return match.group("symbol")
        return None

    def sum(self):
        left = self.product()
        while symbol := self.accept("+", "-"):
            left = pairwise(symbol, left, self.product())
        return left

    def product(self):
        left = self.factor()
        while symbol := self.accept("*", "/"):
            left = pairwise(symbol, left, self.factor())
        return left

    def factor(self):
        if self.accept("-"):
            return [-v for v in self.factor()]
        if self.accept("("):
            inner = self.sum()
            if not self.accept(")"):
                raise Fault(f"`{self.text}`: a ) is missing")
            return inner
        match = TOKEN.match(self.text, self.place)
        if not match or match.group("symbol"):
            raise Fault(f"`{self.text}`: a value is missing at `{self.text[self.place:]}`")
        self.place = match.end()
        if match.group("number"):
            return [float(match.group("number"))]
        return self.aggregate(match.group("name")) if match.group("name") in AGGREGATES else self.selected(match.group("name"))

    def aggregate(self, name):
        if not self.accept("("):
            raise Fault(f"`{self.text}`: {name}(...)")
        values = self.sum()
        while self.accept(","):
            values = values + self.sum()
        if not self.accept(")"):
            raise Fault(f"`{self.text}`: a ) is missing")
        if not values:
            raise Fault(f"`{self.text}`: {name} of no row")
        return [float(AGGREGATES[name](values))]

    def selected(self, name):
        if name not in self.proof.files:
            raise Fault(f"`{self.text}`: no `file {name} ...` in {self.proof.path}")
        path, rest = self.proof.files[name], self.text[self.place:]
        if match := re.match(r"/((?:[^/\\]|\\.)+)/", rest):
            self.place += match.end()
            found = re.findall(match.group(1).replace("\\/", "/"), self.load(path), re.M)
            if not found:
                raise Fault(f"{path}: nothing matches /{match.group(1)}/")
            return [float(f.replace(" ", "").replace(",", "")) for f in found]
        data = self.load(path, json.loads)
        rows = None
        if match := re.match(r'\[((?:"[^"]*"|[^\]"])*)\]', rest):
            self.place += match.end()
            rows = self.rows(path, data, match.group(1))
        match = re.match(r"((?:\.\w+)+)", self.text[self.place:])
        if not match:
            raise Fault(f"`{self.text}`: which field of {path}?")
        self.place += match.end()
        return [number_at(path, row, match.group(1)[1:].split(".")) for row in (rows if rows is not None else [data])]

    def rows(self, path, data, conditions):
        wanted, place = [], 0
        while conditions[place:].strip():
            match = CONDITION.match(conditions, place)
            if not match:
                raise Fault(f"`{self.text}`: what is `{conditions[place:].strip()}`?")
            wanted.append((match.group(1), match.group(2), match.group(3).strip('"')))
            place = match.end()
        rows = [row for row in data["rows"] if all(holds(row, *w) for w in wanted)]
        if not rows:
            raise Fault(f"{path}: no row has [{conditions.strip()}]")
        return rows


def holds(row, name, relation, text):
    if name not in row:
        return False
    value = row[name]
    if value is None:
        return relation == "!="
    if relation == "~":
        return re.search(text, str(value)) is not None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if relation not in ("=", "!="):
            raise Fault(f"{name} is not a number: {value!r}")
        return (str(value).lower() == text.lower()) == (relation == "=")
    wanted = float(text[:-1]) * SUFFIX[text[-1]] if text[-1] in SUFFIX else float(text)
    return {"=": value == wanted, "!=": value != wanted, "<": value < wanted, ">": value > wanted, "<=": value <= wanted,
            ">=": value >= wanted}[relation]


def number_at(path, row, names):
    for name in names:
        if not isinstance(row, dict) or name not in row:
            raise Fault(f"{path}: no field {name}; there are {', '.join(sorted(row)) if isinstance(row, dict) else 'none'}")
        row = row[name]
    if isinstance(row, bool) or not isinstance(row, (int, float)):
        raise Fault(f"{path}: {'.'.join(names)} is not a number: {row!r}")
    return float(row)


def pairwise(symbol, left, right):
    if len(left) == 1:
        left = left * len(right)
    if len(right) == 1:
        right = right * len(left)
    if len(left) != len(right):
        raise Fault(f"{len(left)} rows {symbol} {len(right)} rows")
    apply = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}[symbol]
    return [apply(a, b) for a, b in zip(left, right)]


# ---- Comparing and rewriting -------------------------------------------------------------------------------------------


def decimals_of(printed):
    return len(printed.split(".")[1]) if "." in printed else 0


def rounded(value, slot, printed):
    """The value as the page would print it: with the printed number's decimals, or with so many significant digits."""
    places = decimals_of(printed)
    if slot:
        places = int(slot) - 1 - int(f"{value:.{int(slot) - 1}e}".split("e")[1])
    text = f"{round(value, places) + 0.0:.{max(places, 0)}f}"
    whole, _, part = text.partition(".")
    if len(whole) > 4 or (len(whole) == 4 and " " in printed):
        whole = f"{int(whole):,}".replace(",", " ") if " " in printed or slot else whole
    return whole + ("." + part if part else "")


def agrees(value, slot, printed):
    number = float(printed.replace(" ", ""))
    if slot == "<":
        return value < number
    if slot == ">":
        return value > number
    if slot:
        return float(rounded(value, slot, printed).replace(" ", "")) == number
    return abs(value - number) <= 0.5 * 10 ** -decimals_of(printed) * (1 + 1e-9)


@dataclass
class Finding:
    path: str
    line: int
    text: str


def check_page(path, page, proof, load):
    """(findings, [(start, end, new number)], offsets that a proof names)"""
    findings, changes, named = [], [], set()
    text = text_of(page)
    for claim in proof.claims if proof else ():
        matches = list(claim.pattern().finditer(text.words))
        if not matches or (len(matches) > 1 and claim.reason is None):
            findings.append(Finding(proof.path, claim.line, f"`{claim.words}` stands {len(matches)} times in {path}"))
            continue
        for match in matches:
            named.update(text.positions[match.start(i + 1)] for i in range(len(claim.slots())))
        if claim.reason is not None:
            continue
        for index, (slot, item) in enumerate(zip(claim.slots(), claim.items), 1):
            start, end, printed = text.positions[matches[0].start(index)], text.positions[matches[0].end(index) - 1] + 1, matches[0].group(index)
            try:
                value = Expression(item, proof, load).value()
            except (Fault, ZeroDivisionError, ValueError, KeyError) as fault:
                findings.append(Finding(proof.path, claim.line, str(fault)))
                continue
            if not agrees(value, slot, printed):
                bound = slot in ("<", ">")
                new = f"{slot} {value:g}" if bound else rounded(value, slot, printed)
                findings.append(Finding(path, line_number(page, start), f"{printed} in `{claim.words}`: {item} is {value:.6g}, so {new}"))
                if not bound:
                    changes.append((start, end, new))
    return findings, changes, named


def proof_path(page):
    if page == COMMENTS:
        return COMMENTS_PROOF
    return "docs/figures/" + re.sub(r"^docs/", "", page)[:-len(".md")] + ".txt"


def pages_of(files):
    """The pages whose numbers are looked at."""
    return sorted(p for p in files if p == COMMENTS or re.fullmatch(r"(?:docs/.*|[^/]*)\.md", p))


def comments_of(path, text):
    """The comments of a source file, without their marks. For Python, the whole text, because of docstrings."""
    if path.endswith((".py", ".pyi")):
        return re.sub(r"^ *# ?", "", text, flags=re.M)
    found = re.findall(r"//[/!]?(.*?)$|/\*+(.*?)\*/", text, re.M | re.S)
    return "\n".join(re.sub(r"^ *\* ?", "", line or block, flags=re.M) for line, block in found)


def claims_in(comments):
    """(offset, number) of each speed that comments name."""
    return [(m.start(1) if m.group(1) else m.start(2), m.group(1) or m.group(2)) for m in CLAIM.finditer(comments)]


def check(files, load):
    """(findings, {page: changes}) of all pages; files: path -> text."""
    findings, changes = [], {}
    sources = sorted(p for p in files if SOURCES.fullmatch(p))
    if sources:
        files = {**files, COMMENTS: "\n\n".join(comments_of(p, files[p]) for p in sources)}
    for path in pages_of(files):
        page, name = files[path], proof_path(path)
        try:
            proof = parse_proof(name, files[name]) if name in files else None
        except Fault as fault:
            place = re.match(r"(.*?):(\d+): (.*)", str(fault), re.S)
            findings.append(Finding(place.group(1), int(place.group(2)), place.group(3)))
            continue
        found, changes[path], named = check_page(path, page, proof, load)
        findings += found
        if proof and proof.partial:
            continue
        for offset, number in claims_in(page) if path == COMMENTS else measured_numbers(page):
            if offset not in named:
                beside = " ".join(page[max(0, offset - 40):offset + 30].split())
                findings.append(Finding(path, line_number(page, offset), f"{number}: no proof in {name} (scripts/figures.py says how): ... {beside} ..."))
    findings += [Finding(p, 1, "belongs to no page") for p in files
                 if re.fullmatch(r"docs/figures/.*\.txt", p) and not any(proof_path(page) == p for page in pages_of(files))]
    return findings, changes


def update(page, changes):
    for start, end, new in sorted(changes, reverse=True):
        page = page[:start] + new + page[end:]
    return page


def reader(read):
    """load(path, decode): what `decode` makes of a file's text, kept for the next time."""
    cache = {}

    def load(path, decode=str):
        if (path, decode) not in cache:
            try:
                cache[path, decode] = decode(read(path))
            except (OSError, KeyError):
                raise Fault(f"{path} does not exist") from None
        return cache[path, decode]

    return load


def read_file(path):
    return (ROOT / path).read_text(encoding="utf-8")


def documents(root):
    sources = [p for folder in ("include", "python/peerlane") for p in (root / folder).rglob("*.*") if SOURCES.fullmatch(str(p.relative_to(root)))]
    names = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "docs" / "figures").rglob("*.txt"), *sources]
    return {str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in names}


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the files' numbers into the pages")
    parser.add_argument("--eval", metavar="EXPRESSION", help="print the value of one expression")
    parser.add_argument("--file", action="append", default=[], metavar="NAME=PATH", help="a result file for --eval")
    options = parser.parse_args(arguments)
    load = reader(read_file)
    if options.eval:
        proof = parse_proof("--file", "\n".join(f"file {f.replace('=', ' ', 1)}" for f in options.file))
        print(Expression(options.eval, proof, load).value())
        return 0
    files = documents(ROOT)
    findings, changes = check(files, load)
    if options.update:
        for path, edits in changes.items():
            if edits and path != COMMENTS:
                (ROOT / path).write_text(update(files[path], edits), encoding="utf-8")
                print(f"{path}: {len(edits)} numbers rewritten")
        findings, _ = check(documents(ROOT), load)
    for finding in findings:
        print(f"{finding.path}:{finding.line}: {finding.text}")
    return 1 if findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Fault as error:
        sys.exit(f"figures: {error}")
