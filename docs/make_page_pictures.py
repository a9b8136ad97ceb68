"""Write docs/page-wide.png and docs/page-phone.png: the page of a real run of HalfCheetah-v5, shortly before its target.

Run it from the root of the repository, with Chromium installed: python docs/make_page_pictures.py
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
COMMAND = ["train", "HalfCheetah-v5", "--target", "5000", "--time", "3m", "--name", "halfcheetah"]
SHOWN_FROM = 4500.0
"""The return from which the pictures are taken."""
PICTURES = [("page-wide", 1400, 1000, "light"), ("page-phone", 390, 844, "dark")]


def wait_for_return(run: Path, seconds: float = 180.0) -> str:
    """Wait until the run is good enough; returns the address of its page."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        time.sleep(0.5)
        if (run / "status.json").exists():
            status = json.loads((run / "status.json").read_text())
            if (status["progress"].get("best_return") or 0.0) >= SHOWN_FROM:
                token = (run / "dashboard.token").read_text().strip()
                return f"{status['dashboard']['url']}?token={token}"
    raise SystemExit(f"The run has not reached {SHOWN_FROM:.0f} within {seconds:.0f} s.")


def main() -> None:
    """Train, and take both pictures while the run goes on."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = Path(folder) / "halfcheetah"
        training = subprocess.Popen([sys.executable, "-m", "spreeze", *COMMAND, "--runs", folder])
        try:
            address = wait_for_return(run)
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name, width, height, scheme in PICTURES:
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                page.goto(address)
                page.locator("#return-chart canvas").wait_for()
                page.wait_for_timeout(2000)
                page.screenshot(path=DOCS / f"{name}.png")
        finally:
            training.terminate()
            training.wait()


if __name__ == "__main__":
    main()
