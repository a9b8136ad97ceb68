"""From losses to updates: gradients, Adam, targets, scaling, for every algorithm alike.

`Step` is one whole round of updates, the gather from the replay included, as a pure function of plain
tensors; or the critic's half of it, or the actor's, for two devices (`pair`). How it is executed is the
`Updater`'s business alone: as it is on the CPU, several at a time as one CUDA graph on a GPU, and either
way with the compiled form of the same function as soon as there is one (`compiling`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm, Metrics
from spreeze.replay import Batches, Replay, Stage, draw, draw_by_priority, gather
from spreeze.scaling import fresh_statistics, observe, policy_statistics, scaled
from spreeze.spec import Batch, Layout

State = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, Metrics]]
StepFunction = Callable[..., Sequence[Tensor]]
Part = Literal["whole", "critic", "actor"]
"""Of a round of updates."""

BETA1 = 0.9
SMALLEST_ERROR = 1e-6
"""Of a row that is drawn by its error: none may become impossible."""
ADAM_EPS = 1e-8


def state_names(algorithm: Algorithm, part: Part = "whole") -> tuple[str, ...]:
    """What the training state of an algorithm consists of; `_m` and `_v` are Adam's moments."""
    names = []
    if part != "actor":
        names += ["critic", "critic_m", "critic_v", "target"]
    if part != "critic" and algorithm.actor_loss is not None:
        names += ["actor", "actor_m", "actor_v"]
        if algorithm.target_actor:
            names.append("target_actor")
    if part != "actor" and keeps_statistics(algorithm):
        names.append("stats")
    return (*names, "updates")


def names_of_others(algorithm: Algorithm, part: Part) -> tuple[str, ...]:
    """What a part needs of the other one's state."""
    if part == "critic":
        return ("target_actor" if algorithm.target_actor else "actor",)
    if part == "actor":
        return ("critic", *(["stats"] if keeps_statistics(algorithm) else []))
    return ()


def keeps_statistics(algorithm: Algorithm) -> bool:
    """Whether observations or rewards are brought to scale."""
    return algorithm.config.normalise_obs or algorithm.config.normalise_reward


def init_state(algorithm: Algorithm, seed: int, device: torch.device) -> State:
    """Fresh networks, targets, optimiser moments and statistics."""
    # Drawn on the CPU, so that a seed means the same networks on every device.
    actor, critic = algorithm.init(torch.Generator().manual_seed(seed))
    state = {"actor": actor, "target_actor": actor.clone()}
    state |= {"critic": critic, "target": critic.clone()}
    for name in ("actor", "critic"):
        state[f"{name}_m"] = torch.zeros_like(state[name])
        state[f"{name}_v"] = torch.zeros_like(state[name])
    state["stats"] = fresh_statistics(algorithm.spec.obs_size)
    state["updates"] = torch.zeros(())
    return {name: state[name].to(device) for name in state_names(algorithm)}


def policy_vector(algorithm: Algorithm, state: State) -> Tensor:
    """The policy as samplers run it: its network, and the statistics of observations if it has them."""
    network = state["critic" if algorithm.actor_loss is None else "actor"][: algorithm.policy_size]
    if not algorithm.config.normalise_obs:
        return network
    return torch.cat([network, policy_statistics(state["stats"])])


def adam(s: State, name: str, grad: Tensor, step: Tensor, lr: Tensor, beta2: float) -> State:
    """One Adam step of a network; returns it with its new moments."""
    m = torch.lerp(s[f"{name}_m"], grad, 1 - BETA1)
    v = torch.lerp(s[f"{name}_v"], grad.square(), 1 - beta2)
    m_hat = m / (1 - BETA1**step)
    v_hat = v / (1 - beta2**step)
    param = s[name] - lr * m_hat / (v_hat.sqrt() + ADAM_EPS)
    return {name: param, f"{name}_m": m, f"{name}_v": v}


def gradient(
    loss: Loss, max_norm: float | None, param: Tensor, *rest: Any
) -> tuple[Tensor, Metrics]:
    """The gradient of a loss by its first argument, cut to a length, and the loss's metrics.

    If the weights of the batch ask for their gradient too, it is the metric `by_weight`. By plain
    autograd: `torch.func.grad` gives the same numbers, but its first call imports the
    whole of torch._dynamo, a second in which nothing is learned.
    """
    leaf = param.detach().requires_grad_()
    with torch.enable_grad():
        value, metrics = loss(leaf, *rest)
        weights = [x.weight for x in rest if isinstance(x, Batch) and x.weight.requires_grad]
        grad, *by_weight = torch.autograd.grad(value, [leaf, *weights])
    if by_weight:
        metrics["by_weight"] = by_weight[0]
    if max_norm is not None:
        grad = grad * (max_norm / (grad.norm() + 1e-6)).clamp(max=1)
    return grad, metrics


