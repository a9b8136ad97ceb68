"""Files that were made to do harm: every reader gives a result or one typed error, and runs nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spreeze import cli
from spreeze.cli.comparison import compare, print_comparison
from spreeze.dashboard.runs import RunIndex
from spreeze.dashboard.tail import RunTail
from spreeze.errors import DamagedFile, UsageError
from spreeze.policy import PolicyForm
from spreeze.settings.checks import check_knobs
from spreeze.settings.defaults import config_from_json, default_config
from spreeze.settings.parse import parse_arguments
from spreeze.spec import EnvSpec
from spreeze.store.checkpoint import LoadedTraining, save_training
from spreeze.store.files import parse_json
from spreeze.store.manifest import read_manifest
from spreeze.store.metrics import MetricsReader
from spreeze.store.resume_point import ResumePoint
from spreeze.store.rundir import RunDir, process_start, run_facts
from spreeze.store.tensorboard import TensorBoard
from spreeze.store.tensors import parse_header, read_tensors

GOLDEN = Path(__file__).parent / "golden" / "format-1"
ESCAPE = "\x1b[31m\x07\u202e"
CANARY = "canary"


class Canary:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {CANARY}",)


def header(entries: Any, data: bytes = b"") -> bytes:
    """A safetensors file with this header."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE_TENSORS = {
    "pickle": pickle.dumps(Canary()),
    "zip": b"PK\x03\x04" + bytes(100),
    "huge header": struct.pack("<Q", 2**62) + b"{}",
    "many tensors": header({f"t{i}": entry(0, 0, [0]) for i in range(10_000)}),
    "overlap": header({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12)),
    "gap": header({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, bytes(12)),
    "outside": header({"a": entry(0, 2**40, [2**38])}, bytes(16)),
    "overflow": header({"a": entry(0, 0, [2**62, 4])}),
    "negative": header({"a": entry(-4, 0, [1])}, bytes(4)),
    "unknown type": header({"a": entry(0, 2, [1], "BF16")}, bytes(2)),
    "nested": header(b"[" * 100_000),
    "not an object": header([1, 2]),
    "no entry": header({"a": 5}),
    "escape": header({ESCAPE: entry(0, 4, [1])}, bytes(4)),
    "nan": header({"w0": entry(0, 4, [1])}, struct.pack("<f", float("nan"))),
}
HOSTILE_JSON = {
    "nested": b"[" * 200_000,
    "nested objects": b'{"a":' * 100_000,
    "not utf-8": b'{"a": "\xff\xfe"}',
    "list": b"[1, 2]",
    "empty": b"",
    "huge number": b'{"state": ' + b"9" * 10_000 + b"}",
    "nan": b'{"config": NaN, "asked": NaN, "wall_s": NaN, "updates": Infinity}',
    "wrong types": json.dumps(
        {
            "state": [ESCAPE],
            "pids": 7,
            "progress": "x",
            "config": {"env": 5, "algo": {}, "simulation": 3},
            "asked": {"algo": ["sac"], "learner": 5},
            "policy": {"spec": {"obs_shape": "x"}},
            "wall_s": "long",
            "best_return": {},
            "env_steps": 10**400 // 10**100,
        }
    ).encode(),
    "escape codes": json.dumps(
        {
            "state": f"finished{ESCAPE}",
            "reason": ESCAPE,
            "config": {"env": ESCAPE, "algo": ESCAPE},
            "asked": {"env": ESCAPE, "algo": "sac"},
            "policy": {"spec": {"id": ESCAPE}},
        }
    ).encode(),
    "names code": json.dumps(
        {"asked": {"algo": "os:system", "env": "os:system"}, "config": {}}
    ).encode(),
    "too large": b" " * (5 << 20),
}


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 36)


