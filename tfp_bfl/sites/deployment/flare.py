"""Carriers of messages over NVIDIA FLARE: `Server` at the server, `Site` at each site, without arithmetic.

A job is JSON that names these two classes, and carries no code. The content of a message is bytes, which this library
writes and checks.
"""

import functools
import io
import pathlib
import queue
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, cast

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.widgets.info_collector import InfoCollector
from rich.console import Console

from tfp_bfl.app.one_run.run_folder import reporter
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.sites.deployment import channel
from tfp_bfl.sites.deployment.attendance import Submission
from tfp_bfl.sites.deployment.glm_site import GlmSite
from tfp_bfl.sites.deployment.jobs import check_name
from tfp_bfl.sites.deployment.server import serve
from tfp_bfl.sites.deployment.site import Site as Answers

_CONTENT, _REFUSED, _SECONDS = "content", "refused", "seconds"
_MOST_SECONDS, _POLL = 1e7, 0.2
_TO_BEGIN = 60.0  # Smallest deadline in seconds for a site to begin a run: it builds and traces a model.
_MOST_LINES = 200  # Lines about a run that are stored for the administrator.


class _Aborted(Error):
    """The administrator, or FLARE because a process died, ended the job."""


class _Lines(io.TextIOBase):
    """The lines about a run: written to the server's output, and stored for the administrator."""

    def __init__(self) -> None:
        self._every: list[str] = []

    def write(self, text: str) -> int:
        """Store and write lines of text."""
        self._every += filter(None, text.splitlines())
        return sys.stdout.write(text)

    def flush(self) -> None:
        """Flush the server's output."""
        sys.stdout.flush()

    def last(self) -> dict[str, Any]:
        """Return the last lines, and the number of lines before them."""
        every = self._every[:]
        return {"before": max(0, len(every) - _MOST_LINES), "lines": every[-_MOST_LINES:]}


class Server(Controller):
    """FLARE controller that runs a federation in the server's process of a job.

    `name`, `options`, `quorum` and `deadline` are those of `submit.submit`; `how` has `secure_sums`, `max_examples`,
    `without`, `again` and `command` of `attendance.Submission`.
    """

    def __init__(self, name: str, options: dict[str, Any], quorum: int, deadline: float, **how: Any):
        super().__init__()
        self._lines = _Lines()
        self._arguments, self._how = (name, options, quorum, deadline), how

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: there is nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: there is nothing to clear."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Add the lines about the run to FLARE's statistics on request."""
        super().handle_event(event_type, fl_ctx)
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR).set_info(channel.PROGRESS, self._lines.last())

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the federation and copy the folder of the run to the result."""
        name, options, quorum, deadline = self._arguments
        workspace = fl_ctx.get_engine().get_workspace()
        counted = channel.Counted(_Channel(self, fl_ctx, abort_signal, deadline))
        result = pathlib.Path(workspace.get_run_dir(fl_ctx.get_job_id())) / "run"
        try:
            console = Console(file=cast(IO[str], self._lines), force_terminal=False, width=200)
            with reporter(console, "lines", int(options.get("rounds", 0))) as progress:
                folder = pathlib.Path(workspace.get_root_dir()) / channel.RUNS / check_name(name)
                done = serve(options, Submission(name, folder, counted, quorum, progress, **self._how))
            # The administrator downloads the run without its checkpoints.
            shutil.copytree(done, result, ignore=shutil.ignore_patterns("checkpoints"))
        except _Aborted:
            self.log_warning(fl_ctx, "The job was aborted. The run can resume from its last checkpoint.")
        except Error as error:
            result.mkdir(parents=True, exist_ok=True)
            (result / channel.FAILURE).write_text(str(error), encoding="utf-8")
            self.system_panic(str(error), fl_ctx)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Ignore an answer after its deadline."""
        self.log_warning(fl_ctx, f"{client.name} answered {task_name} too late.")


