"""The security of the page: a real server, and everything that must not work."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_runs import PIXEL, append, make_run, write
from spreeze.cli.commands.dashboard import Arguments, hosts
from spreeze.dashboard import events, server
from spreeze.dashboard.access import LOCAL_NAMES, Access
from spreeze.dashboard.app import Page
from spreeze.dashboard.runs import StoredRun
from spreeze.dashboard.token import new_token

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "STEAL"]
ROUTES = {
    "/": {"GET", "HEAD"},
    "/static/{name}": {"GET", "HEAD"},
    "/api/runs": {"GET", "HEAD"},
    "/api/runs/{id}": {"GET", "HEAD"},
    "/api/runs/{id}/curve": {"GET", "HEAD"},
    "/api/runs/{id}/frame": {"GET", "HEAD"},
    "/api/runs/{id}/videos/{name}": {"GET", "HEAD"},
    "/api/runs/{id}/events": {"GET", "HEAD"},
}
"""Every route there is: a new one has to be thought about here first."""


@dataclass
class Served:
    """A page that is being served."""

    page: Page
    access: Access
    folder: Path

    def paths(self) -> list[str]:
        """An address for every route, events aside: they do not end."""
        run = StoredRun(self.folder / "a").id
        names = {"{id}": run, "{name}": "app.js"}
        videos = {"{id}": run, "{name}": "first.mp4"}
        out = []
        for route in self.page.routes:
            path = route.path
            for word, value in (videos if "videos" in path else names).items():
                path = path.replace(word, value)
            out.append(path)
        return [path for path in out if not path.endswith("/events")]

    def ask(
        self, path: str, method: str = "GET", token: bool = True, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one request; header names with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.access.port, timeout=10)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent.setdefault("Authorization", f"Bearer {self.access.token}")
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host="Host" in sent)
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            answers = {k.lower(): v for k, v in answer.getheaders()}
            return answer.status, answers, answer.read()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Two runs, one with a picture and a video, served as `spreeze dashboard` does it."""
    folder = tmp_path / "runs"
    run = make_run(folder, "a")
    make_run(folder, "b", seed=1)
    (run / "live").mkdir()
    (run / "live" / "frame.jpg").write_bytes(PIXEL)
    (run / "videos").mkdir()
    (run / "videos" / "first.mp4").write_bytes(bytes(1000))
    listening = socket.create_server(("127.0.0.1", 0))
    access = Access(listening.getsockname()[1], new_token())
    page = Page(folder, "a")
    running = server.make_server(page, access)
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    try:
        yield Served(page, access, folder)
    finally:
        running.should_exit = True
        thread.join()


def dashboard(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spreeze", "dashboard", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=False, **kwargs
    )


# S01: this machine only, unless asked for, and then with a token.


@pytest.mark.fault("S01")
def test_only_this_machine_can_connect(served: Served) -> None:
    mine = [c for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
    assert {c.laddr.ip for c in mine if c.laddr.port == served.access.port} == {"127.0.0.1"}
    for addresses in psutil.net_if_addrs().values():
        for found in addresses:
            if found.family == socket.AF_INET and not found.address.startswith("127."):
                with pytest.raises(OSError, match=r"refused|timed out"):
                    socket.create_connection((found.address, served.access.port), 2).close()


@pytest.mark.fault("S01")
@pytest.mark.fault("S24")
def test_the_network_may_look_only_with_a_token_and_is_warned_of(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    refused = dashboard(str(tmp_path), "--host", "0.0.0.0", "--no-token")
    assert refused.returncode == 2
    assert "leave out --no-token" in refused.stderr
    command = [sys.executable, "-m", "spreeze", "dashboard", str(tmp_path), "--host", "0.0.0.0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "?token=" in process.stdout.readline()
        while "Ctrl-C" not in process.stdout.readline():
            pass
    finally:
        process.terminate()
        _, err = process.communicate()
    assert "anyone on the network" in err
    open_to_all = hosts(Arguments(host="0.0.0.0", allow_host=("My-Box",)))
    assert {"127.0.0.1", "localhost", "my-box"} <= set(open_to_all)
    assert "0.0.0.0" not in open_to_all
    assert hosts(Arguments()) == tuple(sorted(LOCAL_NAMES))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "my-box"], "must be an address"),
        (["--port", "70000"], "from 0 to 65535"),
        (["nowhere"], "there is no run 'nowhere'"),
    ],
)
def test_wrong_input_is_refused_before_anything_listens(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    refused = dashboard(*arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert words in refused.stderr


# S02: a secret of 128 bits; where it may be seen is tested beside a real run.


@pytest.mark.fault("S02")
def test_without_the_token_nothing_is_told(served: Served) -> None:
    assert len(served.access.token or "") >= 22
    assert new_token() != new_token()
    for path in served.paths():
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "spreeze=x; =;;"}):
            status, _, body = served.ask(path, token=False, **headers)
            assert (status, b"token" in body) == (403, True), path
    assert served.ask(f"/?token={served.access.token}", token=False)[0] == 200
    assert served.ask(f"/api/runs?token={served.access.token}", token=False)[0] == 403
    cookie = f"{served.access.cookie}={served.access.token}"
    assert served.ask("/api/runs", token=False, Cookie=cookie)[0] == 200
    assert served.ask("/api/runs", token=False, Cookie=cookie.replace("spreeze-", "s-"))[0] == 403