def _writer(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


HARM: dict[str, tuple[str, Callable[[Path], Any]]] = {}
for _name, _content in HOSTILE_TENSORS.items():
    for _file in ("policy", "train"):
        HARM[f"{_file}: {_name}"] = (
            f"checkpoints/000000064/{_file}.safetensors",
            _writer(_content),
        )
for _name, _content in HOSTILE_JSON.items():
    for _file in (
        "config.json",
        "status.json",
        "summary.json",
        "checkpoints/000000064/config.json",
    ):
        HARM[f"{_file}: {_name}"] = (_file, _writer(_content))
    HARM[f"manifest: {_name}"] = ("checkpoints/000000064/manifest.json", _writer(_content))
for _name, _harm in (("fifo", _fifo), ("device", _device), ("sparse", _sparse)):
    for _file in ("config.json", "summary.json", "checkpoints/000000064/policy.safetensors"):
        HARM[f"{_file}: {_name}"] = (_file, _harm)


def make_zoo(folder: Path) -> None:
    """A folder with one good run and many hostile ones."""
    for i, (file, harm) in enumerate(HARM.values()):
        run = folder / f"hostile-{i:03d}"
        shutil.copytree(GOLDEN, run, symlinks=True)
        harm(run / file)
    for i, link in enumerate(
        ("../../..", "/etc", "nowhere", "last", "..", "../../good/checkpoints/000000064")
    ):
        run = folder / f"link-{i}"
        shutil.copytree(GOLDEN, run, symlinks=True)
        (run / "checkpoints" / "last").unlink()
        (run / "checkpoints" / "last").symlink_to(link)
    shutil.copytree(GOLDEN, folder / f"name{ESCAPE}", symlinks=True)
    shutil.copytree(GOLDEN, folder / "good", symlinks=True)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """A command, in this process: its exit code, standard output and standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["spreeze", *arguments])
        patch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            cli.main()
    out, err = capsys.readouterr()
    for char in ("\x1b", "\x07", "\u202e"):
        assert char not in out + err, "no control characters reach the terminal"
    assert "Traceback" not in err
    return int(ended.value.code or 0), out, err


@pytest.mark.fault("S12")
@pytest.mark.fault("S25")
def test_hostile_runs_do_not_hide_the_good_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_zoo(tmp_path / "runs")
    code, out, _ = call(capsys, "runs")
    assert code == 0
    rows = out.splitlines()
    assert len(rows) == len(list((tmp_path / "runs").iterdir())) + 1
    assert any(row.startswith("good ") for row in rows)
    assert r"name\x1b[31m" in out
    assert not (tmp_path / CANARY).exists()


@pytest.mark.fault("S12")
@pytest.mark.fault("S13")
@pytest.mark.parametrize("command", ["export", "plot", "eval", "play"])
def test_every_command_answers_a_hostile_run_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_zoo(tmp_path / "runs")
    more = {
        "export": ("--onnx", "p.onnx"),
        "plot": (),
        "eval": ("--episodes", "1"),
        "play": ("--video", "p.mp4"),
    }[command]
    results = {}
    for run in sorted((tmp_path / "runs").iterdir()):
        if command != "plot" and run.name.startswith("hostile"):
            file = list(HARM.values())[int(run.name[-3:])][0]
            if "train" in file or "/" not in file:
                continue  # does not concern the policy
        elif command == "play" and not run.name.startswith("link"):
            continue  # it would be played
        code, _, err = call(capsys, command, run.name, *more)
        results[run.name] = code
        assert code in (0, 2)
        assert len(err.splitlines()) <= 1 or code == 0, err
    assert not (tmp_path / CANARY).exists()
    if command != "plot":
        assert command == "play" or results["good"] == 0
        assert [name for name, code in results.items() if code == 0 and "hostile" in name] == []
        assert results["link-0"] == results["link-1"] == results["link-5"] == 2


@pytest.mark.fault("F63")
@pytest.mark.fault("S12")
def test_resuming_from_a_hostile_run_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spreeze.settings.resume import resumed_config

    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    make_zoo(runs)
    assert resumed_config("good", runs).algo == "sac"
    for i, (file, _) in enumerate(HARM.values()):
        harmless = file in ("status.json", "summary.json")
        try:
            resumed_config(f"hostile-{i:03d}", runs)
        except UsageError as error:
            refused = str(error)
        else:
            refused = ""
        assert bool(refused) != harmless, list(HARM)[i]
        assert "\n" not in refused
    assert not (tmp_path / CANARY).exists()


@pytest.mark.fault("S12")
def test_the_page_lists_hostile_runs_as_plain_data(tmp_path: Path) -> None:
    make_zoo(tmp_path)
    table = RunIndex(tmp_path).table()
    assert {"good", "link-0", "hostile-000"} <= {row["name"] for row in table}
    assert json.dumps(table, allow_nan=False).isprintable()
    for run in RunIndex(tmp_path).runs().values():
        json.dumps(RunTail(run).poll()[0], allow_nan=False)


CHILD = """
import resource, sys
from pathlib import Path
from spreeze.errors import UsageError
from spreeze.policy.load import load_policy
from spreeze.store.checkpoint import load_training
from spreeze.store.rundir import RunDir, list_runs, run_facts
from spreeze.settings.resume import resumed_config
used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2)
runs = list_runs(Path(sys.argv[1]))
for run in runs:
    run_facts(run)
    for read in (
        lambda: load_policy(run.checkpoint()),
        lambda: load_training(run.checkpoints),
        lambda: resumed_config(run.path.name, run.path.parent),
    ):
        try:
            read()
        except UsageError:
            pass
