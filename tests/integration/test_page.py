"""The page in a real browser, with a real run and fake ones.

Pictures of its states are kept in the folder that SPREEZE_SCREENSHOTS names.
"""

from __future__ import annotations

import contextlib
import json
import os
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
SHOTS = os.environ.get("SPREEZE_SCREENSHOTS")
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 390, "height": 844}
LOOKS = [
    pytest.param(size, scheme, id=f"{size['width']}-{scheme}")
    for size in (WIDE, NARROW)
    for scheme in ("light", "dark")
]
ALL_LOOKS = [param.values for param in LOOKS]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


LIMIT_IS_MARKED = """(() => {
    const said = document.querySelector("#limit").textContent, marked = document.querySelector(".stage.limits");
    return /learner|samplers/.test(said) ? marked : /other programs/.test(said) && !marked;
})()"""
"""On a busy machine, other programs are the limit, and no role is."""


class Tab:
    """A page in the browser, with its errors and the hosts that it asked."""

    def __init__(self, browser: Any, size: dict[str, int], scheme: str = "light") -> None:
        self.look = f"{size['width']}-{scheme}"
        self.width = size["width"]
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
        self.wait(f"{place}?.innerText.includes({json.dumps(words)})")

    def shoot(self, state: str, full: bool = True) -> None:
        """Keep a picture of the page, if pictures are wanted. Nothing may hang over its edge."""
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.width
        if SHOTS is not None:
            path = Path(SHOTS) / f"{state}-{self.look}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            if full:
                self.page.evaluate("scrollTo(0, 0)")
            path.write_bytes(self.page.screenshot(full_page=full))

    def colours(self, where: str, run: str) -> set[str]:
        """The colours that a run has in one part of the page."""
        part = self.page.locator(where).evaluate_all(
            """(parts, run) => parts.flatMap((part) => [...part.querySelectorAll(".dot")])
              .filter((dot) => dot.parentElement.textContent.split(" ")[0] === run)
              .map((dot) => getComputedStyle(dot).backgroundColor)""",
            run,
        )
        return set(part)

    def painted(self, chart: str, name: str) -> int:
        """How many pixels of a chart have a colour of the page."""
        script = """([chart, name]) => {
          const canvas = document.querySelector(chart + " canvas"), ink = canvas.getContext("2d");
          ink.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--" + name);
          const hex = ink.fillStyle, wanted = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
          const { data } = ink.getImageData(0, 0, canvas.width, canvas.height);
          let found = 0;
          for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 250 && wanted.every((v, k) => Math.abs(data[i + k] - v) < 4)) found += 1;
          return found;
        }"""
        return int(self.page.evaluate(script, [chart, name]))

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
        page.locator("#open-runs").click()
        page.get_by_label("Compare earlier").check()
        page.locator("#close-runs").click()
        watching.shows("#return-chart", "earlier")  # drawn with it
        watching.wait("document.querySelector('#picture').naturalWidth > 0", 60)
        shown = page.locator("#picture").get_attribute("src")
        watching.wait(f"document.querySelector('#picture').getAttribute('src') !== '{shown}'", 60)
        watching.shows("#limit", "limited by: ")
        watching.wait(LIMIT_IS_MARKED)
        watching.shows("#rates", "/s")
        make_run(runs, "second", seed=7)
        watching.wait("document.querySelector('#runs').textContent.includes('second')")
        watching.shoot("live")
        for size, scheme in ALL_LOOKS[1:]:
            with tab(browser, size, scheme) as other:
                other.page.goto(f"{address}?token={token}")
                other.wait("Number(document.querySelector('#return-chart').dataset.points) > 1")
                other.wait("document.querySelector('#picture').naturalWidth > 0")
                other.shoot("live")
        process.terminate()
        watching.wait("document.querySelector('#state').textContent === 'interrupted'")
        assert not re.search("filming|so far", watching.text("#run"), re.IGNORECASE)
        process.communicate(timeout=20)
        watching.shows("#banner", "spreeze dashboard")  # how to see it from now on
        watching.shoot("no-longer-served")
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
        later.page.locator("#videos button", has_text="Last policy").click()
        later.wait("document.querySelector('#player').readyState >= 1")
        assert "Tuner" in later.text("#h-tuner")
        later.shows("#config", "us a step")  # values have their reasons


def change_config(run: Path, **knobs: Any) -> None:
    """Change knobs in a stored config."""
    stored = json.loads((run / "config.json").read_text())
    for name, value in knobs.items():
        section, _, knob = name.rpartition("__")
        (stored["config"][section] if section else stored["config"])[knob] = value
    write(run / "config.json", stored)


