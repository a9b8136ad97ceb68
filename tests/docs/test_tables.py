"""Tables, pictures and sentences in the documents say what bench/results says."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FIXED = {"machine", "target", "seed", "seeds", "cell", "chosen", "limit_s", "date", "versions"}
"""What a result is about, not what was measured."""
RULE = re.compile(r"(?=.*-)(?=.*\|)[ |:-]+")
"""The line between a table's header and its body."""
NOT_FIGURES = {
    ("benchmarks.md", "Benchmarks", "| machine | what it is |"),
    ("tuning.md", "Before a run", "| measured | how |"),
    ("tuning.md", "Before a run", "| setting | follows from |"),
}
"""Tables written by hand that describe machines and rules: document, heading, header of the table."""


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("tables")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The documents and results, to be changed."""
    (tmp_path / "docs").mkdir()
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.svg")]:
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    shutil.copytree(ROOT / "bench" / "results", tmp_path / "bench" / "results")
    return tmp_path


def sources(tables: ModuleType) -> set[str]:
    """The results that tables, sentences and pictures are made of."""
    results = tables.Results(ROOT / "bench" / "results")
    for made in (tables.TABLES | tables.SENTENCES | tables.PICTURES).values():
        made(results)
    return set(results.files)


def larger(value: Any, key: str = "") -> Any:
    """The same result with other measured numbers."""
    if key in FIXED or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return {name: larger(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [larger(item) for item in value]
    return value * 2 if isinstance(value, int | float) else value


def by_hand(tables: ModuleType, path: Path) -> set[tuple[str, str, str]]:
    """The tables with digits that stand outside markers: document, heading, header of the table."""
    lines = tables.BLOCK.sub("", path.read_text()).splitlines()
    found, heading = set(), ""
    for at, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if RULE.fullmatch(line):
            cells = [lines[at - 1], *takewhile(str.strip, lines[at + 1 :])]
            if re.search(r"\d", "".join(cells)):
                found.add((path.name, heading, lines[at - 1]))
    return found


def test_documents_are_current(tables: ModuleType) -> None:
    assert list(tables.stale(ROOT)) == [], "run: python bench/tables.py"


def test_a_changed_number_in_a_document_is_noticed(tables: ModuleType, copy: Path) -> None:
    seen = set()
    for path in tables.documents(copy):
        text = path.read_text()
        for block in tables.BLOCK.finditer(text):
            for digit in re.finditer(r"\d", block.group()):
                at = block.start() + digit.start()
                if at < block.end(1):
                    continue  # in the table's name
                other = str((int(digit.group()) + 1) % 10)
                path.write_text(text[:at] + other + text[at + 1 :])
                assert path in tables.stale(copy)
                seen.add(block.group(2))
                break
        path.write_text(text)
    assert seen >= {*tables.TABLES, *tables.SENTENCES}


def test_a_changed_result_is_noticed(tables: ModuleType, copy: Path) -> None:
    for name in sources(tables):
        path = copy / "bench" / "results" / f"{name}.json"
        text = path.read_text()
        path.write_text(json.dumps(larger(json.loads(text))))
        assert tables.stale(copy), name
        path.write_text(text)
    assert not tables.stale(copy)


@pytest.mark.parametrize("name", ["experiments.md", "tuning.md", "benchmarks.md"])
def test_figures_stand_between_markers(tables: ModuleType, copy: Path, name: str) -> None:
    path = copy / "docs" / name
    assert by_hand(tables, path) <= NOT_FIGURES
    path.write_text(
        f"{path.read_text()}\n## New\n\n| batch | seconds |\n|---|---:|\n| large | 9 |\n"
    )
    assert by_hand(tables, path) - NOT_FIGURES == {(name, "New", "| batch | seconds |")}


def test_recorded_figures_keep_their_digits_and_unit(tables: ModuleType) -> None:
    cells = [(1024, None), (11.0, None), (0.995, None), (16.0, "M"), (59, "s"), (None, "s")]
    shown = [tables.as_recorded(*cell) for cell in cells]
    assert shown == ["1,024", "11.0", "0.995", "16.0 M", "59 s", "\N{EN DASH}"]
    assert tables.as_recorded("not in 60", "s") == "not in 60"


def test_every_recorded_table_is_in_the_log(tables: ModuleType) -> None:
    kept = tables.Results(ROOT / "bench" / "results").read("recorded-experiments")["tables"]
    assert [table["id"] for table in kept] == list(tables.LOG)


def test_a_changed_picture_is_noticed(tables: ModuleType, copy: Path) -> None:
    for name in tables.PICTURES:
        path = copy / name
        text = path.read_text()
        path.write_text(text.replace("Spreeze", "Spruce", 1))
        assert list(tables.stale(copy)) == [path]
        path.unlink()
        assert list(tables.stale(copy)) == [path]
        tables.main([], copy)
        assert path.read_text() == text


def test_what_is_not_current_is_said_or_written(tables: ModuleType, copy: Path) -> None:
    readme = copy / "README.md"
    readme.write_text("before\n<!-- sentence: headline -->\n<!-- end -->\nafter\n")
    with pytest.raises(SystemExit) as ended:
        tables.main(["--check"], copy)
    assert ended.value.code not in (0, None)
    tables.main([], copy)
    tables.main(["--check"], copy)  # would exit
    before, opening, sentence, end, after = readme.read_text().splitlines()
    assert (before, after, end) == ("before", "after", "<!-- end -->")
    assert opening == "<!-- sentence: headline -->"
    assert sentence.startswith("A first run of Spreeze")
    assert sentence.endswith(".")


def test_medians_count_runs_that_did_not_get_there(tables: ModuleType) -> None:
    assert tables.middle([3, 1, 2]) == 2
    assert tables.middle([1.0, 2.0, None]) == 2.0
    assert tables.middle([1.0, None]) is None
    assert tables.middle([]) is None


@pytest.mark.parametrize(
    "text",
    [
        "<!-- table: none -->\n<!-- end -->\n",
        "<!-- table: peers -->\n",
        "<!-- sentence: headline -->\n",
    ],
)
def test_a_wrong_marker_is_refused(tables: ModuleType, copy: Path, text: str) -> None:
    (copy / "README.md").write_text(text)
    with pytest.raises(SystemExit, match="table"):
        tables.main([], copy)
