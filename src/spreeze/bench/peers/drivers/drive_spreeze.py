"""Spreeze itself. Its own command trains; this only loads what it has saved."""

from pathlib import Path
from typing import Any


def load(policy: Path, env: Any, request: Any) -> Any:
    """A function from an observation to an action without noise."""
    import spreeze

    loaded = spreeze.load(policy)
    return lambda obs: loaded.predict(obs, deterministic=True)[0]
