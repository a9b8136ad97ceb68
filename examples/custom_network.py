"""Your own network: SAC with residual critics. The policy stays a plain network, which numpy can run.

A network is a function of one flat vector of parameters; `Shapes` names the matrices in it.
"""

import spreeze
from spreeze.algos import Entry, sac


def residual_critics(config, spec):
    """Two critics in one batch: an embedding, a residual block of two layers, one value each."""
    import torch
    from torch.nn.functional import layer_norm

    from spreeze.networks import Network, Shapes

    width, inputs = config.widths()[0], spec.obs_size + spec.action_size
    sizes = [("0", inputs, width), ("1", width, width), ("2", width, width), ("3", width, 1)]
    items = []
    for name, fan_in, fan_out in sizes:
        items += [(f"w{name}", (2, fan_in, fan_out)), (f"b{name}", (2, 1, fan_out))]
    shapes = Shapes(tuple(items))

    def forward(flat, obs, action):
        p = shapes.split(flat)
        x = torch.cat([obs, action], -1).expand(2, -1, -1)
        x = torch.bmm(x, p["w0"]) + p["b0"]
        inner = torch.relu(torch.bmm(layer_norm(x, x.shape[-1:]), p["w1"]) + p["b1"])
        x = x + torch.bmm(inner, p["w2"]) + p["b2"]
        return torch.bmm(torch.relu(x), p["w3"]) + p["b3"]  # [2, B, 1]

    return Network(shapes, forward)


def build(config, spec, arithmetic="float32"):
    return sac.build(config, spec, arithmetic, residual_critics(config, spec))


ENTRY = Entry(sac.SACConfig, build, "SAC with residual critics")

if __name__ == "__main__":
    run = spreeze.train("Pendulum-v1", algo=f"{__file__}:ENTRY", time="120s", target=-250)
    print(f"{run.summary['reason']} after {run.summary['wall_s']} s")
