"""The page of faults says what the tests and their last results say."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
IDS = [f"F{i:02}" for i in range(1, 83)] + [f"S{i:02}" for i in range(1, 26)]
ROW = re.compile(r"^\| ([FS]\d\d) \| (.+?) \| (.+?) \|", re.MULTILINE)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("faults")


def test_every_id_has_one_row() -> None:
    assert [name for name, *_ in ROW.findall(PAGE)] == IDS


def test_every_mark_names_an_id(faults: ModuleType) -> None:
    used = {name for ids in faults.marked(ROOT).values() for name in ids}
    assert used <= set(IDS) - set(faults.NOT_APPLICABLE)


def test_page_and_results_are_current(faults: ModuleType) -> None:
    faults.main(["--check"])  # would exit


def test_tested_means_that_a_test_passed_and_none_failed(faults: ModuleType) -> None:
    marks, results = faults.marked(ROOT), json.loads(faults.results_file(ROOT).read_text())
    for name, _, status in ROW.findall(PAGE):
        outcomes = {
            results[t]["outcome"] for t, ids in marks.items() if name in ids and t in results
        }
        assert (status == "tested") == ("passed" in outcomes and "failed" not in outcomes), name


@pytest.mark.parametrize(
    ("outcomes", "status", "result"),
    [
        ([], "not covered", "\N{EN DASH}"),
        ([None], "not covered", "not run"),
        (["passed", None], "tested", "passed 2026-01-02"),
        (["passed", "skipped"], "tested", "passed 2026-01-02"),
        (["skipped"], "not covered", "skipped 2026-01-02"),
        (["passed", "failed"], "not covered", "failed 2026-01-02"),
    ],
)
def test_the_worst_result_counts(
    faults: ModuleType, outcomes: list[str | None], status: str, result: str
) -> None:
    marks = {f"test_{i}": {"F01"} for i in range(len(outcomes))}
    results = {
        f"test_{i}": {"outcome": outcome, "date": "2026-01-02", "recovery_s": 0.5}
        for i, outcome in enumerate(outcomes)
        if outcome
    }
    found = faults.entry("F01", marks, results)
    assert (found.status, found.result) == (status, result)
    assert found.recovery_s == (0.5 if results else None)


TESTS = """
import pytest

pytestmark = [pytest.mark.fault("F01")]

@pytest.mark.fault("F02")
@pytest.mark.parametrize("good", [True, pytest.param(False, marks=pytest.mark.fault("F03"))])
def test_marked(good, recovered):
    recovered(0.25)
    recovered(0.5)
    assert good

@pytest.mark.skip
def test_skipped(): pass
"""


def test_marks_are_read_and_results_come_from_parallel_workers(
    faults: ModuleType, tmp_path: Path
) -> None:
    folder, file = tmp_path / "tests", tmp_path / "results.json"
    folder.mkdir()
    (folder / "test_x.py").write_text(TESTS)
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    name = "tests/test_x.py::test_"
    old = {"outcome": "passed", "date": "2026-01-02"}
    file.write_text(json.dumps({f"{name}skipped": old, "tests/test_y.py::test_other": old}))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    command += ["--numprocesses", "2", "-m", "fault", "--fault-results", file, folder]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout
    results = json.loads(file.read_text())
    assert set(results) == {f"{name}marked", f"{name}skipped", "tests/test_y.py::test_other"}
    assert (results[f"{name}marked"]["outcome"], results[f"{name}marked"]["recovery_s"]) == (
        "failed",
        0.5,
    )
    assert results[f"{name}skipped"] == old, "a skipped test says nothing"
    assert faults.marked(tmp_path) == {
        f"{name}marked": {"F01", "F02", "F03"},
        f"{name}skipped": {"F01"},
    }
