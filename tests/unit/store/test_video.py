"""Videos: an MP4 with a title, and nothing else left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spreeze.store.video import VideoWriter, captioned, fitted, jpeg


def test_a_video_gets_its_name_and_title_when_it_is_complete(tmp_path: Path) -> None:
    frame = np.random.default_rng(0).integers(0, 255, (65, 81, 3), np.uint8)
    video = VideoWriter(tmp_path / "a.mp4", 20.0)
    for _ in range(5):
        video.add(captioned(frame, "return 1.0"))
    assert not (tmp_path / "a.mp4").exists()
    video.close("Pendulum-v1: return -123.4")
    assert b"Pendulum-v1: return -123.4" in (tmp_path / "a.mp4").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    thrown_away = VideoWriter(tmp_path / "b.mp4", 20.0)
    thrown_away.add(frame)
    thrown_away.close(None)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
    assert (captioned(frame, "x") != frame).any()
    assert len(jpeg(np.zeros((900, 1200, 3), np.uint8))) < 20_000


def test_a_frame_is_scaled_as_a_whole_and_not_stretched() -> None:
    white = np.full((50, 50, 3), 255, np.uint8)
    wide = fitted(white, (200, 100))
    assert wide.shape == (100, 200, 3)
    assert (wide[:, 50:150] == 255).all()
    assert (wide[:, :50] == 0).all()
    assert (wide[:, 150:] == 0).all()
    assert fitted(white, (50, 50)) is white