# S03: a name of a stranger that leads here is not ours.


@pytest.mark.fault("S03")
def test_a_rebound_name_is_refused_on_every_route_by_every_method(served: Served) -> None:
    port = served.access.port
    for path in [*served.paths(), "/nothing"]:
        for method in METHODS:
            assert served.ask(path, method, Host=f"evil.test:{port}")[0] == 403, (method, path)
    for host in ("0.0.0.0", f"0.0.0.0:{port}", "", "localhost.evil.test", "127.0.0.1.evil.test"):
        assert served.ask("/", Host=host)[0] == 403, host
    for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1:1234", f"[::1]:{port}", "[::1]"):
        assert served.ask("/", Host=host)[0] == 200, host


# S04: other sites can neither ask nor be told.


@pytest.mark.parametrize("origin", ["none", "null", "evil", "own"])
@pytest.mark.fault("S04")
def test_other_origins_are_refused(served: Served, origin: str) -> None:
    names = {"null": "null", "evil": "http://evil.test"}
    names["own"] = f"http://127.0.0.1:{served.access.port}"
    headers = {} if origin == "none" else {"Origin": names[origin]}
    for method in METHODS:
        status, answers, _ = served.ask("/api/runs", method, **headers)
        if origin in ("null", "evil"):
            assert status == 403, method
        else:
            assert status == (200 if method in ("GET", "HEAD") else 405), method
        assert not [name for name in answers if name.startswith("access-control")], method