def update(
    algorithm: Algorithm, state: State, batch: Batch, noise: Tensor, lr: Tensor, tau: Tensor
) -> tuple[State, Metrics]:
    """One round: some updates of the critic, each from its share of the batch, then one of the actor.

    `noise` is [2, rows, action]: the first for the critic's loss, the second for the actor's. How
    many critic updates is a constant of the algorithm, so that a round is always the same operations.
    If rows are drawn by priority, the metric `errors` is the size of each one's error.
    """
    before = observed(state, batch)
    batch = on_scale(algorithm, before, batch)
    after, metrics = critic_update(algorithm, before, batch, noise[0], lr, tau)
    if algorithm.actor_loss is None:
        return after, metrics
    share, share_noise = last_share(algorithm, batch, noise[1])
    critic_too = {**before, "critic": after["critic"]}
    actors, more = actor_update(algorithm, critic_too, share, share_noise, lr, tau)
    return {**after, **actors}, {**metrics, **more}


def observed(state: State, batch: Batch) -> State:
    """The state with the batch in its statistics, if it has any."""
    return {**state, "stats": observe(state["stats"], batch)} if "stats" in state else dict(state)


def on_scale(algorithm: Algorithm, state: State, batch: Batch) -> Batch:
    """The batch as the losses want it."""
    config = algorithm.config
    if "stats" in state:
        batch = scaled(state["stats"], batch, config.normalise_obs, config.normalise_reward)
    if config.reward_scale != 1:
        batch = batch._replace(reward=batch.reward * config.reward_scale)
    return batch


def last_share(algorithm: Algorithm, batch: Batch, noise: Tensor) -> tuple[Batch, Tensor]:
    """What the actor learns from: the rows of the last update of the critic."""
    rounds = algorithm.config.critic_updates()
    return Batch(*(field.chunk(rounds)[-1] for field in batch)), noise.chunk(rounds)[-1]


def critic_update(
    algorithm: Algorithm, state: State, batch: Batch, noise: Tensor, lr: Tensor, tau: Tensor
) -> tuple[State, Metrics]:
    """The critic's half of a round, from a batch on scale; of the actor it only reads."""
    config, s = algorithm.config, dict(state)
    rounds, beta2, max_norm = config.critic_updates(), config.beta2, config.max_grad_norm
    metrics: Metrics = {}
    errors: list[Tensor] = []
    prioritised = config.priorities()[0] > 0
    for i in range(rounds):
        share = Batch(*(part.chunk(rounds)[i] for part in batch))
        if prioritised:
            share = share._replace(weight=share.weight.detach().requires_grad_())
        s["updates"] = s["updates"] + 1
        actor = s["target_actor"] if algorithm.target_actor else s.get("actor", s["critic"])
        rest = (s["target"], actor, share, noise.chunk(rounds)[i])
        grad, metrics = gradient(algorithm.critic_loss, max_norm, s["critic"], *rest)
        if prioritised:
            # What the loss gains with a row's weight is that row's own loss, over the number of rows.
            errors.append((metrics.pop("by_weight") * len(share.weight)).abs().sqrt())
        s |= adam(s, "critic", grad, s["updates"], lr, beta2)
        s["target"] = torch.lerp(s["target"], s["critic"], tau)
    return s, {**metrics, "errors": torch.cat(errors)} if prioritised else metrics


def actor_update(
    algorithm: Algorithm, state: State, share: Batch, noise: Tensor, lr: Tensor, tau: Tensor
) -> tuple[State, Metrics]:
    """The actor's half of a round, from its share of the batch, on scale; returns only what is the actor's.

    The state is that before the round, but for the critic, which is the newest there is.
    """
    assert algorithm.actor_loss is not None
    config = algorithm.config
    rounds = config.critic_updates()
    grad, metrics = gradient(
        algorithm.actor_loss, config.max_grad_norm, state["actor"], state["critic"], share, noise
    )
    updates = state["updates"] + rounds
    s = adam(state, "actor", grad, updates / rounds, lr, config.beta2)
    if algorithm.target_actor:
        s["target_actor"] = torch.lerp(state["target_actor"], s["actor"], tau)
    return {**s, "updates": updates}, metrics


def out_of_memory(error: BaseException) -> bool:
    """Whether it says that GPU memory is short, in any of the ways that torch and CUDA have for it."""
    words = ("out of memory", "ALLOC_FAILED")
    said = isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)
    # A capture that breaks off hides its cause.
    return said or (error.__context__ is not None and out_of_memory(error.__context__))


