"""The page in a real browser, with a real run and fake ones. Screenshots go to build/screenshots."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pytest

from fake_runs import PIXEL, append, make_run, write
from spreeze.store.video import VideoWriter
from user_runs import learning, read, training

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
WIDE, NARROW = {"width": 1360, "height": 900}, {"width": 390, "height": 844}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    SHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Tab:
    """A page in the browser, with its errors and the hosts that it asked."""

    def __init__(self, browser: Any, size: dict[str, int], scheme: str = "light") -> None:
        self.context = browser.new_context(viewport=size, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.hosts: set[str | None] = set()
        self.page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.hosts.add(urlparse(request.url).hostname))

    def text(self, selector: str) -> str:
        """The text of an element."""
        return str(self.page.locator(selector).first.inner_text())

    def wait(self, script: str, seconds: float = 30) -> None:
        """Wait until the script is true in the page."""
        deadline = time.monotonic() + seconds
        while not self.page.evaluate(script):  # its security policy forbids wait_for_function
            assert time.monotonic() < deadline, script
            self.page.wait_for_timeout(50)

    def shows(self, selector: str, words: str) -> None:
        """Wait until an element contains these words."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"{place}.innerText.includes({json.dumps(words)})")

    def shoot(self, name: str) -> None:
        """Save a screenshot of the whole page."""
        (SHOTS / f"{name}.png").write_bytes(self.page.screenshot(full_page=True))

    def points(self) -> int:
        """Evaluations in the curve."""
        return int(self.page.locator("#return-chart").get_attribute("data-points") or 0)


@contextlib.contextmanager
def tab(browser: Any, size: dict[str, int] = WIDE, scheme: str = "light") -> Iterator[Tab]:
    """A tab that must have no errors and ask no other host."""
    opened = Tab(browser, size, scheme)
    try:
        yield opened
        assert opened.complaints == []
        assert opened.hosts <= {"127.0.0.1"}
    finally:
        opened.context.close()


