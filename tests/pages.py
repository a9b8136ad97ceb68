"""The examples of documents, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def python_blocks(page: str) -> list[str]:
    """The Python code of a page, one text per block."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def run_block(block: str, page: str, names: dict[str, Any]) -> None:
    """Run a block; `names` has what the blocks before it have defined, and gets what this one defines."""
    exec(compile(block, f"docs/{page}", "exec"), names)