class Step:
    """A round of updates from the replay: (data, window, uniform, noise, rates, *others, *state) -> (*state, metrics).

    Rates are learning rate and tau as a tensor, so that one compiled form serves all of them. With
    priorities these come first of all, and where to write which new ones comes out behind the
    metrics. A part takes of the others' state what it needs; out of the critic's come last the rows
    that the actor learns from.
    """

    def __init__(self, algorithm: Algorithm, layout: Layout, part: Part = "whole") -> None:
        """The update of `algorithm` on rows of `layout`."""
        self._algorithm, self._part = algorithm, part
        self._columns = layout.columns()
        self._steps = algorithm.config.rows().segment
        self._power, self._correction = algorithm.config.priorities()
        self.prioritised = self._power > 0 and part != "actor"
        """Whether rows are drawn by priority, here."""
        self.names = state_names(algorithm, part)
        self.others = names_of_others(algorithm, part)
        self.metric_names: tuple[str, ...] = ()
        extras = ["index", "priorities"] if self.prioritised else []
        self.extras = (*extras, *(["rows"] if part == "critic" else []))
        """What comes out behind the metrics."""

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One round; pure."""
        num = len(self.others) + len(self.names)
        *priorities, data, window, uniform, noise, rates = inputs[:-num]
        vectors, weight = inputs[-num:], None
        if priorities:
            index, weight = draw_by_priority(priorities[0], window, uniform, self._correction)
        else:
            index = draw(data, window, uniform)
        batch = gather(data, index, self._columns, self._steps)
        if weight is not None:
            batch = batch._replace(weight=weight)
        before = dict(zip((*self.others, *self.names), vectors, strict=True))
        after, metrics = self._update(before, batch, noise, rates[0], rates[1])
        errors = metrics.pop("errors", None)
        self.metric_names = tuple(metrics)
        values = torch.stack([value.reshape(()).float() for value in metrics.values()])
        out = [*(after[name] for name in self.names), values]
        if errors is not None:
            out += [index, (errors + SMALLEST_ERROR) ** self._power]
        if self._part == "critic":
            out.append(data[index.chunk(self._algorithm.config.critic_updates())[-1]])
        return tuple(out)

    def _update(
        self, before: State, batch: Batch, noise: Tensor, lr: Tensor, tau: Tensor
    ) -> tuple[State, Metrics]:
        algorithm = self._algorithm
        if self._part == "whole":
            return update(algorithm, before, batch, noise, lr, tau)
        if self._part == "critic":
            before = observed(before, batch)
            batch = on_scale(algorithm, before, batch)
            return critic_update(algorithm, before, batch, noise[0], lr, tau)
        batch = on_scale(algorithm, before, batch)
        return actor_update(algorithm, before, batch, noise[-1], lr, tau)


class Updater:
    """Runs updates on one device, each time `chunk` of them."""

    part: Part = "whole"
    age = 0
    """Updates that what comes from another device is behind: nothing does."""

    def __init__(
        self,
        algorithm: Algorithm,
        replay: Replay,
        state: State,
        batch_size: int,
        rates: tuple[float, float],
        chunk: int = 1,
    ) -> None:
        """Prepare to update `state` from `replay`, with learning rate and tau in `rates`."""
        self.batch_size = batch_size
        self.algorithm = algorithm
        self.plain = Step(algorithm, replay.layout, self.part)
        self.layout, self.device = replay.layout, replay.device
        self._round = algorithm.config.critic_updates()
        self._replay = replay
        self._action_size = replay.layout.size("action")
        self._rates = torch.tensor(rates, device=self.device)
        self._priorities = [] if replay.priorities is None else [replay.priorities]
        self._others = [state[name] for name in self.plain.others]
        self._num_rounds = -(-chunk // self._round)
        self.chunk = self._num_rounds * self._round
        """Updates that one `run` does: whole rounds."""
        self._state = [state[name] for name in self.plain.names]
        self._metrics = torch.zeros(0)
        self._fast: dict[int, StepFunction] = {}
        self._prepared: dict[int, Callable[[], None]] = {}
        self._stages: dict[int, Batches] = {}

    @property
    def parts(self) -> list[Updater]:
        """What is compiled by itself: this, or the halves of it."""
        return [self]

    @property
    def state(self) -> State:
        """The newest networks and moments."""
        return dict(zip(self.plain.names, self._state, strict=True))

    @property
    def policy(self) -> Tensor:
        """The newest policy, as samplers run it."""
        return policy_vector(self.algorithm, self.state)

    def run(self) -> None:
        """One chunk of updates; on a GPU this only enqueues them."""
        if (stage := self._stage(self.batch_size)) is not None:
            stage.fill()
        self.prepare()
        self._prepared[self.batch_size]()

    def prepare(self) -> None:
        """Get ready to run with the batch size as it is; that needs no transitions yet."""
        if self.batch_size not in self._prepared:
            self._prepared[self.batch_size] = self._prepare()

    def use(self, batch_size: int, step: StepFunction) -> None:
        """From now on, run a compiled form of the same update for this batch size."""
        self._fast[batch_size] = step
        self._prepared.pop(batch_size, None)

    def pause(self) -> None:
        """Nobody works on its parts until the next `run`."""

    def forget(self) -> None:
        """Drop everything prepared, and the memory it holds; compiled forms stay."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # it may be running
        self._prepared.clear()
        self._stages.clear()

    def metrics(self) -> dict[str, float]:
        """Metrics of the last update; this waits for the device, so call it rarely."""
        return dict(zip(self.plain.metric_names, self._metrics.tolist(), strict=True))

    def inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """What a step takes, with fresh random numbers; it stays the same while new rows arrive."""
        uniform, noise = self._draw(1, batch_size)
        if (stage := self._stage(batch_size)) is not None:
            stage.fill()
        data, window, places = self._batch(0, uniform, stage)
        batch = (data, window.clone(), places)
        return (*self._priorities, *batch, noise[0], self._rates, *self._others, *self._state)

    def updates(self) -> None:
        """One chunk of updates, each from the state that the one before left."""
        step = self._fast.get(self.batch_size, self.plain)
        uniform, noise = self._draw(self._num_rounds, self.batch_size)
        state, stage = self._state, self._stage(self.batch_size)
        given = (self._rates, *self._others)
        with torch.no_grad():
            for i in range(self._num_rounds):
                batch = self._batch(i, uniform, stage)
                out = list(step(*self._priorities, *batch, noise[i], *given, *state))
                state, metrics, extras = out[: len(state)], out[len(state)], out[len(state) + 1 :]
                for priorities in self._priorities:
                    where, new, *extras = extras
                    priorities[where] = new
                self._pass_on(i, extras, noise[i])
        self._take_over(state, metrics)

    def _pass_on(self, i: int, extras: list[Tensor], noise: Tensor) -> None:
        """What else has come out of the i-th round of a chunk."""

    def _batch(
        self, i: int, uniform: Tensor, stage: Batches | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Where the i-th round of a chunk reads: rows, window of them, places in the window."""
        if stage is not None:
            return stage.data[i], stage.window, stage.uniform
        return self._replay.data, self._replay.window, uniform[i]

    def _stage(self, batch_size: int) -> Batches | None:
        """The rows of one chunk, where the replay is out of the device's reach."""
        if self._replay.staged and batch_size not in self._stages:
            self._stages[batch_size] = Stage(
                self._replay, self._num_rounds, self._round * batch_size
            )
        return self._stages.get(batch_size)

    def _draw(self, num: int, batch_size: int) -> tuple[Tensor, Tensor]:
        rows = self._round * batch_size
        uniform = torch.rand(num, rows, device=self.device)
        shape = (num, 2, rows, self._action_size)
        return uniform, torch.randn(shape, device=self.device)

    def _take_over(self, state: list[Tensor], metrics: Tensor) -> None:
        if self.device.type == "cpu":
            self._state, self._metrics = state, metrics
            return
        # A captured graph reads and writes where it was captured: same tensors, new contents.
        torch._foreach_copy_(self._state, state)
        if self._metrics.shape != metrics.shape:
            self._metrics = torch.zeros_like(metrics)
        self._metrics.copy_(metrics)

    def _prepare(self) -> Callable[[], None]:
        """The fastest way to run a chunk on this device."""
        return self.updates if self.device.type == "cpu" else self._capture()

    def _capture(self) -> Callable[[], None]:
        """One CUDA graph of the whole chunk: one launch instead of hundreds for each update."""
        written = [*self._state, *self._priorities]
        before = [tensor.clone() for tensor in written]
        current = torch.cuda.current_stream(self.device)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(2):  # cuBLAS and the allocator settle before the capture
                    self.updates()
            current.wait_stream(stream)
            # Thread-local: another thread may be loading the compiled form.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.updates()
        finally:  # out of memory too: it must leave no trace
            current.wait_stream(stream)
            for tensor, saved in zip(written, before, strict=True):
                tensor.copy_(saved)
        return graph.replay
