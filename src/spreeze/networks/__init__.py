"""Networks as pure functions of one flat parameter vector: layers, actor and critic heads, GPU kernels.

Needs torch. Imported by `algos` and everything above them.
"""

from spreeze.networks.heads import (
    CategoricalCritics,
    SoftActor,
    atoms,
    of_action,
    project,
    tanh_gaussian,
)
from spreeze.networks.layers import (
    Arithmetic,
    Network,
    Shapes,
    init_uniform,
    mlp,
    mlp_network,
    mlp_shapes,
    plain_arithmetic,
)

__all__ = [
    "Arithmetic",
    "CategoricalCritics",
    "Network",
    "Shapes",
    "SoftActor",
    "atoms",
    "init_uniform",
    "mlp",
    "mlp_network",
    "mlp_shapes",
    "of_action",
    "plain_arithmetic",
    "project",
    "tanh_gaussian",
]
