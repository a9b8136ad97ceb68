"""For tests of your own: an environment that fails on request.

Imports Gymnasium and numpy only, and nothing else of Spreeze.
"""

from spreeze.testing.fault_env import EnvFault, FaultEnv

__all__ = ["EnvFault", "FaultEnv"]