print(len(runs))
"""


@pytest.mark.fault("S12")
@pytest.mark.fault("S14")
def test_hostile_files_stay_within_a_memory_cap(tmp_path: Path) -> None:
    make_zoo(tmp_path)
    for i, form in enumerate(
        ({"hidden": [65536] * 90}, {"hidden": [10**9]}, {"hidden": [4] * 10**5})
    ):
        run = tmp_path / f"form-{i}"
        shutil.copytree(GOLDEN, run, symlinks=True)
        path = run / "checkpoints" / "000000064" / "config.json"
        config = json.loads(path.read_text())
        config["policy"] |= form
        path.write_text(json.dumps(config))
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide" / "config.json").write_bytes(b"[" + b"[]," * ((4 << 20) // 3 - 1) + b"1]")
    num = len(list(tmp_path.iterdir()))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{num}\n"), done.stderr


# Fuzzing: a result or the typed error, whatever the input.

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_subnormal=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
fuzz = settings(max_examples=200, deadline=None)


def mutated(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The base with some of its values replaced by anything."""
    return st.dictionaries(st.sampled_from(sorted(base)), JSON, max_size=3).map(lambda d: base | d)


@pytest.mark.fault("S25")
@fuzz
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_json_object_or_refused(content: bytes) -> None:
    with contextlib.suppress(DamagedFile):
        assert isinstance(parse_json(content, "x"), dict)


ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "I64", "BF16"]) | JSON,
        "shape": st.lists(st.integers(-1, 2**70), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 64), max_size=3) | JSON,
    },
)


@pytest.mark.fault("S25")
@fuzz
@given(st.dictionaries(st.text(max_size=5), ENTRIES | JSON, max_size=4), st.integers(0, 64))
def test_any_header_describes_all_bytes_or_is_refused(entries: Any, num_bytes: int) -> None:
    try:
        places = parse_header(json.dumps(entries).encode(), num_bytes, "x")
    except DamagedFile:
        return
    assert sum(place.num_bytes for place in places.values()) == num_bytes


@pytest.mark.fault("S12")
@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0, 2], [0, 2**40, 2**40]])
def test_an_empty_tensor_of_an_impossible_shape_is_refused(
    tmp_path: Path, shape: list[int]
) -> None:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    header = json.dumps({"w": entry}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedFile, match="impossible shape"):
        read_tensors(tmp_path, "x.safetensors")


POINT = {"env_steps": [5], "episodes": [1], "tuned": {}, "lanes": [3], "rows": [0, 9]}


@pytest.mark.fault("S12")
@pytest.mark.fault("S25")
@fuzz
@given(mutated({**POINT, "serial": False, "boundary": False}))
@example({**POINT, "rows": [float("inf"), 0], "serial": False, "boundary": False})
@example({**POINT, "env_steps": [10**30], "serial": False, "boundary": False})
def test_any_resume_point_has_counts_or_is_refused(data: Any) -> None:
    config = {"updates": 1, "env_steps": 1}
    loaded = LoadedTraining(Path("x"), {}, {"config": config, "progress": data}, [])
    try:
        point = ResumePoint.of(loaded)
    except DamagedFile:
        return
    counts = [*point.env_steps, *point.episodes, *point.lanes, *point.rows]
    assert all(0 <= count < 2**53 for count in counts)


@pytest.mark.fault("S25")
@fuzz
@given(data=JSON | mutated(json.loads((GOLDEN / "config.json").read_text())["env_spec"]))
def test_any_description_of_an_environment_is_read_or_refused(data: Any) -> None:
    try:
        spec = EnvSpec.from_json(data)
    except DamagedFile:
        return
    assert spec.obs_size >= 0
    assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.fault("S25")
@fuzz
@given(
    data=JSON | mutated({"hidden": [4], "head": "tanh", "normalised": False, "layer_norm": False})
)
def test_any_description_of_a_policy_is_read_or_refused(data: Any) -> None:
    try:
        assert PolicyForm.from_json(data).hidden is not None
    except DamagedFile:
        return


@pytest.mark.fault("S14")
@pytest.mark.fault("S25")
@fuzz
@given(data=mutated(json.loads(json.dumps(default_config("sac").to_json()))))
def test_any_stored_config_is_valid_or_refused(data: dict[str, Any]) -> None:
    try:
        list(check_knobs(config_from_json(data)))
    except UsageError:
        return


