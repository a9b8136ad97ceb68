"""Builds the documentation site into build/site. A warning is an error.

    python docs/website.py

The pages are docs/*.md and docs/guides/*.md as they are, CONTRIBUTING.md and its neighbours, and pages that are made here:
one for each example, one for each public module. They are gathered in build/pages, where links to other files of the
repository lead to their page. A file without one is linked on GitHub if GITHUB_REPOSITORY names the repository, as it
does in a workflow, and is plain text otherwise. SITE_URL is where the site will be, if that is known.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from api_pages import api_pages

ROOT = Path(__file__).parent.parent
BESIDE = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
"""Pages that are not in docs/. In the site they are beside the others."""
LINK = re.compile(
    r"""^```.*?^``` | (?P<text>(?P<picture>!?)\[(?P<label>(?:`[^`\n]*`|[^\]`])*)\])\((?P<target>[^)\s:]+)\) | `[^`\n]*`""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
"""A link or a picture, or code, in which nothing is a link."""
DRAWING = re.compile(r"!\[[^\]]*\]\((?P<file>(?:concepts|headline|curves)\.svg)\)")

DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{ (?P<rule>[^}]*\}) \}")
"""The colours of a drawing on dark pages."""


def sources() -> dict[str, str]:
    """The text of every page by its place in the site; in front of links, places are those of the repository."""
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/guides/*.md")]
    found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    found |= {name: (ROOT / name).read_text() for name in BESIDE}
    found |= {f"docs/api/{name}": text for name, text in api_pages().items()}
    return found | example_pages()


def example_pages() -> dict[str, str]:
    """A page for each example, and one that lists them."""
    found, rows = {}, []
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text()
        about = (ast.get_docstring(ast.parse(code)) or "").replace("\n", " ")
        found[f"examples/{path.name}"] = f"# {path.name}\n\n```python\n{code}```\n"
        rows.append(f"- [`{path.name}`]({path.name}): {about.partition('. ')[0].rstrip('.')}.")
    found["examples"] = "# Examples\n\nComplete programs to copy from.\n\n" + "\n".join(rows) + "\n"
    return found


def place(source: str) -> str:
    """Where a file of the repository is in the site."""
    if source == "examples":
        return "examples/index.md"
    if source.endswith(".py"):
        return source.removesuffix(".py") + ".md"
    return source.removeprefix("docs/")


def rewritten(source: str, text: str, pages: dict[str, str]) -> str:
    """A page whose links lead to pages of the site, or to the repository."""
    folder = str(PurePosixPath(source).parent)
    here = str(PurePosixPath(place(source)).parent)

    def link(match: re.Match[str]) -> str:
        target, mark, anchor = (match["target"] or "").partition("#")
        if not target:
            return match[0]
        if source == "examples":
            target = f"examples/{target}"
        file = normpath(f"{folder}/{target}")
        if file in pages:
            return f"{match['text']}({relpath(place(file), here)}{mark}{anchor})"
        if match["picture"] or not (ROOT / file).exists():  # the build names what is missing
            return f"{match['text']}({relpath(place(file), here)})"
        at = in_repository(file)
        return f"{match['text']}({at})" if at else match["label"]

    return DRAWING.sub(drawing, LINK.sub(link, text))


def in_repository(file: str) -> str | None:
    """The address of a file on GitHub."""
    repository = os.environ.get("GITHUB_REPOSITORY")
    commit = os.environ.get("GITHUB_SHA", "main")
    return f"https://github.com/{repository}/blob/{commit}/{file}" if repository else None


def drawing(match: re.Match[str]) -> str:
    """A drawing as part of the page, so that its colours follow the switch between light and dark."""
    svg = (ROOT / "docs" / match["file"]).read_text().strip()
    svg = DARK.sub(r'[data-md-color-scheme="slate"] \g<rule>', svg)
    return f'<figure class="drawing">{svg}</figure>'


def gather(folder: Path) -> None:
    """Write all pages and their pictures into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = sources()
    for source, text in pages.items():
        path = folder / place(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rewritten(source, text, pages))
    for kind in ("svg", "png", "css"):
        for file in ROOT.glob(f"docs/*.{kind}"):
            shutil.copy(file, folder / file.name)


def configuration() -> str:
    """docs/zensical.toml with the address of the site, if it is known.

    The repository is not in it: browsers would ask GitHub for its number of stars.
    """
    text, address = (ROOT / "docs" / "zensical.toml").read_text(), os.environ.get("SITE_URL")
    line = f'site_url = "{address}"\n' if address else ""
    return text.replace("[project]\n", f"[project]\n{line}", 1)


def build(folder: Path) -> Path:
    """Build the site in a folder and return where it is; exit with what is wrong, if anything is."""
    site, config = folder / "site", folder / "zensical.toml"
    gather(folder / "pages")
    config.write_text(configuration())
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    ended = subprocess.run(
        [*command, "--config-file", str(config)],
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = re.sub(r"\x1b\[[\d;]*m", "", ended.stdout + ended.stderr)
    if ended.returncode or "Warning" in said:
        sys.exit(said.partition("Traceback")[0] + "\nThe site has warnings; see above.")
    return site


if __name__ == "__main__":
    built = build(ROOT / "build")
    print(f"The site is in {built.relative_to(ROOT)}: {len(list(built.rglob('*.html')))} pages.")
