"""A run that is judged from outside: its clock stops while the judge plays, and nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from spreeze.bench import trial
from spreeze.bench.clock import Use
from spreeze.bench.trial import Program, Saved, Task

SAVES = """
import os, subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
daemon = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=2, start_new_session=True).pid)"
orphan = subprocess.run([sys.executable, "-c", daemon], stdout=subprocess.PIPE, text=True).stdout
(folder / "pids").write_text(f"{os.getpid()} {child.pid} {orphan}")
for value in map(float, sys.argv[2:]):
    (folder / "draft").write_text(str(value))
    (folder / "draft").rename(folder / "policy")
    for _ in range(20):
        time.sleep(0.01)
        with (folder / "alive").open("a") as file:
            file.write(f"{time.monotonic()}\\n")
time.sleep(60)
"""
"""Saves these values as its policies, one after another, and says when it runs. It starts a child, and an orphan."""
PLAYS = """
import json, sys, time
from pathlib import Path
print("[]", flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    began = time.monotonic()
    time.sleep(float(sys.argv[2]))
    with (Path(sys.argv[1]) / "asked").open("a") as file:
        file.write(json.dumps({**ask, "began": began, "ended": time.monotonic()}) + "\\n")
    print(json.dumps([float(Path(ask["policy"]).read_text())] * ask["episodes"]), flush=True)
"""
"""The return of a policy is the value that it holds."""


def _program(folder: Path, values: list[float], judging_s: float = 0.0) -> Program:
    def newest() -> Saved | None:
        policy = folder / "policy"
        return Saved(str(policy), 10, 2) if policy.exists() else None

    return Program(
        [sys.executable, "-c", SAVES, str(folder), *map(str, values)],
        [sys.executable, "-c", PLAYS, str(folder), str(judging_s)],
        dict(os.environ),
        newest,
    )


def _run(folder: Path, values: list[float], limit_s: float = 60.0, **options: float) -> trial.Trial:
    task = Task("env", target=5.0, limit_s=limit_s, every_s=0.05)
    return trial.run(_program(folder, values, **options), task, 3, folder / "printed.txt")


def _nothing_left(folder: Path) -> bool:
    for pid in map(int, (folder / "pids").read_text().split()):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def test_the_first_policy_at_the_target_counts_and_the_first_of_five_in_a_row(
    tmp_path: Path,
) -> None:
    """A single good judgement reaches the target. It is held once nothing worse comes between five of them."""
    result = _run(tmp_path, [1, 6, 1, 7])
    returns = [row[3] for row in result.curve]
    assert returns[-trial.HELD :] == [7.0] * trial.HELD
    assert result.reached_s == pytest.approx(result.curve[returns.index(6.0)][0], abs=1e-3)
    assert result.held_s == pytest.approx(result.curve[-trial.HELD][0], abs=1e-3)
    assert result.reached_s < result.held_s
    assert result.confirmed == 6.0
    assert result.error is None
    assert _nothing_left(tmp_path)


def test_the_program_stands_still_and_its_clock_too_while_the_judge_plays(tmp_path: Path) -> None:
    began = time.monotonic()
    result = _run(tmp_path, [6], judging_s=0.5)
    took_s = time.monotonic() - began
    asked = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    alive = [float(line) for line in (tmp_path / "alive").read_text().splitlines()]
    # A judge's play begins after the stop and ends before the start, give or take the reading of a clock.
    assert not any(ask["began"] < now < ask["ended"] for ask in asked for now in alive)
    assert len(asked) == trial.HELD + 1
    assert result.curve[-1][0] < took_s - 0.5 * len(asked)


def test_every_episode_of_the_judge_is_fresh(tmp_path: Path) -> None:
    _run(tmp_path, [6])
    asked = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    seeds = [seed for ask in asked for seed in range(ask["seed"], ask["seed"] + ask["episodes"])]
    assert len(set(seeds)) == len(seeds)
    assert sorted({ask["episodes"] for ask in asked}) == [
        trial.EPISODES,
        trial.CONFIRMED_EPISODES,
    ]


def test_what_does_not_get_there_ends_at_the_limit(tmp_path: Path) -> None:
    result = _run(tmp_path, [1], limit_s=0.6)
    assert result.reached_s is None
    assert result.held_s is None
    assert result.error is None
    assert {row[3] for row in result.curve} == {1.0}
    assert _nothing_left(tmp_path)


def test_a_framework_that_fails_is_a_result_with_its_words(tmp_path: Path) -> None:
    program = _program(tmp_path, [])
    failing = [sys.executable, "-c", "raise SystemExit('no such algorithm')"]
    task = Task("env", 5.0, 60.0, 0.05)
    result = trial.run(
        Program(failing, program.judge, program.variables, program.newest), task, 0, tmp_path / "p"
    )
    assert result.error == "no such algorithm"
    assert result.reached_s is None


def test_the_exit_code_of_what_was_asked_to_end_is_no_error(tmp_path: Path) -> None:
    """Ray, for one, exits with 1 then."""
    program = _program(tmp_path, [])
    ends = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)); "
    ends += f"open({str(tmp_path / 'policy')!r}, 'w').write('6'); time.sleep(60)"
    program = replace(program, train=[sys.executable, "-c", ends])
    result = trial.run(program, Task("env", 7.0, 2.0, 0.5), 0, tmp_path / "printed.txt")
    assert result.curve
    assert result.error is None


# The signal may come while psutil reads a file of the kernel, which nobody closes then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_is_left_after_sigterm(tmp_path: Path) -> None:
    def terminate() -> None:
        while not (tmp_path / "alive").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(SystemExit):
        _run(tmp_path, [1])
    thread.join()
    assert _nothing_left(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_it_has_learned_and_used_is_counted(tmp_path: Path) -> None:
    """Transitions of the updates between the first judged policy and the last; cores of its busy processes."""
    busy = "import os, sys, time\nfor value in range(1, 500):\n"
    # Renamed: it may be stopped between any two steps.
    busy += " open(sys.argv[1] + '.draft', 'w').write(str(value))\n"
    busy += " os.rename(sys.argv[1] + '.draft', sys.argv[1])\n end = time.monotonic() + 0.02\n while time.monotonic() < end: pass"
    policy, program = tmp_path / "policy", _program(tmp_path, [])

    def newest() -> Saved | None:
        if not policy.exists() or not (text := policy.read_text()):
            return None
        return Saved(str(policy), 10, updates=int(text), batch_size=256)

    program = replace(program, train=[sys.executable, "-c", busy, str(policy)], newest=newest)
    result = trial.run(program, Task("env", 1e6, 1.0, 0.1), 0, tmp_path / "printed.txt")
    assert len(result.curve) > 2
    assert result.learned_rows == 256 * (result.curve[-1][2] - result.curve[0][2]) > 0
    assert 0.1 < result.own_cores < 1.5


def test_other_programs_are_seen_and_the_frameworks_own_use_is_not(tmp_path: Path) -> None:
    """A busy child of the framework counts for it, also after its end; a busy stranger does not."""
    busy = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    family = psutil.Popen([sys.executable, "-c", f"import subprocess, sys, time\n"
                           f"subprocess.run([sys.executable, '-c', {busy!r}])\nprint(1, flush=True)\n"
                           "time.sleep(60)"], stdout=-1)  # fmt: skip
    try:
        before = Use.until_now([family])
        assert family.stdout
        family.stdout.read(1)
        after = Use.until_now([family])
        assert after.family - before.family >= 0.5
        assert after.busy - before.busy >= 0.5
    finally:
        family.kill()
        family.communicate()
