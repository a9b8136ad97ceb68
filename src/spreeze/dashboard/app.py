"""The web application: a few routes, all read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

from spreeze.dashboard.access import Access, App, Guard
from spreeze.dashboard.events import EventHub
from spreeze.dashboard.runs import MAX_VIDEO_BYTES, RunIndex, StoredRun, clean
from spreeze.dashboard.tail import VIDEO_FILES, curve
from spreeze.dashboard.trials import read_sweep

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


class Page:
    """The page for a folder of runs."""

    def __init__(self, folder: Path, first: str | None = None) -> None:
        """Show the runs in `folder`, starting with the run named `first`."""
        self.index = RunIndex(folder)
        self.events = EventHub()
        self._first = first
        # Read once and served by name, so that no request ever becomes a path.
        self._static = {
            path.name: (path.read_bytes(), TYPES[path.suffix])
            for path in STATIC.iterdir()
            if path.suffix in TYPES
        }
        self._curves: dict[str, tuple[object, list[Any]]] = {}
        self.routes = [
            Route("/", self._index),
            Route("/static/{name}", self._file),
            Route("/api/runs", self._runs),
            Route("/api/runs/{id}", self._run),
            Route("/api/runs/{id}/curve", self._curve),
            Route("/api/runs/{id}/frame", self._frame),
            Route("/api/runs/{id}/videos/{name}", self._video),
            Route("/api/runs/{id}/events", self._events),
        ]

    def app(self, access: Access) -> App:
        """The application with access control."""
        router = Router(self.routes, redirect_slashes=False)
        return Guard(router, access)

    async def _index(self, _: Request) -> Response:
        content, kind = self._static["index.html"]
        return Response(content, media_type=kind)

    async def _file(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        return Response(found[0], media_type=found[1]) if found else _not_found()

    async def _runs(self, _: Request) -> Response:
        table = self.index.table()
        first = next((row["id"] for row in table if row["name"] == self._first), None)
        folder = {"folder": clean(self.index.folder.name), "sweep": read_sweep(self.index.folder)}
        return _json({"runs": table, "first": first, **folder})

    async def _run(self, request: Request) -> Response:
        run = self._find(request)
        if run is None:
            return _not_found()
        stored = run.read("config")
        about = {name: stored.get(name) for name in ("config", "reasons", "asked")}
        return _json({"name": clean(run.path.name), **about, "system": run.read("system")})

    async def _curve(self, request: Request) -> Response:
        run = self._find(request)
        if run is None:
            return _not_found()
        try:
            stamp = (run.metrics / "evaluator-0.jsonl").lstat().st_size
        except OSError:
            stamp = -1
        known = self._curves.get(run.id)
        if known is None or known[0] != stamp:
            known = self._curves[run.id] = (stamp, await curve(run))
        return _json({"id": run.id, "curve": known[1]})

    async def _frame(self, request: Request) -> Response:
        run = self._find(request)
        picture = run.content("live", "frame.jpg") if run else None
        return Response(picture, media_type="image/jpeg") if picture else _not_found()

    async def _video(self, request: Request) -> Response:
        run, name = self._find(request), request.path_params["name"]
        if run is None or name not in run.listing("videos", VIDEO_FILES):
            return _not_found()
        video = run.content("videos", name, limit=MAX_VIDEO_BYTES)
        return _video_range(video, request.headers.get("range", "")) if video else _not_found()

    async def _events(self, request: Request) -> Response:
        run = self._find(request)
        if run is None:
            return _not_found()
        if self.events.full:
            return PlainTextResponse("Too many pages are open. Close one and reload.\n", 503)
        return self.events.stream(run)

    def _find(self, request: Request) -> StoredRun | None:
        return self.index.runs().get(request.path_params["id"])


def _json(value: Any) -> Response:
    return JSONResponse(value)


def _not_found() -> Response:
    return PlainTextResponse("Not found.\n", 404)


def _video_range(video: bytes, wanted: str) -> Response:
    """A video, or the byte range that a player asks for."""
    headers = {"accept-ranges": "bytes"}
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    if not (wanted.startswith("bytes=") and first.isdecimal() and len(first) < 12):
        return Response(video, media_type="video/mp4", headers=headers)
    start = int(first)
    if start >= len(video):
        return Response(status_code=416, headers={"content-range": f"bytes */{len(video)}"})
    end = min(int(last[:12]) if last.isdecimal() else len(video), len(video) - 1)
    headers["content-range"] = f"bytes {start}-{end}/{len(video)}"
    return Response(video[start : end + 1], 206, headers, "video/mp4")