@pytest.mark.fault("S25")
@settings(max_examples=60, deadline=None)
@given(
    content=st.binary(max_size=100)
    | mutated({"format": 2, "files": {}}).map(lambda d: json.dumps(d).encode())
)
def test_any_manifest_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("m")
    (folder / "manifest.json").write_bytes(content)
    try:
        read_manifest(folder)
    except DamagedFile:
        return


STATUS = json.loads((GOLDEN / "status.json").read_text())


@pytest.mark.fault("S25")
@settings(max_examples=60, deadline=None)
@given(
    status=JSON | mutated(STATUS),
    summary=st.binary(max_size=50) | JSON.map(lambda v: json.dumps(v).encode()),
)
def test_any_status_and_summary_make_a_row(
    tmp_path_factory: pytest.TempPathFactory, status: Any, summary: bytes
) -> None:
    run = tmp_path_factory.mktemp("run")
    (run / "status.json").write_text(json.dumps(status))
    (run / "summary.json").write_bytes(summary)
    facts = run_facts(RunDir(run))
    assert all(value is None or isinstance(value, int | float | str) for value in facts.values())


@pytest.mark.fault("S25")
@settings(max_examples=40, deadline=None)
@given(
    lines=st.lists(
        st.binary(max_size=40)
        | mutated({"a/b": 1, "env_steps": 2}).map(lambda d: json.dumps(d).encode()),
        max_size=5,
    )
)
def test_any_metrics_are_read_and_copied_to_tensorboard(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    run = tmp_path_factory.mktemp("run")
    (run / "metrics").mkdir()
    (run / "metrics" / "learner-0.jsonl").write_bytes(b"\n".join([*lines, b""]))
    assert all(isinstance(record, dict) for _, record in MetricsReader(run / "metrics").read_new())
    TensorBoard(run).close()


STORED = json.loads((GOLDEN / "config.json").read_text())
DEEP = "[" * 100_000
EVALUATION = {"time_s": 1, "env_steps": 2, "updates": 3, "eval/mean_reward": 4}


@pytest.mark.fault("S25")
@settings(max_examples=60, deadline=None)
@given(st.lists(mutated(STORED["config"]), min_size=1, max_size=3), JSON)
@example([{"target": [1]}], None)
@example([{"simulation": {"kwargs": DEEP}}, {"evaluator": {"kwargs": [DEEP]}}], None)
@example([{"resume": "\0"}, {"resume": ".."}, {"env": [{}], "hyper": [], "callback": [[1]]}], [[1]])
def test_any_configs_are_compared(
    tmp_path_factory: pytest.TempPathFactory, configs: list[dict[str, Any]], callbacks: Any
) -> None:
    folder, runs = tmp_path_factory.mktemp("runs"), []
    for i, config in enumerate(configs):
        runs.append(RunDir(folder / str(i)))
        runs[-1].metrics.mkdir(parents=True)
        (runs[-1].metrics / "evaluator-0.jsonl").write_text(json.dumps(EVALUATION) + "\n")
        stored = {"config": config, "asked": config, "callbacks": callbacks}
        (runs[-1].path / "config.json").write_text(json.dumps(stored))
        assert isinstance(runs[-1].env_kwargs, dict)
    rows, without = compare(runs)
    assert sum(row["runs"] for row in rows) <= len(runs)
    assert without == []
    print_comparison(rows)


@pytest.mark.fault("S25")
def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_arguments(DEEP)


@pytest.mark.fault("F20")
def test_a_process_with_the_pid_of_a_killed_run_is_not_that_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    status = {"state": "running", "pids": {"supervisor": os.getpid()}}
    for started, state in (
        (process_start(os.getpid()), "running"),
        (None, "running"),
        ("another boot 123", "killed"),
    ):
        (tmp_path / "status.json").write_text(json.dumps(status | {"started": started}))
        assert run_facts(RunDir(tmp_path))["state"] == state
    assert process_start(2**22 + 1) is None


@pytest.mark.fault("S11")
def test_a_checkpoint_holds_tensors_and_json_only(tmp_path: Path) -> None:
    tensors = {"policy": {"w": np.ones(3, np.float32)}, "train": {"w": np.ones(3, np.float32)}}
    data = {"config": {"updates": 1, "env_steps": 1}}
    assert save_training(tmp_path, 1, tensors, data, 1)
    for path in (tmp_path / "000000001").iterdir():
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            start = 8 + int.from_bytes(content[:8], "little")
            assert parse_header(content[8:start], len(content) - start, "x")
        else:
            assert parse_json(content, "x")