@contextlib.contextmanager
def dashboard(folder: Path) -> Iterator[str]:
    """Run `spreeze dashboard` on a folder; yields its address with the token."""
    command = [sys.executable, "-m", "spreeze", "dashboard", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = re.search(r"http[^?\s]+", process.stdout.readline())
        token = re.search(r"/proc/\S+", process.stdout.readline())
        assert address is not None
        assert token is not None
        yield f"{address.group()}?token={Path(token.group()).read_text().strip()}"
    finally:
        process.terminate()
        process.communicate()


def make_video(path: Path) -> None:
    """Half a second of video."""
    video = VideoWriter(path, 20.0)
    for shade in range(0, 250, 25):
        video.add(np.full((64, 64, 3), shade, np.uint8))
    video.close("how it ended")


def test_a_run_is_watched_from_its_start_to_after_its_end(browser: Any, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs, "earlier", seed=5)
    with training(tmp_path, "Pendulum-v1") as process, tab(browser) as watching:
        learning(tmp_path)
        address = read(tmp_path, "status")["dashboard"]["url"]
        token = (runs / "r" / "dashboard.token").read_text().strip()
        page = watching.page
        page.goto(f"{address}?token={token}")
        watching.wait("document.querySelector('#title').textContent === 'r'")
        assert "token" not in page.url, "the address no longer has the secret"
        watching.wait("Number(document.querySelector('#return-chart').dataset.points) > 1")
        points = watching.points()
        watching.wait(
            f"Number(document.querySelector('#return-chart').dataset.points) > {points + 2}"
        )
        watching.shows("#return-chart", "1 other run")  # drawn behind it
        watching.wait("document.querySelector('#picture').naturalWidth > 0", 60)
        shown = page.locator("#picture").get_attribute("src")
        watching.wait(f"document.querySelector('#picture').getAttribute('src') !== '{shown}'", 60)
        watching.wait("document.querySelector('.stage.limits')")
        watching.shows("#limit", "limited by: ")
        assert re.search(r"learner|samplers", watching.text("#limit"))
        watching.shows("#rates", "/s")
        make_run(runs, "second", seed=7)
        watching.wait("document.querySelector('#runs').textContent.includes('second')")
        watching.shoot("live-wide-light")
        process.terminate()
        watching.wait("document.querySelector('#state').textContent === 'interrupted'")
        process.communicate(timeout=20)
        watching.complaints = [
            c for c in watching.complaints if "ERR_" not in c
        ]  # the server has ended
    # The run writes one itself only if the machine leaves it the time.
    make_video(runs / "r" / "videos" / "last.mp4")
    with dashboard(runs / "r") as address, tab(browser) as later:
        later.page.goto(address)
        later.wait("document.querySelector('#state').textContent === 'interrupted'")
        later.wait(f"Number(document.querySelector('#return-chart').dataset.points) >= {points}")
        later.wait("document.querySelector('#picture').naturalWidth > 0")
        later.page.locator("#videos button", has_text="at the end").click()
        later.wait("document.querySelector('#player').readyState >= 1")
        assert "Tuner" in later.text("#h-tuner")
        later.shows("#config", "us a step")  # values have their reasons


def fill(folder: Path) -> Path:
    """Four runs: one has tuner decisions, a fault and a picture."""
    run = make_run(folder, "tuned", num=60)
    make_run(folder, "quiet", seed=1, num=40)
    make_run(folder, "walker", env="Walker2d-v5", seed=2)
    make_run(folder, "going", seed=3, state="running", num=30)
    for i, change in enumerate(("samplers 4 -> 6", "batch size 256 -> 512")):
        axes = {"time_s": 10.0 + 20 * i, "env_steps": 100, "updates": 10}
        words = {"tuner/seen": "the learner waits 31 %", "tuner/change": change}
        append(run, "supervisor-0", axes | words | {"tuner/gain": 0.18 - 0.2 * i})
    event = "evaluator-0 was ended by signal 9 and started again"
    append(run, "supervisor-0", {"time_s": 33.0, "env_steps": 1, "updates": 1, "event": event})
    (run / "live").mkdir()
    (run / "live" / "frame.jpg").write_bytes(PIXEL)
    return run


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_runs_are_sorted_filtered_and_compared(
    browser: Any, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    fill(tmp_path)
    with dashboard(tmp_path) as address, tab(browser, size, scheme) as look:
        page = look.page
        page.goto(address)
        look.wait("document.querySelectorAll('#runs-body tr').length === 4")
        names = "#runs-body td:nth-child(2)"
        page.get_by_role("button", name="Run", exact=True).click()
        assert page.locator(names).all_inner_texts() == ["going", "quiet", "tuned", "walker"]
        page.get_by_role("button", name="Env steps").last.click()
        assert page.locator(names).all_inner_texts()[0] == "tuned"
        page.locator("#runs-filter").fill("walker2d fin")
        assert page.locator(names).all_inner_texts() == ["walker"]
        page.locator("#runs-filter").fill("nothing like it")
        look.shows("#runs", "No matching runs")
        page.locator("#runs-filter").fill("")
        page.get_by_role("link", name="tuned").click()
        look.wait("Number(document.querySelector('#return-chart').dataset.points) >= 60")
        page.get_by_role("button", name="Updates", exact=True).click()
        page.get_by_label("Compare quiet").check()
        look.wait("document.querySelector('#comparison').textContent.includes('seed')")
        look.shows("#return-chart", "quiet")
        look.shows("#return-chart", "1 other run")
        tuner = look.text("#tuner")
        assert "samplers 4 -> 6" in tuner
        assert "+18 %" in tuner
        look.shows("#faults", "evaluator-0 was ended by signal 9")
        page.locator("#config-filter").fill("capacity")
        look.shows("#config", "40 bytes each")
        look.shows("#config", "1,000,000")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= size["width"], "nothing hangs over the edge"
        look.shoot(f"runs-{'wide' if size is WIDE else 'narrow'}-{scheme}")


def test_what_is_missing_is_explained(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path, "fresh", state="running", num=0)
    write(run / "status.json", {"state": "running", "pids": {"supervisor": 1}, "warnings": []})
    with dashboard(run) as address, tab(browser, NARROW) as look:
        look.page.goto(address)
        look.wait("document.querySelector('#return-chart').textContent.includes('starting')")
        look.shows(".picture", "Rendering is off")
        assert "Available after the first update" in look.text("#losses")
        assert "No faults" in look.text("#faults")
        look.shoot("empty-narrow-light")
        problem = "no way to draw without a display. Debian: apt install libegl1"
        (run / "live").mkdir()
        write(run / "live" / "view.json", {"problem": problem})
        look.wait("document.querySelector('.picture').textContent.includes('apt install')")
    with dashboard(tmp_path / "fresh" / "metrics") as address, tab(browser) as look:
        look.page.goto(address)
        look.wait("document.querySelector('#runs-empty').textContent.includes('spreeze train')")


@pytest.mark.fault("F78")
@pytest.mark.fault("S08")
def test_hostile_names_and_values_are_shown_as_text(browser: Any, tmp_path: Path) -> None:
    attack = "<img src=x onerror=alert(1)>"
    run = make_run(tmp_path, attack, extra={f"train/{attack}": 1.0})
    stored = {
        "config": {"env": attack, "algo": attack, attack: attack},
        "reasons": {attack: attack},
    }
    write(run / "config.json", stored)
    append(run, "supervisor-0", {"time_s": 1.0, "event": attack, "tuner/change": attack})
    status = {
        "state": attack,
        "progress": {"bottleneck": attack, "bottleneck_kind": attack},
        "warnings": [attack],
        "open_warnings": [attack],
    }
    write(run / "status.json", status)
    (run / "summary.json").unlink()
    with dashboard(tmp_path) as address, tab(browser) as look:
        look.page.goto(address)
        look.wait("document.querySelector('#losses').textContent.includes('<img')")
        for place in (
            "#title",
            "#facts",
            "#limit",
            "#losses",
            "#faults",
            "#tuner",
            "#config",
            "#runs",
        ):
            assert attack in look.text(place).replace("_", " ").replace("\n", ""), place
        assert look.page.locator("img[src=x]").count() == 0
