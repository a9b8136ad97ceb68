"""Your own modules: which files of your folders may be imported, and by whom.

The working folder is not on the import path: there, any library that tries an optional import would run
a file of that name, although nobody asked for it. Instead, a finder behind all others serves the modules
that the command line names, and what these import from their own folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from spreeze.errors import UsageError

NAMED = re.compile(r"(?:--[\w.-]+=)?([^\W\d]\w*)((?:\.[^\W\d]\w*)*):[^\W\d]")
"""`module:Id` or `package.module:EnvClass`, also as `--flag=value`. `cuda:0` is none."""
IMPORT_SYSTEM = ("importlib", "_frozen_importlib", "_frozen_importlib_external")


class UserModules:
    """Finds the modules it was told of, and what their code imports from the same folder."""

    def __init__(self) -> None:
        """Find nothing yet."""
        self.folders: dict[str, str] = {}
        """Top-level modules that may be imported, and the folder of each."""

    def find_spec(
        self, fullname: str, path: Any = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a top-level module is; None if it is not one of the user's."""
        if path is not None:  # a submodule: its package knows where it is
            return None
        folder = self.folders.get(fullname) or self.folders.get(_importing_module())
        found = PathFinder.find_spec(fullname, [folder]) if folder else None
        if folder and found is not None:
            self.folders[fullname] = folder
        return found


def _importing_module() -> str:
    """The top-level name of the module whose code imports something now."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in IMPORT_SYSTEM:
            return name
        frame = frame.f_back
    return ""


_user_modules = UserModules()


def allowed() -> dict[str, str]:
    """The modules that may be imported and their folders, for another process to `allow`."""
    return dict(_user_modules.folders)


def allow(folders: Mapping[str, str]) -> None:
    """Let these top-level modules be imported from these folders. What is installed comes first."""
    if folders and _user_modules not in sys.meta_path:
        sys.meta_path.append(_user_modules)
    _user_modules.folders.update(folders)


def allow_named(arguments: Iterable[str], folder: str) -> None:
    """Let the modules that a command line names be imported from `folder`."""
    found = [match for text in arguments if (match := NAMED.match(text))]
    allow({match[1]: folder for match in found if not match[2].endswith(".py")})


def allow_beside(known: str, module: str) -> None:
    """Let `module` be imported from the folder of the user's module `known`."""
    if folder := _user_modules.folders.get(known.partition(".")[0]):
        _user_modules.folders.setdefault(module.partition(".")[0], folder)


def import_named(option: str, where: str) -> ModuleType:
    """The module that the value of an option names, by `package.module` or `file.py`; UsageError without one."""
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise UsageError([f"{option} {where}: there is no module {error.name!r}."]) from None
    if not Path(where).is_file():
        raise UsageError([f"{option} {where}: there is no such file."])
    return load_file(Path(where))


def load_file(path: Path) -> ModuleType:
    """The module in a file, which may import its neighbours; the same one each time."""
    path = path.absolute()
    name = f"spreeze_user_{path.stem.replace('.', '_')}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    allow({name: str(path.parent)})
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
