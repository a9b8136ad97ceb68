"""Links between the documents lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(
    r"""\]\( <? ([^)\s>]+) >? (?:\s+"[^"]*")? \)  # [text](target), ![text](target)
      | ^\[[^\]]+\]: \s+ (\S+)                    # [label]: target
      | (?:src|href)="([^"]+)"                    # HTML""",
    re.VERBOSE | re.MULTILINE,
)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def _links(page: Path) -> Iterator[str]:
    """Targets of the links in `page` that stay in the repository."""
    for match in LINK.finditer(CODE.sub("", page.read_text())):
        target = next(filter(None, match.groups()))
        if not re.match(r"[a-z]+:", target):
            yield target


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of `page`."""
    out: dict[str, int] = {}
    for title in re.findall(r"^#+ +(.+?) *#*$", _without_fences(page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        out[anchor] = out.get(anchor, -1) + 1
    return {f"{name}-{i}" if i else name for name, last in out.items() for i in range(last + 1)}


def _without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT) or not target.exists():
            broken.append(f"{link}: there is no such file")
        elif anchor and anchor not in _anchors(target):
            broken.append(f"{link}: there is no such heading")
    assert broken == []


def test_the_front_page_leads_to_every_document() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        linked = {(page.parent / link.partition("#")[0]).resolve() for link in _links(page)}
        waiting += (linked & set(PAGES)) - reached
    assert set(PAGES) <= reached


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_installing_names_no_address_of_a_registry(page: Path) -> None:
    """Which registry a machine uses is for its owner to choose; `uv` knows where builds of PyTorch are."""
    assert re.findall(r"--(?:extra-)?index.url|/whl/", page.read_text()) == []
