"""What `pip install spreeze` installs: the whole package and nothing else."""

from __future__ import annotations

import email.parser
import re
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import hatchling.build
import pytest

import spreeze
from spreeze.cli import main
from spreeze.cli.commands.doctor import TOOLS
from spreeze.envs.suites import EXTRAS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "spreeze"
INFO = f"spreeze-{spreeze.__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, built in this process: no network, and nothing is written to the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # a build backend builds the current folder
        name = hatchling.build.build_wheel(str(folder))
    assert name == f"spreeze-{spreeze.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name) as file:
        yield file


def test_the_package_is_complete_and_alone(wheel: zipfile.ZipFile) -> None:
    static, peers = PACKAGE / "dashboard" / "static", PACKAGE / "bench" / "peers"
    assert (static / "index.html").exists()
    assert (peers / "settings.toml").exists()
    data = {*static.iterdir(), *(peers / "locks").iterdir(), peers / "settings.toml"}
    sources = {*PACKAGE.rglob("*.py"), *data, PACKAGE / "py.typed"}
    expected = {path.relative_to(PACKAGE.parent).as_posix() for path in sources}
    packed = {name for name in wheel.namelist() if not name.startswith(f"{INFO}/")}
    assert packed == expected


def test_the_command_is_installed(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(f"{INFO}/entry_points.txt").decode()
    assert text.split() == ["[console_scripts]", "spreeze", "=", "spreeze.cli:main"]
    command = EntryPoint("spreeze", text.split()[-1], "console_scripts")
    assert command.load() is main


def test_the_metadata_has_version_licence_and_extras(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(f"{INFO}/METADATA").decode()
    metadata = email.parser.Parser().parsestr(text)
    assert metadata["Version"] == spreeze.__version__
    assert metadata["License-Expression"] == "MIT"
    assert wheel.read(f"{INFO}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == {*EXTRAS, *TOOLS, "suites", "dev"}, "doctor looks for every extra"


def test_the_description_has_no_link_that_an_index_cannot_follow(wheel: zipfile.ZipFile) -> None:
    metadata = email.parser.Parser().parsestr(wheel.read(f"{INFO}/METADATA").decode())
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]*)\)|^\[[^\]]+\]: (\S+)", text, re.MULTILINE)
    assert len(links) > 3
    assert [
        link for pair in links for link in pair if link and not link.startswith("https://")
    ] == []
    readme = (ROOT / "README.md").read_text()
    headings = re.findall(r"^#.*$", readme, re.MULTILINE)
    assert re.findall(r"^#.*$", text, re.MULTILINE) == headings, "nothing else is lost"


def test_links_of_the_project_are_named_in_the_repository(wheel: zipfile.ZipFile) -> None:
    metadata = email.parser.Parser().parsestr(wheel.read(f"{INFO}/METADATA").decode())
    named = (ROOT / "CITATION.cff").read_text()
    addresses = [line.partition(", ")[2] for line in metadata.get_all("Project-URL", [])]
    assert addresses
    assert all(address in named for address in addresses)
