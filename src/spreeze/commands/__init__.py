"""The commands, one module each with a `main(arguments, started_s) -> exit code`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def write_json(value: Any, file: str) -> None:
    """The facts of a command as JSON, to a file or, for `-`, to standard output."""
    text = json.dumps(value, indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text)
