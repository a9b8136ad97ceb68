"""How each operation is lowered, by kind. Importing this package makes them known to `lowering`."""

from spreeze.learning.fusion.operations import elementwise, lookups, parts, reductions, views

__all__ = ["elementwise", "lookups", "parts", "reductions", "views"]
