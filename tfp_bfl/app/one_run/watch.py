"""The page of a run in progress, for the browser of this machine: read only, drawn anew when a round has ended."""

from __future__ import annotations

import functools
import http.server
import json
import pathlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from tfp_bfl.app.one_run.records import MOST_ROUNDS_BYTES, config_in, is_done, over_members, repeat, state_of
from tfp_bfl.app.options.resolve import title
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import name as path_name
from tfp_bfl.files import read_regular
from tfp_bfl.labels import duration, label_of

HOST = "127.0.0.1"
# Seconds after which a browser asks again.
REFRESH = 5
_RECENT = 10
_SHOWN = ("accuracy", "rmse", "test_nll", "nll", "epistemic", "aleatoric")


def rows_of(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the metrics of the rounds that have ended; the last line may be half-written."""
    path = folder / "metrics.jsonl"
    text = read_regular(path, "file of metrics", MOST_ROUNDS_BYTES).decode("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def page_of(folder: pathlib.Path) -> bytes:
    """Return the page of a run: its state, learning curve and last rounds; of a complete run its report."""
    if is_done(folder) and (folder / "report.html").exists():
        return (folder / "report.html").read_bytes()
    metrics = folder / "metrics.jsonl"
    stamp = metrics.stat().st_mtime_ns if metrics.exists() else 0
    return _drawn(folder, state_of(folder, config_in(folder)), stamp)


@functools.lru_cache(maxsize=1)
def _drawn(folder: pathlib.Path, state: str, stamp: int) -> bytes:
    import tfp_bfl as bfl
    from tfp_bfl.plots.page import About, Headline, Section, page_text, picture, table

    config, rows = config_in(folder), rows_of(folder)
    rounds, headlines = over_members(rows), [Headline("State", state, folder.name)]
    content = [Section("Settings", "Options of the run.", tables=[table("Settings", [], _options(config))])]
    if rows:
        last, recent, total = rows[-1], rows[-_RECENT:], config.rounds * (config.ensemble or 1)
        names = [name for name in _SHOWN if isinstance(last.get(name), (int, float))]
        headlines += [Headline(label_of(name), f"{last[name]:.3f}", "after the last round") for name in names[:3]]
        left = (total - len(rows)) * sum(row["seconds"] for row in recent) / len(recent)
        headlines.append(Headline("Time left", duration(left), "at the speed of the last rounds"))
        lines = [(str(row["round"]), [_number(row.get(name)) for name in (*names, "seconds")]) for row in recent]
        heads = ["round", *map(label_of, names), "seconds"]
        content = [
            Section("Learning curve", "Scores after each round.", [picture(bfl.plots.learning_curve(rounds))]),
            Section("Last rounds", "The last is at the bottom.", tables=[table("Last rounds", heads, lines)]),
            *content,
        ]
    about = About(str(config.dataset), command=repeat(folder, config))
    name = f"{folder.name}: {title(config, None)}"
    return page_text(name, about, content, headlines=headlines).encode("utf-8", "replace")


def _options(config: Any) -> list[tuple[str, list[str]]]:
    return [(label_of(name), [str(x)]) for name, x in config.recorded().items() if x is not None]


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else ""


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET / alone, for programs of this machine that name it: a page of another site cannot read it."""

    def __init__(self, folder: pathlib.Path, *request: Any) -> None:
        self._folder = folder
        super().__init__(*request)

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in (HOST, "localhost"):
            return self.send_error(HTTPStatus.FORBIDDEN)
        if self.path != "/":
            return self.send_error(HTTPStatus.NOT_FOUND)
        try:
            page = page_of(self._folder)
        except (InvalidArgument, OSError) as error:
            return self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Cache-Control", "no-store")
        if not is_done(self._folder):
            self.send_header("Refresh", str(REFRESH))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *message: object) -> None:
        """Print no line for each request."""


def watch(folder: pathlib.Path, port: int, begun: Callable[[str], None]) -> None:
    """Serve the page of a run at a port of this machine, 0 for a free one, until Ctrl-C; `begun` gets its address.

    Raises:
      InvalidArgument: the folder is not that of a run, or the port is in use.
    """
    if not (folder / "config.yaml").is_file():
        raise InvalidArgument(f"{path_name(folder)} is not the folder of a run: it has no config.yaml.")
    config_in(folder)
    try:
        server = http.server.ThreadingHTTPServer((HOST, port), functools.partial(_Handler, folder))
    except OSError as error:
        raise InvalidArgument(f"Port {port} is not free ({error.strerror}): give --port another, or none.") from None
    with server:
        begun(f"http://{HOST}:{server.server_port}/")
        server.serve_forever()
