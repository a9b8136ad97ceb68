"""The words on the control wire at the start: from the plan, or from the run that is resumed."""

from __future__ import annotations

from spreeze.run.controller import BATCH, RATIO, SAMPLERS, WORDS, movable_settings
from spreeze.run.plan import Plan
from spreeze.settings.auto.reason import Source
from spreeze.settings.config import resolved
from spreeze.store.resume_point import ResumePoint, find_resume_point
from spreeze.wires.control import Control


def chosen_knobs(plan: Plan) -> list[str]:
    """The knobs that neither the user nor a preset has set."""
    return [name for name, why in plan.reasons.items() if why.source is not Source.PRESET]


def set_initial_values(control: Control, plan: Plan) -> None:
    """Set what the roles need before they start. A resumed run counts on where it stopped."""
    config = plan.config
    control.supervisor["active_samplers"] = config.sampler.processes
    control.supervisor["batch_size"] = config.learner.batch_size
    control.supervisor["min_updates_per_step"] = resolved(config.learner.ratio_bounds)[0]
    if config.resume is None:
        return
    found = find_resume_point(config.resume, config.serial, keep=False)
    if found is not None:
        _continue_from(found[1], control, plan)


def _continue_from(point: ResumePoint, control: Control, plan: Plan) -> None:
    """Counts, and the settings that the controller had found; those the user gives now stay as they are."""
    config = plan.config
    for name, numbers in (("env_steps", point.env_steps), ("episodes", point.episodes)):
        control.samplers[name] = point.spread(numbers, len(control.samplers))
    control.supervisor["resumed_steps"] = control.env_steps
    bounds = {
        SAMPLERS: (1.0, float(resolved(config.sampler.processes))),
        BATCH: (1.0, float(resolved(config.replay.capacity))),
        RATIO: resolved(config.learner.ratio_bounds),
    }
    for knob in movable_settings(config, chosen_knobs(plan)):
        if (value := point.tuned.get(WORDS[knob])) is not None:
            least, most = bounds[knob]
            control.supervisor[WORDS[knob]] = min(max(value, least), most)
