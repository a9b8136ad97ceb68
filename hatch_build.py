"""Makes the description for package indexes from README.md when a wheel is built.

An index has no files beside the README. So links to other files of this repository become plain text there,
and its pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https://)[^)]*\)\n+", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https://)[^)]*\)")


class CustomMetadataHook(MetadataHookInterface):
    """The hook that hatchling looks for in this file."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        readme = (Path(self.root) / "README.md").read_text()
        text = LINK.sub(r"\1", PICTURE.sub("", readme))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
