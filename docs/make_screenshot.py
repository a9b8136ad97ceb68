"""Draws docs/terminal.svg: the screen of a real run of Pendulum-v1, just before it is solved."""

import io
import tempfile

from rich.console import Console

from spreeze.cli.screen import page
from spreeze.run.launch import launch
from spreeze.settings.config import config_with, default_config

config = config_with(default_config(env="Pendulum-v1"), {"target": -200.0, "time": "60s"})
pages = []
with tempfile.TemporaryDirectory() as folder:
    config = config_with(config, {"runs": folder + "/runs", "name": "pendulum", "dashboard": False})
    run = launch(config, config.env, lambda *shown: pages.append(page(*shown, width=92)))
console = Console(record=True, width=92, file=io.StringIO(), force_terminal=True)
console.print("$ make train", style="dim")
pages[-1].subtitle = "[dim]runs/pendulum  Ctrl-C stops[/dim]"
console.print(pages[-1])
console.save_svg("docs/terminal.svg", title="spreeze train Pendulum-v1 --target -200")
