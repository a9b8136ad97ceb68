"""What a run keeps to itself: no code in what it writes, no secrets, no network, nothing for other users."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pickletools
import pty
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fake_runs import make_run
from spreeze.wires.arena import Arena, Block
from user_runs import gone_within, learning, read, training, wait_for

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "spreeze"
NOBODY = 65534

# S11: no code in data.

BETWEEN_OUR_PROCESSES = {
    *("run/processes/pool.py", "run/processes/forkserver.py", "run/processes/entry.py"),
    *("run/tracker.py", "dashboard/server.py", "bench/sampling.py", "bench/sampling_worker.py"),
    "envs/checkup/checks.py",
}
"""Modules that load pickles. Each comes from a process of the same run, over a socket or pipe that has no name."""
PEERS = SOURCE / "bench" / "peers" / "drivers"
"""Programs that run with other frameworks, in virtual environments of theirs, and load what they have just saved."""
LOADERS = {
    f"{module}.{name}"
    for module in ("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "torch", "yaml")
    for name in ("load", "loads", "Unpickler", "open", "unsafe_load", "full_load")
} | {"eval", "exec", "compile", "os.system", "os.popen"}


def calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a file, with the name that is called."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.fault("S11")
def test_nothing_but_messages_of_our_own_processes_is_unpickled() -> None:
    found: set[str] = set()
    for file in SOURCE.rglob("*.py"):
        if PEERS in file.parents:
            continue
        for name, call in calls(file):
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert given.get("shell", "False") == "False", file
            assert given.get("allow_pickle", "False") == "False", file
            if name in LOADERS:
                assert name in ("pickle.loads", "cloudpickle.loads"), (file, name)
                found.add(file.relative_to(SOURCE).as_posix())
    assert found == BETWEEN_OUR_PROCESSES


@pytest.mark.fault("S15")
def test_every_python_that_we_start_ignores_the_working_folder() -> None:
    """`python -m spreeze` takes it off the path by itself."""
    seen = 0
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.List) and node.elts:
                words = [ast.unparse(word) for word in node.elts]
                if words[0] == "sys.executable":
                    seen += 1
                    assert words[1] == "'-P'" or words[1:3] == ["'-m'", "'spreeze'"], (file, words)
    assert seen >= 4


def pickles_in(data: bytes) -> list[int]:
    """Where pickles start in `data`: one that is all of it, or any that can call something."""
    starts = {0, *(match.start() for match in re.finditer(rb"\x80[\x02-\x05]", data))}
    return [start for start in sorted(starts) if _is_pickle(data[start:], whole=start == 0)]


def _is_pickle(data: bytes, whole: bool) -> bool:
    names = []
    with contextlib.suppress(Exception):
        for opcode, _, position in pickletools.genops(data):
            names.append(opcode.name)
            if opcode.name == "STOP":
                code = {"GLOBAL", "STACK_GLOBAL", "INST", "REDUCE"} & set(names)
                return bool(code) or (whole and position + 1 == len(data))
    return False


@pytest.mark.fault("S11")
def test_the_search_for_pickles_finds_them() -> None:
    import pickle

    for protocol in range(2, 6):
        code = pickle.dumps(os.getcwd, protocol)
        assert pickles_in(code) == [0]
        assert pickles_in(bytes(100) + code) == [100]
    assert pickles_in(pickle.dumps({"a": 1}, 0)) == [0]
    assert pickles_in(b'{"a": 1}') == []


# S02, S11, S23: one run with everything on, killed in the end.


def as_nobody(path: Path) -> subprocess.CompletedProcess[str]:
    """What another user gets to read."""
    return subprocess.run(
        ["/bin/cat", str(path)], user=NOBODY, capture_output=True, text=True, check=False
    )


@pytest.mark.fault("S02")
@pytest.mark.fault("S11")
@pytest.mark.fault("S17")
@pytest.mark.fault("S23")
def test_a_killed_run_leaves_no_secret_and_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        name: f"canary-{name.lower()}" for name in ("A_TOKEN", "API_KEY", "SECRET_X", "DB_PASSWORD")
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "runs" / "r"
    with training(tmp_path, "Pendulum-v1", "--checkpoint.every-s", "1") as process:
        pids = learning(tmp_path)
        wait_for((run / "live" / "frame.jpg").exists)
        wait_for(lambda: any((run / "checkpoints").glob("*/*.safetensors")))
        link = run / "dashboard.token"
        token = link.read_text().strip()
        assert len(token) >= 22
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
        for member in family:
            own = [Path(f"/proc/{member.pid}/{name}") for name in ("cmdline", "environ")]
            assert not [file for file in own if token.encode() in file.read_bytes()]
        if os.geteuid() == 0:
            tmp_path.chmod(0o755)
            assert as_nobody(link).returncode != 0, "the token is for this user alone"
            shared = _shared_memory(pids["learner-0"])
            assert shared
            assert all(as_nobody(file).returncode != 0 for file in shared)
        process.kill()
        out, err = process.communicate()
    gone_within({str(member.pid): member.pid for member in family}, 10)
    assert not link.exists(), "what it led to is gone"
    assert token not in out + err
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        data = file.read_bytes()
        assert not [word for word in (token, *secrets.values()) if word.encode() in data], file
        assert not pickles_in(data), file


def _shared_memory(pid: int) -> list[Path]:
    """The descriptors through which a process holds the memory of the run."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:" in os.readlink(entry):
                found.append(entry)
    return found


