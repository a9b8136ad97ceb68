"""What libraries say about environments: Python's warnings, and MuJoCo's.

By itself, MuJoCo also appends its warnings to a file in the working folder. Here they only go to standard
error, which is the log of a role. In the user's own process, `messages_to` sends all of them to a file.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from spreeze.store.logs import open_text_log

MOST_MESSAGES = 100
"""How many of MuJoCo's messages are remembered: every environment of a process repeats them."""

_log: TextIO | None = None
"""Where messages go in place of standard error."""


def keep_mujoco_log_here() -> None:
    """Send MuJoCo's warnings the way of all messages, as soon as it is imported; calling twice is harmless."""
    if (mujoco := sys.modules.get("mujoco")) is not None:
        _take_over(mujoco)
    elif _import_hook not in sys.meta_path:
        sys.meta_path.insert(0, _import_hook)


@contextmanager
def messages_to(path: Path | None) -> Iterator[None]:
    """Send the messages of the block to the end of a file; None: nowhere."""
    global _log  # noqa: PLW0603
    before = _log
    _show_mujoco_warning.cache_clear()  # this file has none of them yet
    with open_text_log(path) as log, warnings.catch_warnings():
        warnings.showwarning = _show_warning
        _log = log
        try:
            yield
        finally:
            _log = before


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=_log)


@lru_cache(MOST_MESSAGES)
def _show_mujoco_warning(text: str) -> None:
    print(f"MuJoCo: {text}", file=_log or sys.stderr)


def _take_over(mujoco: ModuleType) -> None:
    """Show MuJoCo's warnings ourselves, unless the user's code does."""
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_show_mujoco_warning)


class _ImportHook:
    """Takes MuJoCo over when it is imported. Importing it for every environment would cost time."""

    def find_spec(
        self, fullname: str, _path: Any = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "mujoco":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_take_over(module: ModuleType) -> None:
            execute(module)
            _take_over(module)

        spec.loader.exec_module = execute_and_take_over  # type: ignore[method-assign]
        return spec


_import_hook = _ImportHook()
