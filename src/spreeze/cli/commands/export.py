"""`spreeze export`: writes a trained policy as one file for deployment, and checks it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from spreeze.errors import UsageError
from spreeze.settings.arguments import read_arguments
from spreeze.store.rundir import find_run
from spreeze.text import plain


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Write a trained policy for deployment. It maps observations to actions of the environment."""

    run: tyro.conf.Positional[str | None] = None
    """Path of a run, or its name in the runs folder. Default: the newest run."""
    onnx: str | None = None
    """File to write as ONNX (extra `onnx`)."""
    checkpoint: str | None = None
    """best, last, or a number of updates; the run's checkpoints folder has them. Default: the best, or else the last."""
    runs: str = "runs"
    """The runs folder."""


def not_exported(_inputs: int, _outputs: int) -> Any:
    """Refuse a policy that is a torch module: the graph is made of dense layers."""
    raise UsageError(
        [
            "this policy is a torch module of your own code, and the graph is made of dense layers. Load it with "
            "spreeze.load(run, network=...) and export its module with torch.onnx."
        ]
    )


def main(arguments: list[str], _started_s: float) -> int:
    """Write the file, check it, and print what it contains."""
    args = read_arguments(Arguments, arguments, "export")
    if args.onnx is None:
        raise UsageError(["export as what? For example: spreeze export --onnx policy.onnx"])
    file = Path(args.onnx)
    if file.is_dir() or not file.absolute().parent.is_dir():
        what = "is a folder" if file.is_dir() else f"there is no folder {file.absolute().parent}"
        raise UsageError([f"--onnx {file}: {what}. Name a file in a folder that exists."])
    checkpoint = find_run(args.run, Path(args.runs)).checkpoint(args.checkpoint)
    try:
        from spreeze.policy.onnx import describe_inputs, export_onnx
    except ModuleNotFoundError as error:
        if error.name not in ("onnx", "onnxruntime"):
            raise
        raise UsageError(
            [f'--onnx needs the package {error.name}: pip install "spreeze[onnx]"']
        ) from None
    from spreeze.policy.load import load_policy

    policy = load_policy(checkpoint, not_exported)
    distance = export_onnx(policy, file)
    spec = policy.spec
    action = ", ".join(map(str, ("N", *spec.action_shape)))
    print(
        f"{file}: {describe_inputs(policy)} -> action [{action}], policy {plain(checkpoint.name)} for {plain(spec.id)}\n"
        f"Checked with onnxruntime: actions differ from the numpy policy by at most {distance:.1e} of their range."
    )
    return 0
