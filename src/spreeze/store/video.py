"""Pictures as JPEG, videos as MP4, and captions. Needs the extra `video`."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST_SIDE = 480
QUALITY = 80


def jpeg(frame: NDArray[np.uint8]) -> bytes:
    """Encode a frame as a JPEG of at most `LONGEST_SIDE` pixels."""
    from PIL import Image

    image = Image.fromarray(frame)
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def captioned(frame: NDArray[np.uint8], caption: str) -> NDArray[np.uint8]:
    """Return the frame with a line of text in its top left corner."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(frame)
    draw = ImageDraw.Draw(image, "RGBA")
    draw.font = ImageFont.load_default(14)
    box = draw.textbbox((8, 8), caption)
    draw.rectangle((box[0] - 4, box[1] - 4, box[2] + 4, box[3] + 4), fill=(0, 0, 0, 150))
    draw.text((8, 8), caption, fill=(255, 255, 255, 255))
    return np.asarray(image)


def fitted(frame: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The frame scaled to this width and height, with black bars where its shape differs."""
    from PIL import Image, ImageOps

    if frame.shape[1::-1] == size:
        return frame
    return np.asarray(ImageOps.pad(Image.fromarray(frame), size))


class VideoWriter:
    """Writes an MP4 under a temporary name and renames it when it is complete."""

    def __init__(self, path: Path, frames_hz: float) -> None:
        """Write to `path` with `frames_hz` frames per second."""
        self.path, self._frames_hz = path, frames_hz
        self._draft = path.with_name(f".{path.stem}.{os.getpid()}.mp4")
        self._writer: Generator[None, Any, None] | None = None
        self.num_frames = 0

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Append a frame. All frames must have the size of the first."""
        import imageio_ffmpeg

        even = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = imageio_ffmpeg.write_frames(
                str(self._draft),
                (even.shape[1], even.shape[0]),
                fps=self._frames_hz,
                codec="libx264",  # without a name it encodes eight seconds first, to see what works
                macro_block_size=2,
                ffmpeg_log_level="error",
                output_params=["-preset", "veryfast", "-threads", "1", "-movflags", "+faststart"],
            )
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(even))
        self.num_frames += 1

    def close(self, title: str | None) -> None:
        """Finish the file with this title in its metadata, or discard it if `title` is None."""
        import imageio_ffmpeg

        if self._writer is not None:
            self._writer.close()
        titled = self._draft.with_suffix(".titled.mp4")
        try:
            if title is not None and self.num_frames:
                program = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y"]
                copy = ["-i", str(self._draft), "-c", "copy", "-movflags", "+faststart"]
                name = ["-metadata", f"title={title}", str(titled)]
                subprocess.run([*program, *copy, *name], check=True, stdin=subprocess.DEVNULL)
                titled.replace(self.path)
        finally:
            self._draft.unlink(missing_ok=True)
            titled.unlink(missing_ok=True)
