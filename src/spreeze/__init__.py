"""Spreeze: reinforcement learning at full speed on one desktop.

What `__all__` names is public, as are `spreeze.algos`, `spreeze.networks` and `spreeze.testing`. docs/python.md explains it.
"""

from __future__ import annotations

from spreeze.errors import RunFailed, UsageError

# No other import here: `python -m spreeze` gets here with the working folder first on its import path, and a program
# that only imports Spreeze pays for nothing else. `__getattr__` imports the rest when it is first used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from spreeze.api.evaluation import evaluate
    from spreeze.api.run import Run, load
    from spreeze.api.training import train
    from spreeze.envs.evaluation import Evaluation
    from spreeze.policy import Policy
    from spreeze.run.callbacks import Callback, EvaluationResult
    from spreeze.run.callbacks.live_run import LiveRun

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Evaluation",
    "EvaluationResult",
    "LiveRun",
    "Policy",
    "Run",
    "RunFailed",
    "UsageError",
    "__version__",
    "evaluate",
    "load",
    "train",
]

_WHERE = {
    "Callback": "spreeze.run.callbacks",
    "Evaluation": "spreeze.envs.evaluation",
    "EvaluationResult": "spreeze.run.callbacks",
    "LiveRun": "spreeze.run.callbacks.live_run",
    "Policy": "spreeze.policy",
    "Run": "spreeze.api.run",
    "evaluate": "spreeze.api.evaluation",
    "load": "spreeze.api.run",
    "train": "spreeze.api.training",
}
"""The modules of public names that are imported when they are used."""

if (
    not TYPE_CHECKING
):  # a type checker would take any misspelt name for one that this function finds

    def __getattr__(name):
        """Import a public name."""
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_WHERE[name]), name)
        return found

    def __dir__():
        """For completion: what is imported later is there, too."""
        return sorted(__all__)
