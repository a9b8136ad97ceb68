"""The trials of a sweep, kept by Optuna in the sweep's folder: it draws values, and says what to prune."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spreeze.cli.sweep.plan import Plan
from spreeze.cli.sweep.score import PARTS
from spreeze.settings.space import Choices, Range, Space, as_typed, typed

if TYPE_CHECKING:
    import optuna

FILE, NAME = "study.db", "sweep"
PRUNERS, SEARCHES = ("median", "halving", "hyperband", "none"), ("tpe", "random")
FIRST_TRIALS = 5
"""The median pruner lets so many trials finish before it prunes."""
UNJUDGED = PARTS // 5
"""It judges no trial before so many parts of its first run: the start of a curve says little."""
FINISHED, PRUNED, FAILED, INTERRUPTED, RUNNING = (
    "finished",
    "pruned",
    "failed",
    "interrupted",
    "running",
)
ASKED_AGAIN = "asked_again"
"""Attribute of a study: the trials whose values a later one has."""
DONE = (FINISHED, PRUNED, FAILED)
"""States that count as one of the trials that were asked for."""


@dataclass(frozen=True)
class Trial:
    """One set of values."""

    number: int
    """From 1 on."""
    values: dict[str, Any]
    state: str
    score: float | None
    curve: list[float]
    """The value at each part of its way, seed after seed."""
    runs: list[str]
    cause: str | None
    """Why it failed."""
    seconds: float | None

    @property
    def described(self) -> str:
        """The values, as they are typed."""
        return ", ".join(f"{as_typed(name)} {typed(value)}" for name, value in self.values.items())


class Study:
    """The trials of one sweep."""

    def __init__(self, folder: Path, plan: Plan, space: Space, seed: int, at_once: int) -> None:
        """Open the study in `folder`, or begin it."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = optuna.storages.RDBStorage(f"sqlite:///{folder.absolute() / FILE}")
        self._space, self._score = space, plan.scoring
        self._study = optuna.create_study(
            storage=storage,
            study_name=NAME,
            direction=self._score.direction,
            pruner=_pruner(plan.pruner),
            load_if_exists=True,
        )
        known = len(self._study.get_trials(deepcopy=False))
        self._study.sampler = _sampler(plan.search, seed + known, at_once)
        self._live: dict[int, optuna.Trial] = {}

    def recover(self) -> int:
        """Ask again for the values of trials that an interruption or a kill has cut short; returns how many."""
        import optuna

        again: list[int] = self._study.user_attrs.get(ASKED_AGAIN, [])
        cut = []
        for found in self._study.get_trials(deepcopy=False):
            if found.state == optuna.trial.TrialState.RUNNING:  # its process was killed
                self._study.tell(found.number, state=optuna.trial.TrialState.FAIL)
            elif found.user_attrs.get("ended") != INTERRUPTED:
                continue
            if found.number not in again and found.params:
                self._study.enqueue_trial(found.params)
                cut.append(found.number)
        self._study.set_user_attr(ASKED_AGAIN, [*again, *cut])
        return len(cut)

    def ask(self, runs: Callable[[int], list[str]]) -> Trial:
        """Begin a trial. `runs` names its runs, from its number."""
        asked = self._study.ask()
        values = {
            name: found.value(_suggest(asked, name, found)) for name, found in self._space.items()
        }
        number = asked.number + 1
        self._live[number] = asked
        asked.set_user_attr("values", values)
        asked.set_user_attr("runs", runs(number))
        return Trial(number, values, RUNNING, None, [], runs(number), None, None)

    def report(self, trial: Trial, step: int, value: float) -> bool:
        """Store the value of a trial on its way; True if it should be pruned."""
        live = self._live[trial.number]
        live.report(value, step)
        return live.should_prune()

    def end(
        self,
        trial: Trial,
        state: str,
        score: float | None = None,
        cause: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Store how a trial ended."""
        import optuna

        live = self._live.pop(trial.number)
        facts = {"ended": state, "cause": cause, "seconds": seconds}
        for name, value in facts.items():
            live.set_user_attr(name, value)
        states = {
            FINISHED: optuna.trial.TrialState.COMPLETE,
            PRUNED: optuna.trial.TrialState.PRUNED,
        }
        self._study.tell(
            live,
            score if state == FINISHED else None,
            states.get(state, optuna.trial.TrialState.FAIL),
        )

    def trials(self) -> list[Trial]:
        """All trials that have begun, in their order."""
        found = self._study.get_trials(deepcopy=False)
        return [self._read(one) for one in found if "values" in one.user_attrs]

    def num_done(self) -> int:
        """How many of the trials that were asked for are done."""
        return sum(trial.state in DONE for trial in self.trials())

    def ranked(self) -> list[Trial]:
        """The finished trials, the best one first."""
        sign = 1 if self._score.direction == "minimize" else -1
        finished = [trial for trial in self.trials() if trial.score is not None]
        return sorted(finished, key=lambda trial: sign * (trial.score or 0.0))

    def importances(self) -> dict[str, float]:
        """How much of the differences between scores each knob explains; empty if there are too few."""
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        if len(self.ranked()) < 2 * FIRST_TRIALS or len(self._space) < 2:
            return {}
        found = get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator())
        return {name: float(share) for name, share in found.items()}

    def _read(self, found: optuna.trial.FrozenTrial) -> Trial:
        facts = found.user_attrs
        state = facts.get("ended", RUNNING if found.number + 1 in self._live else INTERRUPTED)
        steps = sorted(found.intermediate_values.items())
        sign = -1.0 if self._score.kind == "time" else 1.0
        return Trial(
            number=found.number + 1,
            values=_from_json(facts["values"]),
            state=state,
            score=found.value if state == FINISHED else None,
            curve=[sign * value for _, value in steps],
            runs=facts.get("runs", []),
            cause=facts.get("cause"),
            seconds=facts.get("seconds"),
        )


def _suggest(asked: optuna.Trial, name: str, found: Range | Choices) -> Any:
    """A value for a knob. Optuna stores choices as they are typed: it knows no lists."""
    if isinstance(found, Choices):
        return asked.suggest_categorical(name, [typed(value) for value in found.values])
    if found.whole:
        step = 1 if found.step is None else int(found.step)
        return asked.suggest_int(name, int(found.low), int(found.high), step=step, log=found.log)
    return asked.suggest_float(name, found.low, found.high, step=found.step, log=found.log)


def _sampler(search: str, seed: int, at_once: int) -> optuna.samplers.BaseSampler:
    """What draws values. Trials that run beside others are told apart from them."""
    from optuna.samplers import RandomSampler, TPESampler

    if search == "random":
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, constant_liar=at_once > 1)


def _pruner(name: str) -> optuna.pruners.BasePruner:
    """What ends trials early."""
    from optuna import pruners

    match name:
        case "median":
            return pruners.MedianPruner(FIRST_TRIALS, UNJUDGED)
        case "halving":
            return pruners.SuccessiveHalvingPruner()
        case "hyperband":
            return pruners.HyperbandPruner(max_resource=PARTS)
    return pruners.NopPruner()


def _from_json(values: dict[str, Any]) -> dict[str, Any]:
    """Values of knobs as they were: JSON has no tuples."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
