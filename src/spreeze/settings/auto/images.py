"""What images mean for a run: the frames that the policy sees, the encoder, and what is not built for them yet."""

from __future__ import annotations

from dataclasses import replace

from spreeze.errors import UsageError
from spreeze.images import LARGE_SIDE, NATURE_SIDE, EncoderKind, Image
from spreeze.knobs import Auto
from spreeze.settings.auto.reason import Source
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import Config
from spreeze.spec import EnvSpec

STACK = 4
IMAGE_HIDDEN = (512,)
SHIFT = 4
"""Pixels by which images are shifted where actions are continuous, as in DrQ."""
SINGLE = (1, 3)
"""Channels of a single grey or colour image; an image with others is a stack already."""


def with_stack(spec: EnvSpec, stack: int | Auto) -> EnvSpec:
    """The environment as the policy sees it, with so many frames."""
    if not spec.images:
        if stack in ("auto", 1):
            return spec
        raise UsageError(
            [
                f"--env.stack {stack}: {spec.id} has no images. Stack numbers in the environment: "
                "gymnasium.wrappers.FrameStackObservation, then FlattenObservation."
            ]
        )
    return replace(spec, stack=_usual_stack(spec.images) if stack == "auto" else stack)


def _usual_stack(images: tuple[Image, ...]) -> int:
    return STACK if all(image.channels in SINGLE for image in images) else 1


def choose_images(resolver: AutoResolver, spec: EnvSpec) -> None:
    """Choose what depends on images only; refuse what cannot be done with them."""
    if not spec.images:
        for name, value in (("env.stack", 1), ("algo.encoder", "nature"), ("algo.shift", 0)):
            resolver.choose(name, value, "no images", Source.UNUSED)
        return
    if problems := _problems(resolver.config):
        raise UsageError(problems)
    resolver.choose("env.stack", spec.stack, "; ".join(map(_describe, spec.images)))
    shortest = min(min(image.sides) for image in spec.images)
    kind: EncoderKind = "nature" if shortest >= NATURE_SIDE else "small"
    resolver.choose("algo.encoder", kind, f"the shortest side has {shortest} pixels")
    resolver.choose("algo.hidden", IMAGE_HIDDEN, "behind an encoder of images")
    kinds, shift = ("discrete", 0) if spec.discrete else ("continuous", SHIFT)
    resolver.choose("algo.shift", shift, f"actions are {kinds}")
    encoder = resolver.config.hyper.image_encoder(spec)
    if encoder is not None and any(min(encoder.output(image)) < 1 for image in spec.images):
        raise UsageError(
            [
                f"--algo.encoder {encoder.kind}: images of {_describe(spec.images[0])} are too small for its kernels. "
                "Use --algo.encoder small."
            ]
        )


def _describe(image: Image) -> str:
    """What was recognised, and what to do about a large image."""
    order = ", channels first" if image.channels_first and image.channels > 1 else ""
    large = max(image.sides) >= LARGE_SIDE
    advice = (
        "; large: gymnasium.wrappers.ResizeObservation(env, (84, 84)) learns faster"
        if large
        else ""
    )
    return f"{image.name} is an image, {image}{order}{advice}"


def _problems(config: Config) -> list[str]:
    """What is not built for images."""
    problems = []
    if len(config.devices) > 1:
        problems.append(f"--device {config.device}: with images, networks train on one device.")
    if config.replay.placement == "host" and config.devices[0] != "cpu":
        problems.append(
            "--replay.placement host: with images, the GPU has to read the replay: use gpu or pinned."
        )
    if config.backend == "ray":
        problems.append("--backend ray: with images, samplers run on this machine only.")
    return problems