@pytest.mark.fault("S04")
def test_requests_that_other_sites_cause_are_refused_and_the_cookie_stays_home(
    served: Served,
) -> None:
    for site in ("cross-site", "same-site"):
        assert served.ask("/api/runs", Sec_Fetch_Site=site)[0] == 403
    assert served.ask("/api/runs", Sec_Fetch_Site="same-origin")[0] == 200
    cookie = served.ask("/")[1]["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    status, _, _ = served.ask("/api/runs", Upgrade="websocket", Connection="Upgrade")
    assert status == 200, "there are no web sockets: an upgrade is not taken up"


# S05 and S06: what is not listed is not there; nothing can be changed.


@pytest.mark.fault("S05")
@pytest.mark.fault("S06")
def test_routes_and_methods_are_a_list(served: Served) -> None:
    assert {route.path: set(route.methods or ()) for route in served.page.routes} == ROUTES
    before = {path: path.stat().st_mtime_ns for path in served.folder.rglob("*")}
    for path in served.paths():
        for method in METHODS:
            expected = 200 if method in ("GET", "HEAD") else 405
            assert served.ask(path, method)[0] == expected, (method, path)
    for path in ("/x", "/api", "/api/stop", "/api/runs/", "/static/", "/docs", "/openapi.json"):
        assert served.ask(path)[0] == 404, path
    assert {path: path.stat().st_mtime_ns for path in served.folder.rglob("*")} == before


# S07: no address becomes a path.


@pytest.mark.fault("S07")
def test_no_address_leads_out_of_the_runs(served: Served, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    make_run(secret, "c")
    (secret / "frame.jpg").write_bytes(b"secret picture")
    run, linked = served.folder / "a", served.folder / "b"
    (served.folder / "link").symlink_to(secret / "c")
    (linked / "live").symlink_to(secret)
    (linked / "videos").mkdir()
    (linked / "videos" / "link.mp4").symlink_to(secret / "frame.jpg")
    (linked / "summary.json").unlink()
    (linked / "summary.json").symlink_to(secret / "c" / "summary.json")
    (linked / "metrics" / "evaluator-0.jsonl").unlink()
    (linked / "metrics" / "evaluator-0.jsonl").symlink_to(
        secret / "c" / "metrics" / "evaluator-0.jsonl"
    )
    a, b = StoredRun(run).id, StoredRun(linked).id
    names = [row["name"] for row in json.loads(served.ask("/api/runs")[2])["runs"]]
    assert sorted(names) == ["a", "b"], "a link out of the folder is no run"
    bad = ["../config.json", "..", ".", "/etc/passwd", "....//etc/passwd", "first.mp4/../x", "x\0y"]
    bad += [
        "config.json",
        "frame.jpg;.js",
        "..;/x",
        "\u2024\u2024/etc/passwd",
        "link.mp4",
        "a",
        "a/../a",
    ]
    for name in bad:
        for text in (name, quote(name, safe=""), quote(quote(name, safe=""), safe="")):
            if "\0" in text or not text.isascii():
                continue
            for path in (
                f"/static/{text}",
                f"/api/runs/{text}",
                f"/api/runs/{a}/videos/{text}",
                f"/api/runs/{b}/videos/{text}",
                f"/api/runs/{text}/frame",
                f"/{text}",
            ):
                status, _, body = served.ask(path)
                assert status in (400, 404) or path in ("/.", "/..", "/a"), (path, status)
                assert b"root:" not in body
    assert served.ask(f"/api/runs/{b}/frame")[0] == 404
    assert json.loads(served.ask(f"/api/runs/{b}/curve")[2])["curve"] == []


# S08: strict headers; what a run says is data.


@pytest.mark.fault("S08")
def test_every_answer_has_the_strict_headers(served: Served) -> None:
    for path in [*served.paths(), "/nothing"]:
        _, headers, _ = served.ask(path)
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    page = served.ask("/")[2].decode()
    assert "<script>" not in page
    assert "http" not in page, "everything the page needs is here"


@pytest.mark.fault("F78")
@pytest.mark.fault("S08")
def test_hostile_values_come_as_bounded_plain_json(served: Served) -> None:
    run = make_run(served.folder, "<img src=x onerror=alert(1)>")
    deep: Any = "x"
    for _ in range(50):
        deep = [deep]
    (run / "status.json").write_text('{"state": "\\u001b[31m", "progress": 7, "pids": "x"}')
    write(run / "summary.json", {"best_return": "<b>", "x": "y" * 10**6, "deep": deep})
    (run / "metrics" / "learner-0.jsonl").write_text(
        '{"time_s": NaN, "env_steps": 1, "updates": 1, "train/<script>": Infinity, "train/x": 1e400}\n'
        + '{"time_s": 1, "big": "'
        + "z" * 10**6
        + '"}\n[1]\n{"time_s": 2, "env_steps": 1, "updates": 1, "train/y": 3}\nnot json\n'
    )
    append(run, "supervisor-0", {"time_s": 1, "event": "<script>alert(1)</script>\u001b[2J"})
    status, headers, body = served.ask("/api/runs")
    assert (status, headers["content-type"]) == (200, "application/json")
    row = next(r for r in json.loads(body)["runs"] if r["name"].startswith("<img"))
    assert row["state"] == " [31m"
    stream = first_message(served, StoredRun(run).id)
    assert b"NaN" not in stream
    assert b"\x1b" not in stream
    assert len(stream) < 100_000
    told = json.loads(stream)
    assert told["tables"]["learner-0"]["columns"][-1] == "train/y"
    assert told["notes"][0]["event"] == "<script>alert(1)</script> [2J"


def first_message(served: Served, run: str) -> bytes:
    """What a page is told when it begins to listen."""
    with socket.create_connection(("127.0.0.1", served.access.port), 10) as sock:
        sock.sendall(request(served, f"/api/runs/{run}/events"))
        data = b""
        while data.count(b"\n\n") < 1:
            data += sock.recv(65536)
    return data.partition(b"data: ")[2].partition(b"\n\n")[0]


def request(served: Served, path: str, more: str = "") -> bytes:
    token = f"Authorization: Bearer {served.access.token}\r\n"
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{token}{more}\r\n".encode()


# S09: nobody can fill the memory or hold the connections.


def until_closed(sock: socket.socket, part: bytes, most: int) -> int:
    """Send again and again until the server has had enough; returns the bytes it took."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < most:
            sock.sendall(part)
            sent += len(part)
    return sent


@pytest.mark.fault("S09")
def test_bodies_and_headers_are_capped(served: Served) -> None:
    before = psutil.Process().memory_info().rss
    for verb, status in (("POST", b"405"), ("GET", b"413")):
        with socket.create_connection(("127.0.0.1", served.access.port), 10) as sock:
            sock.sendall(
                request(served, "/", "Content-Length: 1000000000\r\n").replace(
                    b"GET", verb.encode()
                )
            )
            assert sock.recv(65536).split()[1] == status
            assert until_closed(sock, bytes(1 << 20), 1 << 30) < 100 << 20
    with socket.create_connection(("127.0.0.1", served.access.port), 10) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert until_closed(sock, b"X-Filler: 0123456789abcdef\r\n" * 64, 100 << 20) < 8 << 20
    assert psutil.Process().memory_info().rss - before < 100 << 20
    assert served.ask("/")[0] == 200


@pytest.mark.fault("S09")
def test_who_does_not_ask_in_time_is_dropped(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_LIMIT_S", 0.4)
    for first in (b"", request(served, "/api/runs")):  # new, and kept alive after an answer
        with socket.create_connection(("127.0.0.1", served.access.port), 10) as sock:
            sock.sendall(first)
            if first:
                assert b"200 OK" in sock.recv(65536)
            assert eventually(lambda s=sock: refuses(s)), "byte by byte is too slow"


def refuses(sock: socket.socket) -> bool:
    """Whether the other side takes not even one byte more."""
    try:
        sock.sendall(b"G")
    except OSError:
        return True
    return False


@pytest.mark.fault("S09")
def test_connections_are_counted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 5)
    held = [socket.create_connection(("127.0.0.1", served.access.port), 10) for _ in range(5)]
    with contextlib.ExitStack() as stack:
        for sock in held:
            stack.enter_context(sock)
        with pytest.raises((OSError, http.client.HTTPException)):
            served.ask("/")
    assert eventually(lambda: served.ask("/")[0] == 200)


@pytest.mark.fault("F76")
@pytest.mark.fault("S09")
def test_a_page_that_never_reads_is_dropped_and_others_are_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SEND_LIMIT_S", 0.5)
    monkeypatch.setattr(events, "KEEPALIVE_EVERY_S", 0.2)
    monkeypatch.setattr(events, "MAX_PAGES", 2)
    columns = {f"train/{i}": float(i) for i in range(80)}
    run = make_run(served.folder, "long", num=2500, extra=columns)
    path = f"/api/runs/{StoredRun(run).id}/events"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", served.access.port))
        deaf.sendall(request(served, path))
        assert eventually(lambda: served.page.events.num_pages == 1)
        assert len(first_message(served, StoredRun(run).id)) > 1 << 20, "others are told everything"
        assert eventually(lambda: served.page.events.num_pages == 0), (
            "the one that does not read is let go"
        )
    listeners = [socket.create_connection(("127.0.0.1", served.access.port)) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for sock in listeners:
            stack.enter_context(sock)
            sock.sendall(request(served, path))
        assert eventually(lambda: served.page.events.num_pages == 2)
        assert served.ask(path)[0] == 503, "there is a limit to pages"


def eventually(condition: Any, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if condition():
                return True
        time.sleep(0.05)
    return False


# S10: what goes wrong inside stays inside.


@pytest.mark.fault("S10")
def test_an_error_inside_is_not_shown(
    served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Any:
        raise RuntimeError("secret path /home/user")

    monkeypatch.setattr(served.page.index, "runs", fail)
    status, _, body = served.ask("/api/runs")
    assert status == 500
    assert body == b"Internal Server Error"
    assert served.ask("/")[0] == 200


# S25: whatever arrives, the next request is served.

TOKEN = new_token()
TEXT = st.text(st.characters(max_codepoint=255), max_size=60)
HEADER = st.sampled_from(
    ["host", "origin", "cookie", "authorization", "sec-fetch-site", "content-length", "range"]
)
TARGET = st.one_of(
    TEXT,
    st.builds(
        "/{}?{}".format,
        st.text("./%2eE5fc;\\abi0", max_size=40),
        st.text("token=&%;0f[]", max_size=30),
    ),
)


@pytest.mark.fault("S25")
@given(
    st.sampled_from(METHODS),
    TARGET,
    TEXT,
    st.dictionaries(HEADER, TEXT),
    st.sampled_from(["", "?"]),
)
def test_no_header_or_query_gets_past_the_token(
    method: str, path: str, query: str, headers: dict[str, str], host: str
) -> None:
    access = Access(1234, TOKEN)
    given_headers = headers if host else headers | {"host": "127.0.0.1"}
    refusal = access.refuse(method, path, query.encode("latin-1"), given_headers)
    assert refusal is not None
    assert refusal[0] in (403, 405, 413)
    assert TOKEN not in refusal[1]


@pytest.mark.fault("S07")
@pytest.mark.fault("S25")
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    target=TARGET, more=st.lists(st.tuples(HEADER, TEXT), max_size=4), raw=st.binary(max_size=60)
)
def test_random_requests_never_break_the_server(
    served: Served, target: str, more: list[tuple[str, str]], raw: bytes
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in more)
    for sent in (raw, request(served, "/x").replace(b"/x", target.encode("latin-1")) + raw):
        with socket.create_connection(("127.0.0.1", served.access.port), 10) as sock:
            sock.sendall(sent.replace(b"\r\n\r\n", b"\r\n" + lines.encode("latin-1") + b"\r\n"))
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := sock.recv(65536):
                    answer += part
        assert b"Traceback" not in answer
        assert b"root:" not in answer
        assert not re.match(rb"HTTP/1.1 5\d\d", answer), answer
    assert served.ask("/")[0] == 200