class _Channel:
    """Channel (`channel.Channel`) over FLARE's tasks."""

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort: Signal, deadline: float):
        self._controller, self._fl_ctx, self._abort, self._deadline = controller, fl_ctx, abort, deadline

    @property
    def names(self) -> Sequence[str]:
        """The names of the sites that the job was deployed to."""
        return [client.name for client in self._fl_ctx.get_engine().get_clients()]

    def _pace(self, seconds: float) -> None:
        """Set how long sites wait before they ask for work again, `seconds` after the last message.

        FLARE's sites ask for work, every 2 s by default. Short waits after a message make rounds fast; longer ones
        spare the connection while sites train.
        """
        runner = self._fl_ctx.get_prop(FLContextKey.RUNNER)
        if runner is not None:
            wait = max(channel.SHORTEST_WAIT, channel.SHARE_WAITED * seconds)
            runner.config.task_request_interval = min(wait, channel.LONGEST_WAIT)

    def ask(self, task: str, what: Mapping[str, bytes]) -> Iterator[tuple[str, channel.Reply]]:
        """Implement `channel.Channel.ask`; a site that is not connected refuses."""
        last = time.monotonic()
        self._pace(0.0)
        there = set(self.names)
        asked = [name for name in what if name in there]
        yield from ((name, channel.Refusal("it is not connected")) for name in what if name not in there)
        came: queue.SimpleQueue[tuple[str, channel.Reply]] = queue.SimpleQueue()
        tasks, seconds = [], max(self._deadline, _TO_BEGIN) if task == channel.BEGIN else self._deadline
        for content in dict.fromkeys(what[name] for name in asked):
            shareable = Shareable()
            shareable[_CONTENT] = content
            received = functools.partial(_received, came.put)
            one = Task(task, shareable, timeout=int(seconds), result_received_cb=received)
            targets = [name for name in asked if what[name] == content]
            self._controller.broadcast(one, self._fl_ctx, targets, min_responses=len(targets))
            tasks.append(one)
        waiting = set(asked)
        while waiting:
            if self._abort.triggered:
                raise _Aborted("The job was aborted.")
            try:
                name, reply = came.get(timeout=_POLL)
            except queue.Empty:
                self._pace(time.monotonic() - last)
                if all(one.completion_status is not None for one in tasks) and came.empty():
                    return
                continue
            waiting.discard(name)
            last = time.monotonic()
            yield name, reply


def _received(put: Any, client_task: ClientTask, fl_ctx: FLContext) -> None:
    result = client_task.result
    content, refused, seconds = (result.get(part) for part in (_CONTENT, _REFUSED, _SECONDS))
    reply: Any
    if result.get_return_code() != ReturnCode.OK:
        reply = channel.Refusal(f"it failed ({result.get_return_code()})")
    elif refused is not None:
        reply = channel.Refusal(str(refused)[:500])
    elif not isinstance(content, bytes):
        reply = channel.Refusal("its answer is no bytes")
    else:
        reply = channel.Answer(content)
        reply.seconds = seconds if isinstance(seconds, float) and 0 <= seconds < _MOST_SECONDS else 0.0
    put((client_task.client.name, reply))
    client_task.result = None  # FLARE stores completed tasks for a while; the answers need not stay in memory.


class Site(Executor):
    """FLARE executor that answers the server's tasks at a site, by the file in the site's folder `local`."""

    _answers: Any = None
    _linear_model: Any = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Read the site's file and data when a job starts; errors are reported in the answers."""
        if event_type == EventType.START_RUN:
            folder = fl_ctx.get_engine().get_workspace().get_site_config_dir()
            self._linear_model = GlmSite(folder)
            try:
                self._answers = Answers(folder)
            except Error as error:
                self._answers = str(error)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Return the answer to a task, or the reason of a refusal."""
        started, reply = time.perf_counter(), Shareable()
        try:
            reply[_CONTENT] = self._answer(task_name, shareable.get(_CONTENT))
            if task_name in (channel.BEGIN, channel.TALK):
                self.log_info(fl_ctx, (self._answers if task_name == channel.BEGIN else self._linear_model).seen)
        except Error as error:
            why = error.at_site if isinstance(error, channel.Withheld) else error
            self.log_error(fl_ctx, f"{task_name} refused: {why}")
            reply[_REFUSED] = str(error)
        reply[_SECONDS] = time.perf_counter() - started
        self.log_info(fl_ctx, f"{task_name} took {reply[_SECONDS]:.2f} s")
        return reply

    def _answer(self, task: str, content: object) -> bytes:
        if not isinstance(content, bytes) or task not in channel.TASKS:
            raise InvalidArgument(f"The task {task!r} is none of {', '.join(channel.TASKS)}, or holds no bytes.")
        site = self._linear_model if task in (channel.TALK, channel.SUMS) else self._answers
        if isinstance(site, str):
            raise InvalidArgument(site)
        return site.reply(task, content)
