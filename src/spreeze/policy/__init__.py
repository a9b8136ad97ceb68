"""The policy in numpy: what samplers and the evaluator run, and what you deploy. Needs no torch, unless its network is a torch module of the user's.

Imports no other package. Imported by `algos` and everything above them. `load` and `onnx` are imported only where they are used: an update needs neither.
"""

from spreeze.policy.form import Head, Parameters, PolicyForm, read_parameters
from spreeze.policy.module import MakeModule, listed, make_policy
from spreeze.policy.noise import LastingNoise
from spreeze.policy.policy import Policy

__all__ = [
    "Head",
    "LastingNoise",
    "MakeModule",
    "Parameters",
    "Policy",
    "PolicyForm",
    "listed",
    "make_policy",
    "read_parameters",
]
