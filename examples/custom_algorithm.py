"""Your own algorithm: its knobs, its networks and two losses. Spreeze does the rest.

From the command line: spreeze train Pendulum-v1 --algo examples/custom_algorithm.py:ENTRY
"""

from dataclasses import dataclass

import spreeze
from spreeze.algos import Algorithm, Entry, OffPolicyConfig


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyConfig):
    """SAC with one critic and a fixed temperature."""

    temperature: float = 0.05
    """Weight of the entropy."""


def build(config, spec, arithmetic="float32"):
    from spreeze.networks import tanh_gaussian

    policy = config.policy_network(spec, arithmetic)
    q_network = config.critic_network(spec, arithmetic, 1)

    def soft_value(actor, critic, obs, noise):
        action, log_prob = tanh_gaussian(policy(actor, obs), noise)
        return q_network(critic, obs, action).squeeze(-1) - config.temperature * log_prob

    def critic_loss(critic, target, actor, batch, noise):
        next_value = soft_value(actor, target, batch.next_obs, noise)
        goal = (batch.reward + batch.discount * next_value).detach()
        q = q_network(critic, batch.obs, batch.action).squeeze(-1)
        loss = (batch.weight * (q - goal).square()).mean()
        return loss, {"critic_loss": loss.detach()}

    def actor_loss(actor, critic, batch, noise):
        loss = -soft_value(actor, critic, batch.obs, noise).mean()
        return loss, {"actor_loss": loss.detach()}

    return Algorithm(
        config=config,
        spec=spec,
        actor_shapes=policy.shapes,
        critic_shapes=q_network.shapes,
        policy_size=policy.shapes.size,
        init=lambda generator: (policy.init(generator), q_network.init(generator)),
        critic_loss=critic_loss,
        actor_loss=actor_loss,
    )


ENTRY = Entry(Config, build, "SAC with one critic and a fixed temperature")

if __name__ == "__main__":
    run = spreeze.train("Pendulum-v1", algo=f"{__file__}:ENTRY", time="120s", target=-250)
    print(f"{run.summary['reason']} after {run.summary['wall_s']} s")
