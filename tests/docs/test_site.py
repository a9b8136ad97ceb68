"""The documentation site: complete, without files from other hosts, and refused if something in it is wrong."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spreeze.algos
import spreeze.networks
import spreeze.testing
from pages import DOCS

LOADED = re.compile(r"<(?:script|img|link|iframe|source|video)\b[^>]*?\b(?:src|href)=\"?([^\" >]+)")
"""What a browser fetches for a page. Fonts are fetched by style sheets."""


@pytest.fixture(scope="module")
def website() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("website")


@pytest.fixture(scope="module")
def site(website: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return website.build(tmp_path_factory.mktemp("site"))  # type: ignore[no-any-return]


def in_navigation() -> Iterator[str]:
    """The pages of the navigation."""
    waiting: list[Any] = [tomllib.loads((DOCS / "zensical.toml").read_text())["project"]["nav"]]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        else:
            waiting += item.values() if isinstance(item, dict) else item


def test_every_page_is_in_the_navigation_once(website: ModuleType) -> None:
    assert sorted(in_navigation()) == sorted(map(website.place, website.sources()))


def test_browsers_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = [at for at in LOADED.findall(page.read_text()) if not at.startswith("data:")]
        assert len(loaded) > 2
        for at in loaded:
            assert not re.match(r"\w+:|//", at), f"{page.name} loads {at}"
            file = (page.parent / at.partition("?")[0].partition("#")[0]).resolve()
            assert at.startswith("/") or file.exists(), f"{page.name} lacks {at}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text()), style.name


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        links = re.findall(r"<a\b[^>]*?\bhref=\"?([^\" >]+)", page.read_text())
        for at in {link.partition("#")[0] for link in links if not re.match(r"\w+:|#", link)}:
            assert (page.parent / at).exists(), f"{page.name} links {at}"


def test_pages_lead_to_examples_and_to_neighbours_of_docs(site: Path) -> None:
    guide = (site / "guides" / "own-environment.html").read_text()
    assert 'href="../examples/custom_env.html"' in guide
    assert "Thermostat" in (site / "examples" / "custom_env.html").read_text()
    assert 'href="CONTRIBUTING.html"' in (site / "index.html").read_text()
    contributing = (site / "CONTRIBUTING.html").read_text()
    assert 'href="algorithms.html"' in contributing


@pytest.mark.parametrize("repository", [None, "someone/spreeze"])
def test_files_without_a_page_are_linked_where_the_repository_is_known(
    website: ModuleType, monkeypatch: pytest.MonkeyPatch, repository: str | None
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    if repository:
        monkeypatch.setenv("GITHUB_REPOSITORY", repository)
        monkeypatch.setenv("GITHUB_SHA", "abc")
    text = "See [the `tests`](../tests/docs) and `[code](../tests)`."
    found = website.rewritten("docs/runs.md", text, {})
    link = "[the `tests`](https://github.com/someone/spreeze/blob/abc/tests/docs)"
    assert found == f"See {link if repository else 'the `tests`'} and `[code](../tests)`."


@pytest.mark.parametrize(
    ("name", "file", "drawing"),
    [
        ("concepts", "concepts.svg", "roles"),
        ("benchmarks", "headline.svg", "plot"),
        ("benchmarks", "curves.svg", "plot"),
    ],
)
def test_drawings_are_part_of_their_pages_and_follow_the_switch_of_the_page(
    site: Path, name: str, file: str, drawing: str
) -> None:
    page = (site / f"{name}.html").read_text()
    assert f'<svg class="{drawing}"' in page
    assert f'src="{file}"' not in page
    assert "prefers-color-scheme: dark) {" not in page
    assert f'[data-md-color-scheme="slate"] .{drawing} {{' in page


def test_the_python_pages_have_every_public_name(site: Path) -> None:
    for module in (spreeze, spreeze.algos, spreeze.networks, spreeze.testing):
        text = (site / "api" / f"{module.__name__}.html").read_text()
        shown = set(re.findall(r"<h2 id=\"[^\"]*\"><code>(\w+)</code>", text))
        missing = {name for name in module.__all__ if name[0] != "_"} - shown
        assert missing <= {"ALGORITHMS", "Arithmetic", "Metrics"}, "these have no docstrings"
    train = (site / "api" / "spreeze.html").read_text()
    assert "Train until a target, a time or a number of steps is reached" in train


@pytest.mark.parametrize("link", ["nothing.md", "runs.md#nothing"])
def test_a_broken_link_is_refused(
    website: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    sources = website.sources() | {"docs/install.md": f"# Install\n\n[Broken]({link})\n"}
    monkeypatch.setattr(website, "sources", lambda: sources)
    with pytest.raises(SystemExit, match="does not exist"):
        website.build(tmp_path)
