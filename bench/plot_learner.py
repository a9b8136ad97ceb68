"""Draws docs/learner.svg from bench/results/learner-*.json. Needs matplotlib."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent
PAPER = json.loads((ROOT / "bench" / "paper.json").read_text())["figures"]
PAPER_HZ = PAPER["update_frame_hz"]["value"]


def main() -> None:
    """Draw one curve per machine, and one for plain PyTorch on it."""
    plt.rcParams.update({"font.size": 10, "svg.fonttype": "none", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(7.2, 4.0))
    files = sorted((ROOT / "bench" / "results").glob("learner-*.json"), reverse=True)
    for color, file in zip(("#1f6feb", "#d1632e", "#2da44e"), files, strict=False):
        facts = json.loads(file.read_text())
        rows = sorted(facts["results"], key=lambda row: row["batch_size"])
        sizes = [row["batch_size"] for row in rows]
        machine = facts["machine"]
        name = machine["gpu"][0] if facts["device"] != "cpu" else f"{machine['cores']} CPU cores"
        fast = [row["update_frame_hz"] for row in rows]
        plain = [row["eager_update_hz"] * row["batch_size"] for row in rows]
        axes.plot(sizes, fast, "o-", color=color, label=f"{name}")
        axes.plot(sizes, plain, "o:", color=color, label=f"{name}, plain PyTorch", alpha=0.7)
        for size, hz, row in zip(sizes, fast, rows, strict=True):
            note = f"{row['ratio']:.1f}x"
            axes.annotate(note, (size, hz), (0, 7), textcoords="offset points", ha="center")
    axes.axhline(PAPER_HZ, color="gray", lw=0.8)
    axes.annotate(f"the paper: {PAPER_HZ / 1e3:.0f} kHz", (axes.get_xlim()[1], PAPER_HZ), (-4, 4),
                  textcoords="offset points", ha="right", color="gray")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="transitions per second")
    axes.set_xticks([256, 1024, 8192, 32768], ["256", "1,024", "8,192", "32,768"])
    axes.minorticks_off()
    axes.set_title("SAC, two layers of 256, HalfCheetah's sizes: update frame rate", fontsize=10)
    axes.grid(alpha=0.2)
    axes.legend(frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "learner.svg")


if __name__ == "__main__":
    main()