@pytest.mark.fault("S17")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_open_shared_memory() -> None:
    arena = Arena.create([Block("x", (8,), "<i8")])
    try:
        path = Path(f"/proc/{os.getpid()}/fd/{arena.fd}")
        assert path.read_bytes()[:8] == bytes(8)
        assert "denied" in as_nobody(path).stderr
    finally:
        arena.close()


# S02: the page by itself.


@contextlib.contextmanager
def page(folder: Path, stdout: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "spreeze", "dashboard", str(folder), *arguments]
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


@pytest.mark.fault("S02")
def test_a_log_gets_the_address_without_the_token(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    log = tmp_path / "log"
    with log.open("wb") as file, page(tmp_path, file.fileno()):
        said = wait_for(lambda: re.search(r"Token: in (\S+) until", log.read_text()))
        secret = Path(said[1])
        token = secret.read_text().strip()
        assert len(token) >= 22
        assert secret.stat().st_mode & 0o777 == 0o600
    assert "?token=..." in log.read_text()
    assert token not in log.read_text()
    assert not secret.exists()


@pytest.mark.fault("S02")
def test_a_terminal_gets_the_whole_address(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    ours, theirs = pty.openpty()
    try:
        with page(tmp_path, theirs):
            shown = b""
            while b"Ctrl-C" not in shown:
                shown += os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)
    assert re.search(rb"\?token=[\w-]{22}\b", shown)


# S20: no network.

WATCH = """
import os, sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        with open({log!r}, "a") as log:
            log.write(f"{{event}} {{arguments[-1] if event.startswith('socket.c') else arguments}}\\n")
sys.addaudithook(watch)
"""


def _without_network() -> list[str]:
    """A prefix that takes the network away, loopback included, where the kernel permits it."""
    prefix = ["unshare", "--net"]
    allowed = (
        shutil.which("unshare") and not subprocess.run([*prefix, "true"], check=False).returncode
    )
    return prefix if allowed else []


@pytest.mark.fault("S20")
def test_a_run_needs_no_network_and_calls_nobody(tmp_path: Path) -> None:
    hooks, log = tmp_path / "hooks", tmp_path / "connections"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(WATCH.format(log=str(log)))
    path = os.pathsep.join([str(hooks), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "spreeze", "train", "Pendulum-v1", "--name", "r"]
    for prefix, flags in ((_without_network(), []), ([], ["--resume", "r", "--name", "again"])):
        words = command if not flags else [*command[:4], *flags]
        done = subprocess.run(
            [*prefix, *words, "--steps", "6000"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    assert read(tmp_path, "summary")["updates"] > 0
    said = log.read_text().splitlines() if log.exists() else []
    assert not [line for line in said if "127.0.0.1" not in line and "'/" not in line], said


# S21, S22: the project itself.


def test_the_hook_that_watches_connections_sees_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = WATCH.format(log=str(log)) + "import socket\n"
    code += "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))\n"
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert "192.0.2.1" in log.read_text()


BUILD_TOOLS = {"hatchling", "editables"}
"""The wheel of Spreeze itself is built with these."""
SUITES = ["mujoco", "classic", "box2d", "atari", "dmc", "bullet", "envpool"]


@pytest.mark.fault("S21")
@pytest.mark.parametrize(
    ("name", "extras", "more", "not_locked"),
    [
        ("train", ["dashboard"], BUILD_TOOLS, {"spreeze", "torch"}),
        ("dev", ["dashboard", "dev"], BUILD_TOOLS, {"spreeze", "torch", "triton"}),
        ("suites", [*SUITES, "dev"], BUILD_TOOLS, {"spreeze", "torch", "triton"}),
        ("tools", None, {"uv", "pip-audit", "cyclonedx-bom"}, set()),
    ],
)
def test_every_locked_package_has_hashes_and_nothing_is_missing(
    name: str, extras: list[str] | None, more: set[str], not_locked: set[str]
) -> None:
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    entries = re.findall(r"^(\S+)==\S+((?:[^\n]*\\\n)+[^\n]*)$", text, re.MULTILINE)
    locked = {package for package, _ in entries}
    pinned = re.findall(r"^([a-z0-9][\w.-]*)", text, re.MULTILINE)
    assert sorted(pinned) == sorted(package for package, _ in entries), "only exact versions"
    assert all("--hash=sha256:" in rest for _, rest in entries)
    assert "://" not in re.sub(r"#.*", "", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = set() if extras is None else {*project["dependencies"]}
    wanted = wanted.union(
        more, *(project["optional-dependencies"][extra] for extra in extras or ())
    )
    names = {re.split(r"[^\w.-]", text)[0].lower().replace("_", "-") for text in wanted}
    assert names - locked == not_locked
    assert not {package for package in locked if re.match("cuda-|nvidia-(?!ml-py)", package)}


@pytest.mark.fault("S21")
def test_make_installs_what_is_locked_before_it_installs_the_project() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    installs = [i for i, line in enumerate(lines) if line.startswith("\t@$(INSTALL)")]
    assert len(installs) == 3
    assert all(lines[i - 1].startswith("\t@$(LOCKED) -r locks/") for i in installs)
    by_pip = [line for line in lines if re.search(r"\bpip.* install\b", line) and line[0] != "#"]
    assert len(by_pip) == 2, "the locked one, and the tools"
    assert "--require-hashes" in by_pip[1]


@pytest.mark.fault("S21")
def test_actions_are_pinned_by_commit() -> None:
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (\S+)", file.read_text())
        assert used
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in used), used


@pytest.mark.fault("S22")
def test_the_threat_model_is_stated_and_its_tests_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "## Threat model" in text
    assert "## Report a vulnerability" in text
    assert "SECURITY.md" in (ROOT / "README.md").read_text()
    named = set(re.findall(r"`(tests/\S+?\.py)`", text))
    assert len(named) > 3
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.fault("S23")
def test_a_secret_on_the_command_line_is_not_stored(tmp_path: Path) -> None:
    """In a script of the user's, whose arguments Spreeze cannot know."""
    (tmp_path / "mine.py").write_text(
        "import spreeze\nspreeze.train('Pendulum-v1', serial=True, steps=300, name='r')\n"
    )
    words = ["mine.py", "--api-key", "canary-1", "--wandb_token=canary-2", "--seed", "1"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    stored = json.loads((tmp_path / "runs" / "r" / "system.json").read_text())["command"]
    assert stored == ["mine.py", "--api-key", "...", "--wandb_token=...", "--seed", "1"]
    files: Callable[[str], Iterator[Path]] = (tmp_path / "runs").rglob
    assert not [f for f in files("*") if f.is_file() and b"canary" in f.read_bytes()]
