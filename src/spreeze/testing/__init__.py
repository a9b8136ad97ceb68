"""For tests of your own: an environment that fails on request, and a game of pixels.

Imports Gymnasium and numpy only, and nothing else of Spreeze.
"""

from spreeze.testing.catch import Catch
from spreeze.testing.fault_env import EnvFault, FaultEnv

__all__ = ["Catch", "EnvFault", "FaultEnv"]
