"""What programs write, for mypy: it checks this file with the sources, and nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import spreeze


def trains(run: spreeze.Run, options: dict[str, Any]) -> None:
    assert_type(spreeze.train("Pendulum-v1", time="60s", seed=1, quiet=True), spreeze.Run)
    spreeze.train("Pendulum-v1", steps=1e6, runs=Path("runs"), learner__batch_size=512)
    spreeze.train("Pendulum-v1", **options)
    assert_type(spreeze.train("Pendulum-v1", seeds=[1, 2], steps=1e4), list[spreeze.Run])
    spreeze.train(lambda: None, target=-200, reproducible=True)
    spreeze.train(resume=run, env_kwargs={"g": 5.0})
    spreeze.train("Pendulum-v1", start_from=run, algo__hidden=(64, 64))
    spreeze.train("Pendulum-v1", seed="one")  # type: ignore[call-overload]
    spreeze.train("Pendulum-v1", track="mlflow")  # type: ignore[call-overload]
    spreeze.trian("Pendulum-v1")  # type: ignore[attr-defined]


def reads(run: spreeze.Run) -> None:
    assert_type(run.path, Path)
    assert_type(run.summary, dict[str, Any])
    assert_type(run.policy, spreeze.Policy)
    assert_type(run.curve(), dict[str, NDArray[np.float64]])
    assert_type(run.metrics("learner"), dict[str, NDArray[Any]])
    assert_type(spreeze.load(run), spreeze.Policy)
    assert_type(spreeze.evaluate(run.policy, episodes=3), spreeze.Evaluation)
    assert_type(spreeze.evaluate(run).mean, float)
    run.plot(x="epochs")  # type: ignore[arg-type]
