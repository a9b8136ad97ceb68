"""`spreeze bench ratios`: what has become slower is seen, and what was only disturbed is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spreeze.bench import ratios
from spreeze.bench.commands import main
from spreeze.bench.ratios import RATIOS
from spreeze.errors import RunFailed, UsageError

Results = dict[tuple[str, ...], list[dict[str, float]]]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Results:
    """What each run of each benchmark will say: here twice its reference, in every run."""
    benchmarks = {ratio.benchmark for ratio in RATIOS}
    figures = {name: 4.0 for ratio in RATIOS for name in (ratio.above,)}
    figures |= {ratio.below: 2.0 for ratio in RATIOS}
    coming: Results = {benchmark: [dict(figures) for _ in range(3)] for benchmark in benchmarks}
    monkeypatch.setattr(ratios, "run_benchmark", lambda benchmark: coming[benchmark].pop(0))
    return coming


def _kept(tmp_path: Path, value: float = 2.0) -> str:
    file = tmp_path / "kept.json"
    file.write_text(json.dumps({"ratios": {ratio.name: value for ratio in RATIOS}}))
    return str(file)


def _run(*arguments: str) -> int:
    return main(["ratios", *arguments], 0.0)


def test_equal_ratios_pass(benchmarks: Results, tmp_path: Path) -> None:
    assert _run("--kept", _kept(tmp_path)) == 0
    assert all(len(coming) == 2 for coming in benchmarks.values()), "each was measured once"


def test_a_ratio_that_lost_twice_fails_with_its_name(
    benchmarks: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samplers = RATIOS[2]
    for result in benchmarks[samplers.benchmark]:
        result[samplers.above] *= 0.89
    file = tmp_path / "now.json"
    assert _run("--kept", _kept(tmp_path), "--json", str(file)) == 1
    facts = json.loads(file.read_text())
    assert facts["lost"] == [samplers.name]
    assert facts["ratios"][samplers.name] == pytest.approx(1.78)
    assert f"measured twice: {samplers.name}." in " ".join(capsys.readouterr().out.split())


def test_a_ratio_that_was_disturbed_once_passes(benchmarks: Results, tmp_path: Path) -> None:
    disturbed = RATIOS[0]
    benchmarks[disturbed.benchmark][0][disturbed.above] *= 0.5
    assert _run("--kept", _kept(tmp_path)) == 0
    assert len(benchmarks[disturbed.benchmark]) == 1
    assert len(benchmarks[RATIOS[1].benchmark]) == 2, "the others are not measured again"


def test_the_medians_of_several_turns_are_kept(benchmarks: Results, tmp_path: Path) -> None:
    first = RATIOS[0]
    benchmarks[first.benchmark][1][first.above] = 40.0
    file = tmp_path / "kept.json"
    assert _run("--turns", "3", "--json", str(file)) == 0
    assert ratios.read_kept(str(file)) == {ratio.name: 2.0 for ratio in RATIOS}


@pytest.mark.parametrize("content", [None, "{}", "[]", '{"ratios": {"a": "b"}}', "{"])
def test_what_is_no_kept_result_is_refused_before_the_start(
    benchmarks: Results, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "kept.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match="is no result of `spreeze bench ratios`"):
        _run("--kept", str(file))
    assert all(len(coming) == 3 for coming in benchmarks.values())


def test_every_ratio_is_made_of_figures_that_its_benchmark_has() -> None:
    """The kept results of the benchmarks hold the names that the ratios ask for."""
    kept: dict[str, Any] = {}
    results = Path(__file__).parents[3] / "bench" / "results"
    for name in ("learner-2cores", "sampling-Pendulum-v1-2cores", "pipeline-HalfCheetah-v5-h200"):
        kept |= json.loads((results / f"{name}.json").read_text())
    for ratio in RATIOS:
        if ratio.benchmark[0] != "wires":
            assert kept[ratio.above] > 0
            assert kept[ratio.below] > 0


def test_a_benchmark_that_fails_is_told_with_its_own_words() -> None:
    with pytest.raises(RunFailed, match=r"(?s)there is no benchmark.*spreeze bench nothing failed"):
        ratios.run_benchmark(("nothing",))
