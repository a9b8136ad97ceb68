"""Makes the pages of the Python API from the docstrings of what is public."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from inspect import Parameter, Signature
from types import GenericAlias, ModuleType
from typing import Any

from docstrings import field_texts

MODULES = ("spreeze", "spreeze.algos", "spreeze.networks", "spreeze.testing")
ONE_LINE = 88
"""A signature up to this length stays in one line."""
MANY_FIELDS = 4
"""A class with more of them is shown by its fields alone."""
PAGE = re.compile(r"docs/(\w[\w-]*)\.md")


class Bare(str):
    """An annotation that is shown without quotes."""

    __repr__ = str.__str__


def api_pages() -> dict[str, str]:
    """A page for each public module, by its file name."""
    return {f"{name}.md": page(importlib.import_module(name)) for name in MODULES}


def page(module: ModuleType) -> str:
    """A module: what it is for, then what it exports. Its own modules come last."""
    found = [(name, getattr(module, name)) for name in module.__all__ if name[0] != "_"]
    found = [(name, thing) for name, thing in found if has_docstring(thing)]
    parts = [f"# {module.__name__}", docstring(module)]
    for name, thing in sorted(found, key=lambda item: (inspect.ismodule(item[1]), item[0])):
        parts += [f"## `{name}`", *entry(name, thing)]
    return "\n\n".join(filter(None, parts)) + "\n"


def has_docstring(thing: Any) -> bool:
    """Whether it can have one: a dictionary and a name for a type cannot."""
    kinds = (inspect.isclass, inspect.isroutine, inspect.ismodule)
    return not isinstance(thing, GenericAlias) and any(kind(thing) for kind in kinds)


def entry(name: str, thing: Any) -> Iterator[str]:
    """One function, class or module."""
    if inspect.isroutine(thing):
        yield call(name, thing)
        yield docstring(thing)
    elif inspect.ismodule(thing):
        own = [x for x in vars(thing).values() if getattr(x, "__module__", "") == thing.__name__]
        config = next(
            x.__name__ for x in own if inspect.isclass(x) and x.__name__.endswith("Config")
        )
        yield docstring(thing)
        yield f"Its config is `{name}.{config}`; `{name}.build` makes the algorithm."
    elif issubclass(thing, Enum):
        yield docstring(thing)
        yield listed([x.name for x in thing], field_texts(thing))
    else:
        fields = own_fields(thing)
        if len(fields) <= MANY_FIELDS and not issubclass(thing, Exception):
            yield call(name, thing)
        yield docstring(thing)
        yield listed(fields, field_texts(thing) | helps(thing))
        yield from methods(name, thing)


def methods(name: str, kind: type[Any]) -> Iterator[str]:
    """What the class itself defines."""
    for each, member in vars(kind).items():
        function = getattr(member, "__func__", member)  # a class method has its function there
        if each[0] == "_":
            continue
        if inspect.isfunction(function):
            yield f"### `{name}.{each}()`"
            yield call(each, function)
            yield docstring(function)
        elif isinstance(member, property) or hasattr(member, "attrname"):  # also cached ones
            yield f"### `{name}.{each}`"
            yield docstring(member)


def own_fields(kind: type[Any]) -> list[str]:
    """The fields of a dataclass or a named tuple that its bases do not have."""
    if dataclasses.is_dataclass(kind):
        return [x.name for x in dataclasses.fields(kind) if x.name in kind.__annotations__]
    return list(getattr(kind, "_fields", ()))


def helps(kind: type[Any]) -> dict[str, str]:
    """The help of each field that is a knob."""
    if not dataclasses.is_dataclass(kind):
        return {}
    own = [x for x in dataclasses.fields(kind) if x.name in own_fields(kind)]
    return {x.name: x.metadata["help"] for x in own if "help" in x.metadata}


def listed(names: list[str], texts: dict[str, str]) -> str:
    """Fields and attributes, each with its text."""
    names = list(dict.fromkeys([*names, *texts]))
    return "\n".join(f"- `{x}`: {texts[x]}" if x in texts else f"- `{x}`" for x in names)


def call(name: str, thing: Any) -> str:
    """How it is called."""
    found = inspect.signature(thing)
    parameters = [x for x in found.parameters.values() if x.name not in ("self", "cls")]
    kinds = [x.kind for x in parameters]
    shown = [str(bare(x)) for x in parameters]
    if Parameter.KEYWORD_ONLY in kinds and Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(Parameter.KEYWORD_ONLY), "*")
    nothing = inspect.isclass(thing) or found.return_annotation in (Signature.empty, "None")
    gives = "" if nothing else f" -> {found.return_annotation}"
    line = f"{name}({', '.join(shown)}){gives}"
    if len(line) > ONE_LINE:
        line = f"{name}(\n    {f',{chr(10)}    '.join(shown)},\n){gives}"
    return f"```python\n{line}\n```"


def bare(parameter: Parameter) -> Parameter:
    """A parameter without quotes around its annotation, and a default that can be read."""
    annotation = getattr(parameter.annotation, "__forward_arg__", parameter.annotation)
    if isinstance(annotation, str):
        parameter = parameter.replace(annotation=Bare(annotation))
    made = repr(parameter.default) == "<factory>"
    return parameter.replace(default=Bare("...")) if made else parameter


def docstring(thing: Any) -> str:
    """Its own docstring, with links to the pages that it names."""
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return PAGE.sub(r"[\1](../\1.md)", inspect.cleandoc(own or ""))
