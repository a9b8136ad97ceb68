"""Writes docs/faults.md from the tests: their marks, and the results that `make faults` has recorded.

    python docs/faults.py            write the page
    python docs/faults.py --check    change nothing; exit 1 if the page is not current

A test says what it covers with `@pytest.mark.fault("F42")`. tests/conftest.py records how it ended.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_catalogue import CATALOGUE, NOT_APPLICABLE

ROOT = Path(__file__).parent.parent
OPENING = "<!-- faults:"
BLOCK = re.compile(r"(<!-- faults: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADER = ["id", "what is done", "status", "tests", "last result", "recovery, s"]
SHOWN = 2
"""Test files named in one cell; the others are counted."""
NONE = "\N{EN DASH}"

Results = dict[str, dict[str, Any]]
"""By test, `tests/fault/test_x.py::test_y`: outcome, date and, where measured, recovery_s."""


@dataclass(frozen=True)
class Entry:
    """What the tests say about one id."""

    status: str
    tests: list[str]
    result: str
    recovery_s: float | None


def marked(root: Path) -> dict[str, set[str]]:
    """The ids that each test is marked with, read from the source."""
    found: dict[str, set[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        names = {"pytestmark"}
        module = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and names & {ast.unparse(t) for t in node.targets}
        ]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                ids = {i for part in (*node.decorator_list, *module) for i in _ids(part)}
                if ids:
                    found[f"{path.relative_to(root)}::{node.name}"] = ids
    return found


def _ids(tree: ast.expr) -> list[str]:
    return [
        ast.literal_eval(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault"
    ]


def results_file(root: Path) -> Path:
    """Where `make faults` records results."""
    return root / "tests" / "fault" / "results.json"


def entry(name: str, marks: dict[str, set[str]], results: Results) -> Entry:
    """What the tests say about one id. It is tested only if nothing failed and something passed."""
    tests = [test for test, ids in marks.items() if name in ids]
    ran = [results[test] for test in tests if test in results]
    if name in NOT_APPLICABLE:
        return Entry("not applicable", [], NOT_APPLICABLE[name], None)
    if not ran:
        return Entry("not covered", tests, "not run" if tests else NONE, None)
    outcome = next(o for o in ("failed", "passed", "skipped") if o in {r["outcome"] for r in ran})
    status = "tested" if outcome == "passed" else "not covered"
    date = max(r["date"] for r in ran if r["outcome"] == outcome)
    times = [r["recovery_s"] for r in ran if r.get("recovery_s") is not None]
    return Entry(status, tests, f"{outcome} {date}", max(times, default=None))


def table(group: str, marks: dict[str, set[str]], results: Results) -> str:
    """One table of the page."""
    rows = [HEADER, ["---"] * 5 + ["---:"]]
    for name, injected in CATALOGUE[group].items():
        found = entry(name, marks, results)
        recovery = NONE if found.recovery_s is None else f"{found.recovery_s:.2g}"
        rows.append([name, injected, found.status, _shown(found.tests), found.result, recovery])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _shown(tests: list[str]) -> str:
    files = sorted({test.partition("::")[0] for test in tests})
    links = [f"[{Path(file).stem.removeprefix('test_')}](../{file})" for file in files[:SHOWN]]
    if len(files) > SHOWN:
        links.append(f"{len(files) - SHOWN} more")
    return ", ".join(links) or NONE


def summary(marks: dict[str, set[str]], results: Results) -> str:
    """How many ids are tested, and which are not."""
    by_status: dict[str, list[str]] = {}
    for group in CATALOGUE.values():
        for name in group:
            by_status.setdefault(entry(name, marks, results).status, []).append(name)
    rows = [["status", "number", "ids"], ["---", "---:", "---"]]
    for status in ("tested", "not covered", "not applicable"):
        ids = by_status.get(status, [])
        named = "all others" if status == "tested" else " ".join(ids) or NONE
        rows.append([status, str(len(ids)), named])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def rewrite(text: str, marks: dict[str, set[str]], results: Results) -> str:
    """The page with current tables."""
    groups = [name for _, name, _ in BLOCK.findall(text)]
    if groups != ["summary", *CATALOGUE] or text.count(OPENING) != len(groups):
        sys.exit(f"The page needs these tables, in this order: summary, {', '.join(CATALOGUE)}.")

    def block(match: re.Match[str]) -> str:
        opening, name, end = match.groups()
        body = summary(marks, results) if name == "summary" else table(name, marks, results)
        return opening + body + end

    return BLOCK.sub(block, text)


def main(arguments: list[str], root: Path = ROOT) -> None:
    """Write the page, and forget the results of tests that are no longer marked."""
    marks, file, page = marked(root), results_file(root), root / "docs" / "faults.md"
    results: Results = json.loads(file.read_text())
    results = {test: result for test, result in sorted(results.items()) if test in marks}
    texts = {
        file: json.dumps(results, indent=1) + "\n",
        page: rewrite(page.read_text(), marks, results),
    }
    outdated = [path for path, text in texts.items() if path.read_text() != text]
    if "--check" in arguments and outdated:
        names = ", ".join(path.name for path in outdated)
        sys.exit(f"Not current: {names}. Run: python docs/faults.py")
    for path in outdated:
        path.write_text(texts[path])


if __name__ == "__main__":
    main(sys.argv[1:])
