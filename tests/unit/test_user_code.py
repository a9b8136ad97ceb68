"""Which of the user's modules can be imported, and by whom."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spreeze import user_code
from spreeze.envs.targets import make_env
from spreeze.errors import UsageError
from spreeze.user_code import allow, allow_named, allowed, load_file

ENV = "import gymnasium as gym\nclass Mine(gym.Env):\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(user_code, "_user_modules", user_code.UserModules())
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["mine:Env"], {"mine"}),
        (["package.module:EnvClass"], {"package"}),
        (["--env=mine:Env-v0", "--algo", "other:ENTRY"], {"mine", "other"}),
        (["Pendulum-v1", "--device", "cuda:0,cuda:1", "--time", "1:30"], set()),
        (["file.py:Env", "folder/file.py:Env", "dm_control/a-v0", ":x"], set()),
    ],
)
@pytest.mark.fault("S15")
def test_the_command_line_names_modules(
    arguments: list[str], names: set[str], folder: Path
) -> None:
    allow_named(arguments, str(folder))
    assert allowed() == dict.fromkeys(names, str(folder))


@pytest.mark.fault("S15")
def test_a_named_module_finds_its_neighbours_and_nobody_else_does(folder: Path) -> None:
    (folder / "zz_mine.py").write_text(
        "import importlib, zz_helper\ndef late():\n    return importlib.import_module('zz_late')\n"
    )
    (folder / "zz_helper.py").write_text("import zz_package.inner\n")
    (folder / "zz_package").mkdir()
    (folder / "zz_package" / "inner.py").write_text("value = 1\n")
    for name in ("zz_late", "zz_other"):
        (folder / f"{name}.py").touch()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("zz_mine")
    allow({"zz_mine": str(folder)})
    module: Any = importlib.import_module("zz_mine")
    assert module.zz_helper.zz_package.inner.value == 1
    assert importlib.util.find_spec("zz_other") is None, "this test is not in the folder"
    assert importlib.util.find_spec("zz_late") is None
    assert module.late().__name__ == "zz_late"
    assert allowed().keys() == {"zz_mine", "zz_helper", "zz_package", "zz_late"}


@pytest.mark.fault("S15")
def test_a_library_that_lies_in_the_folder_is_not_the_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment is often inside the project's folder."""
    installed = folder / ".venv"
    installed.mkdir()
    monkeypatch.syspath_prepend(str(installed))
    (installed / "zz_library.py").write_text(
        "try:\n    import zz_optional\nexcept ImportError:\n    zz_optional = None\n"
    )
    (folder / "zz_optional.py").touch()
    (folder / "zz_mine.py").write_text("import zz_library\n")
    allow_named(["zz_mine:Env"], str(folder))
    assert importlib.import_module("zz_mine").zz_library.zz_optional is None


def test_what_is_installed_comes_first(folder: Path) -> None:
    (folder / "wave.py").write_text("raise AssertionError\n")
    sys.modules.pop("wave", None)
    allow_named(["wave:open"], str(folder))
    assert str(folder) not in str(importlib.import_module("wave").__file__)


def test_an_environment_in_a_file_may_use_its_neighbours(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "mine.py").write_text(f"import zz_helper\n{ENV}")
    (inner / "zz_helper.py").touch()
    env = make_env("inner/mine.py:Mine")
    assert type(env).__name__ == "Mine"
    assert type(make_env(f"{inner}/mine.py:Mine")) is type(env), "one module, one class"
    with pytest.raises(UsageError, match=r"there is no file inner/yours\.py"):
        make_env("inner/yours.py:Mine")
    with pytest.raises(UsageError, match=r"Did you mean inner/mine\.py:Mine"):
        make_env("inner/mine.py:Mime")


def test_a_file_that_fails_is_loaded_again(folder: Path) -> None:
    (folder / "broken.py").write_text("raise RuntimeError('not yet')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not yet"):
            load_file(folder / "broken.py")


def test_a_registered_class_may_be_in_another_file(folder: Path) -> None:
    import gymnasium as gym

    (folder / "zz_register.py").write_text(
        "import gymnasium as gym\ngym.register('ZzMine-v0', entry_point='zz_envs:Mine')\n"
    )
    (folder / "zz_envs.py").write_text(ENV)
    allow_named(["zz_register:ZzMine-v0"], str(folder))
    try:
        assert type(make_env("zz_register:ZzMine-v0").unwrapped).__name__ == "Mine"
    finally:
        gym.registry.pop("ZzMine-v0", None)
