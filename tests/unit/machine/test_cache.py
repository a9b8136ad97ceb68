"""Where the cache is when there is no home, or none that can be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from spreeze.machine.cache import cache_folder, cache_note


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder; the user's home does not exist and cannot be made."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/dev/null/nobody")
    return folder


def test_the_cache_is_in_the_users_cache_folder(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home/.cache/spreeze"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg/spreeze"
    assert cache_note() is None
    assert not list(temporary.iterdir())


@pytest.mark.fault("F74")
@pytest.mark.parametrize(
    "variables",
    [
        {"HOME": "/dev/null/nobody"},
        {"HOME": "/proc/self/nowhere"},
        {"HOME": "/tmp", "XDG_CACHE_HOME": "/dev/null/x"},
    ],
)
def test_without_a_home_the_cache_is_a_private_temporary_folder(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    folder = cache_folder()
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_folder() == folder, "the next run finds it again"
    note = cache_note()
    assert note is not None
    assert str(folder) in note


@pytest.mark.fault("F74")
def test_a_user_without_a_name_and_without_a_home(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError("no such user")))
    assert cache_folder().parent == temporary


@pytest.mark.fault("F74")
def test_a_home_that_cannot_be_written_to(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home/.cache/spreeze").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    real = os.access

    def read_only(path: Path, mode: int) -> bool:
        return temporary in Path(path).parents and real(path, mode)

    monkeypatch.setattr(os, "access", read_only)
    assert cache_folder().parent == temporary


@pytest.mark.fault("F74")
@pytest.mark.parametrize("trap", ["symlink", "open to others", "a file"])
def test_a_temporary_folder_that_others_prepared_is_not_used(
    temporary: Path, tmp_path: Path, trap: str
) -> None:
    place = temporary / f"spreeze-{os.getuid()}"
    if trap == "symlink":
        (tmp_path / "theirs").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "theirs")
    elif trap == "a file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(OSError, match=r"belongs to someone else|File exists"):
        cache_folder()
    note = cache_note()
    assert note is not None
    assert "every run has to measure and compile again" in note


@pytest.mark.fault("F74")
def test_without_any_folder_there_is_no_cache(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(FileNotFoundError):
        cache_folder()
    assert cache_note() is not None