def fill(folder: Path) -> Path:
    """Five runs of two tasks: one has ended and has tuner decisions, a fault, a target and a picture."""
    run = make_run(folder, "tuned", num=60, talks=True)
    change_config(run, target=5000.0)
    change_config(make_run(folder, "quiet", seed=200, num=40), learner__batch_size=65536)
    make_run(folder, "walker", env="Walker2d-v5", seed=2)
    make_run(folder, "going", seed=3, state="running", num=30)
    killed = make_run(folder, "killed", seed=4, state="running", num=10)
    status = json.loads((killed / "status.json").read_text())
    write(killed / "status.json", status | {"pids": {"supervisor": 2**30}})
    for i, change in enumerate(("samplers 4 -> 6", "batch 256 -> 512")):
        axes = {"time_s": 10.0 + 20 * i, "env_steps": 100, "updates": 10}
        words = {"tuner/seen": "2,150 updates/s of 256, 9,000 steps/s", "tuner/change": change}
        result = {"tuner/gain": 0.18345 - 0.2 * i, "tuner/kept": 1 - i}
        append(run, "supervisor-0", axes | words | result)
    event = "evaluator-0 was ended by signal 9 and started again"
    append(run, "supervisor-0", {"time_s": 33.0, "env_steps": 1, "updates": 1, "event": event})
    for path in (run, killed):
        (path / "live").mkdir()
        (path / "live" / "frame.jpg").write_bytes(PIXEL)
        shown = {"updates": 900, "return": -321.5, "filming": "first policy"}
        write(path / "live" / "view.json", shown)
    return run


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_a_sweep_shows_its_trials(browser: Any, tmp_path: Path, size: dict[str, int]) -> None:
    for name in ("trial-001", "trial-002"):
        make_run(tmp_path, name)
    rows = [
        {"number": 1, "state": "pruned", "score": None, "curve": [-9.0, -8.5], "runs": ["trial-001"]},
        {"number": 2, "state": "finished", "score": -150.0, "curve": [-9.0, -2.0], "runs": ["trial-002"]},
        {"number": 3, "state": "failed", "score": None, "runs": [], "cause": "<b>it broke</b>"},
        {"number": 4, "state": "finished", "score": -140.0, "curve": [1.0, None], "runs": ["gone"]},
        {"number": 5, "state": 7, "score": "x", "values": [1], "curve": 3, "runs": None},
    ]  # fmt: skip
    rows = [{"values": {"algo.lr": f"0.00{i}"}, "seconds": 9.0} | row for i, row in enumerate(rows)]
    sweep = {"asked": {}, "trials": 6, "score": "best return", "direction": "maximize"}
    write(tmp_path / "sweep.json", sweep | {"rows": rows})
    with dashboard(tmp_path) as address, tab(browser, size) as look:
        look.page.goto(address)
        look.shows("#trials-note", "4 of 6 trials done")
        lines = look.page.locator("#trials-body tr").all_inner_texts()
        assert [line.split()[0] for line in lines] == ["4", "2", "5", "3", "1"], "the best first"
        assert "<b>it broke</b>" in lines[3]
        assert look.page.locator("#trials-body polyline").count() == 2
        look.shoot("sweep")
        look.page.locator("#trials-body a", has_text="2").first.click()
        look.wait("document.querySelector('#title').textContent === 'trial-002'")
        assert look.page.locator("#trials").is_hidden()


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_runs_are_sorted_filtered_and_compared(
    browser: Any, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    fill(tmp_path)
    with dashboard(tmp_path) as address, tab(browser, size, scheme) as look:
        page = look.page
        page.goto(address)
        look.wait("document.querySelectorAll('#runs-body tr').length === 5")
        look.shows("#folder", "Tick runs")
        names, head = "#runs-body td.name", page.locator("#runs-head")
        head.get_by_role("button", name="Run", exact=True).click()
        assert page.locator(names).all_inner_texts()[:3] == ["going", "killed", "quiet"]
        head.get_by_role("button", name="Best return").click()
        head.get_by_role("button", name="Seed").click()
        order = ["tuned", "walker", "going", "killed", "quiet"]
        assert page.locator(names).all_inner_texts() == order
        page.locator("#runs-filter").fill("walker2d fin")
        assert page.locator(names).all_inner_texts() == ["walker"]
        page.locator("#runs-filter").fill("batch_size 65,536")
        assert page.locator(names).all_inner_texts() == ["quiet"]
        page.locator("#runs-filter").fill("nothing like it")
        look.shows("#runs", "No matching runs")
        page.locator("#runs-filter").fill("")
        look.shoot("list")
        for name in ("tuned", "quiet", "walker"):
            page.get_by_label(f"Compare {name}").check()
        look.wait("document.querySelectorAll('.task').length === 2")
        pendulum, walker = '.task[aria-label="Pendulum-v1"]', '.task[aria-label="Walker2d-v5"]'
        look.shows(f"{pendulum} .legend", "tuned")
        look.shows(f"{walker} .legend", "walker")
        assert "walker" not in look.text(pendulum)
        used = {name: look.colours("#runs-body", name) for name in ("tuned", "quiet", "walker")}
        assert len(set.union(*used.values())) == 3, "a colour each"
        for name, colour in used.items():
            assert look.colours(".task .legend", name) == colour
        assert look.colours(f"{pendulum} .compare", "quiet") == used["quiet"]
        for name in ("run-1", "run-2"):
            assert look.painted(pendulum, name) > 50
        assert look.painted(pendulum, "run-3") == 0, "that is the walker's"
        look.shoot("folder")

        page.get_by_role("link", name="tuned").first.click()
        look.wait("Number(document.querySelector('#return-chart').dataset.points) >= 60")
        page.locator("#run").get_by_role("button", name="Updates", exact=True).click()
        look.shows("#return-chart .legend", "quiet")
        legend = page.locator("#return-chart .legend .dot")
        assert legend.count() == 2, "the open run is ticked too, and drawn once"
        for name in ("tuned", "quiet"):
            assert look.colours("#return-chart .legend", name) == used[name]
            assert look.colours("#comparison", name) == used[name]
        look.shows("#comparison", "learner.batch_size")
        look.shows("#comparison", "65,536")
        look.shoot("run")
        page.mouse.wheel(0, 4000)
        page.locator("#open-runs").click()
        page.wait_for_timeout(100)
        for name, colour in used.items():
            assert look.colours("#runs-body", name) == colour
        quiet = page.locator("#runs-body tr", has_text="quiet").inner_text()
        for words in ("Pendulum-v1", "sac", "200", "learner.batch_size 65,536"):
            assert words in quiet
        look.shoot("drawer", full=False)
        page.get_by_label("Compare quiet").uncheck()
        look.wait("document.querySelector('#comparison').hidden")
        page.keyboard.press("Escape")
        assert not page.locator("#runs").is_visible()


def test_up_to_eight_runs_are_compared_each_in_its_colour(browser: Any, tmp_path: Path) -> None:
    for number in range(10):
        make_run(tmp_path, f"run{number}", seed=number, num=3)
    with dashboard(tmp_path) as address, tab(browser) as look:
        page = look.page
        page.goto(address)
        look.wait("document.querySelectorAll('#runs-body tr').length === 10")
        assert not page.locator("#runs-head .differs").is_visible(), "they differ by the seed alone"
        page.get_by_label("Compare all").check()
        look.wait("document.querySelectorAll('.task .legend .dot').length === 8")
        left = page.locator("#runs-body tr", has=page.locator("input:not(:checked)"))
        assert left.count() == 2
        assert left.locator("input:disabled").count() == 2
        name = left.first.locator("a").inner_text()
        left.first.locator("a").click()
        look.shows("#return-chart .legend", name)
        look.wait("document.querySelectorAll('#return-chart .legend .dot').length === 9")
        colours = [look.colours("#return-chart .legend", f"run{number}") for number in range(10)]
        assert sorted(map(len, colours)) == [0, *[1] * 9]
        assert len(set.union(*colours)) == 9


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_a_run_that_has_ended_says_so_everywhere(
    browser: Any, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    run = fill(tmp_path)
    failed = {"state": "failed", "reason": "error", "stop_reason": "sampler-0 was given up"}
    write(tmp_path / "quiet" / "summary.json", failed)
    with dashboard(run) as address, tab(browser, size, scheme) as look:
        page = look.page
        page.goto(address)
        look.wait("Number(document.querySelector('#return-chart').dataset.points) >= 60")
        assert not re.search("filming|so far|limits the run", look.text("#run"), re.IGNORECASE)
        look.shows("#picture-note", "after 900 updates")
        foot = "document.querySelector('#return-chart .foot').textContent"
        look.wait(f"{foot} === 'Target 5,000 (above this scale)'")
        assert look.painted("#return-chart", "faint") > 40, "drawn at the edge"
        tried, undone = page.locator("#tuner tbody tr").all_inner_texts()[::-1]
        assert re.split(r"\s*\t\s*", tried)[1:4] == ["samplers 4 -> 6", "Kept", "+18 %"]
        assert re.split(r"\s*\t\s*", undone)[1:4] == [
            "batch 256 -> 512",
            "Undone",
            "\N{MINUS SIGN}2 %",
        ]
        look.shows("#tuner-note", "2 changes tried, 1 kept")
        assert look.text("#use-note") == "1.3 of 2 cores, other programs 0.4 at the end"
        rows = page.locator("#tuner tbody tr").all()
        assert all(row.bounding_box()["height"] < 60 for row in rows), "no column is squeezed"
        look.shows("#losses", "Loss of the critics")
        for said in (
            "Evaluations: x position",
            "Evaluations: success rate",
            "Sampling: x position",
        ):
            look.shows("#said", said)
        for number, colour in enumerate(("evaluator", "evaluator", "sampler"), 1):
            assert look.painted(f"#said > :nth-child({number})", colour) > 30
        look.shows("#faults", "evaluator-0 was ended by signal 9")
        page.locator("#config-filter").fill("capacity")
        look.shows("#config", "40 bytes each")
        look.shows("#config", "1,000,000")
        page.locator("#config-filter").fill("")
        look.shoot("ended")
        page.locator("#open-runs").click()
        page.get_by_role("link", name="killed").click()
        look.shows("#banner", "was killed")
        look.shows("#state", "killed")
        look.shows("#config", "capacity")
        assert not re.search("filming|so far|limits the run", look.text("#run"), re.IGNORECASE)
        look.shoot("killed")
        page.locator("#open-runs").click()
        page.get_by_role("link", name="quiet").click()
        look.shows("#banner", "This run failed: sampler-0 was given up.")
        look.shows("#config", "capacity")
        look.shoot("failed")


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_a_run_that_begins_is_loading_then_starting_then_has_a_point(
    browser: Any, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    run = make_run(tmp_path, "fresh", state="running", num=0)
    live = {"state": "running", "pids": {"supervisor": os.getpid()}, "warnings": []}
    write(run / "status.json", live)
    with dashboard(run) as address, tab(browser, size, scheme) as look:
        page = look.page
        held: list[Any] = []

        def hold(route: Any) -> None:
            held.append(route)

        page.route("**/api/runs", hold)
        page.route("**/api/runs/*/events", hold)
        page.goto(address)
        look.wait("document.querySelector('#loading').offsetHeight > 0")
        look.shoot("loading")
        assert "Loading" in look.text("#title")
        while not held:
            page.wait_for_timeout(20)
        held.pop().continue_()
        page.unroute("**/api/runs")
        look.shows("#title", "fresh")
        look.wait("document.querySelector('#loading').offsetHeight > 0")
        assert not page.locator("#run").is_visible()
        assert "No runs" not in look.text("body")
        while not held:
            page.wait_for_timeout(20)
        held.pop().continue_()
        page.unroute("**/api/runs/*/events")
        look.shows("#return-chart", "starting")
        look.shows(".picture", "Rendering is off")
        assert "Available after the first update" in look.text("#losses")
        assert "No faults" in look.text("#faults")
        look.shoot("starting")
        problem = "no way to draw without a display. Debian: apt install libegl1"
        (run / "live").mkdir()
        write(run / "live" / "view.json", {"problem": problem})
        look.shows(".picture", "apt install")
        axes = {"time_s": 3.0, "env_steps": 3000, "updates": 300}
        returns = {"eval/mean_reward": -1200.0, "eval/min_reward": -1400.0}
        append(run, "evaluator-0", axes | returns | {"eval/max_reward": -1100.0})
        look.wait("document.querySelector('#return-chart').dataset.points === '1'")
        look.wait("document.querySelector('#return-chart canvas')")
        page.wait_for_timeout(200)
        assert look.painted("#return-chart", "run-1") > 30, "a point"
        look.shoot("one-evaluation")


def test_a_folder_without_runs_says_how_to_begin(browser: Any, tmp_path: Path) -> None:
    with dashboard(tmp_path) as address:
        for size, scheme in ALL_LOOKS:
            with tab(browser, size, scheme) as look:
                look.page.goto(address)
                look.shows("#runs-empty", "spreeze train")
                look.shows("#title", "No runs yet")
                look.shoot("no-runs")
                look.page.goto(f"{address.partition('?')[0]}#/{'0' * 16}")
                look.shows("#banner", "no such run")
                look.complaints = [c for c in look.complaints if "404" not in c]


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
