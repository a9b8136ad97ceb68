"""Write docs/terminal.svg: the terminal during a real run of Pendulum-v1, when it reaches its target.

Run it from the root of the repository: python docs/make_screenshot.py
"""

import io
import tempfile
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from spreeze.cli.drawing import page
from spreeze.run.launch import launch
from spreeze.settings.defaults import config_with, default_config

WIDTH = 92
COMMAND = "spreeze train Pendulum-v1 --target -200 --time 60s --name pendulum --no-dashboard"
TARGET = Path(__file__).parent / "terminal.svg"


def last_page() -> Panel:
    """Train and return the last page that the terminal would have shown."""
    pages: list[Panel] = []
    with tempfile.TemporaryDirectory() as folder:
        knobs = {"target": -200.0, "time": "60s", "name": "pendulum", "dashboard": False}
        config = config_with(default_config(env="Pendulum-v1"), {"runs": folder, **knobs})
        launch(config, config.env, lambda *shown: pages.append(page(*shown, width=WIDTH)))
    return pages[-1]


def main() -> None:
    """Draw the page as if the run were in the folder `runs`."""
    shown = last_page()
    shown.subtitle = "[dim]runs/pendulum  Ctrl-C stops[/dim]"
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(f"$ {COMMAND}", style="dim")
    console.print(shown)
    console.save_svg(str(TARGET), title="spreeze")


if __name__ == "__main__":
    main()
