"""Networks as pure functions of one flat parameter vector: layers, actor and critic heads, GPU kernels.

Needs torch. Imported by `algos` and everything above them.
"""

from spreeze.networks.encoders import image_network, read_stacks
from spreeze.networks.heads import (
    CategoricalCritics,
    SoftActor,
    atoms,
    gather_action,
    project,
    tanh_gaussian,
)
from spreeze.networks.layers import (
    Arithmetic,
    Network,
    Shapes,
    Style,
    init_uniform,
    mlp,
    mlp_network,
    mlp_shapes,
    unfused_arithmetic,
)
from spreeze.networks.modules import module_network, policy_from_module
from spreeze.networks.ranks import mean_and_std

__all__ = [
    "Arithmetic",
    "CategoricalCritics",
    "Network",
    "Shapes",
    "SoftActor",
    "Style",
    "atoms",
    "gather_action",
    "image_network",
    "init_uniform",
    "mean_and_std",
    "mlp",
    "mlp_network",
    "mlp_shapes",
    "module_network",
    "policy_from_module",
    "project",
    "read_stacks",
    "tanh_gaussian",
    "unfused_arithmetic",
]
