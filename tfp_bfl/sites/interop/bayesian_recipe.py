"""The recipe that `interop.flare_recipe` returns, and its controller; importing it needs NVIDIA FLARE."""

import pathlib
from collections.abc import Sequence

from tfp_bfl.errors import MissingDependency
from tfp_bfl.files.arrays import write_arrays
from tfp_bfl.files.code import function_of, made_by
from tfp_bfl.sites.interop.frameworks import SERVER
from tfp_bfl.sites.interop.pooling import Answer, Server

try:
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.workflows.model_controller import ModelController
    from nvflare.fuel.utils.constants import FrameworkType
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.script_runner import ScriptRunner
    from nvflare.recipe.spec import Recipe
except ImportError as error:
    raise MissingDependency(
        "interop.flare_recipe needs NVIDIA FLARE, which is not installed: install it with pip install "
        "'nvflare>=2.9,<2.10'."
    ) from error

# The arrays that predict, in the job's folder at the server.
RESULT = "posterior.npz"
_CHECK_PERIOD = 0.05


class BayesianRecipe(Recipe):
    """Recipe of FLARE whose controller is `BayesianController`; see `interop.flare_recipe`."""

    def __init__(
        self, server: str, script: str, num_rounds: int, min_clients: int, train_args: str, timeout: int, name: str
    ):
        self.train_args = train_args
        file, _, function = server.rpartition(":")
        job = FedJob(name=name, min_clients=min_clients)
        job.to_server(BayesianController(f"{pathlib.Path(file).name}:{function}", num_rounds, min_clients, timeout))
        job.to_server(file)
        job.to_clients(ScriptRunner(script=script, script_args=train_args, framework=FrameworkType.NUMPY))
        super().__init__(job)


class BayesianController(ModelController):
    """FLARE controller that runs the rounds of a `Server` that are left of `num_rounds`.

    A round of fewer than `min_clients` answers, or without a valid one, counts as run and leaves the server as it is.
    `server` is FILE.py:FUNCTION, of a file of the job; the other arguments are those of `interop.flare_recipe`.
    """

    def __init__(self, server: str, num_rounds: int, min_clients: int, timeout: int = 0):
        super().__init__(persistor_id="", ignore_result_error=True, task_check_period=_CHECK_PERIOD)
        # FLARE writes the job's configuration from the attributes of the arguments' names.
        self.server, self.num_rounds, self.min_clients, self.timeout = server, num_rounds, min_clients, timeout

    def run(self) -> None:
        """Run the rounds, and write the arrays that predict to the job's folder."""
        workspace, job = self.engine.get_workspace(), self.fl_ctx.get_job_id()
        server = made(f"{pathlib.Path(workspace.get_app_custom_dir(job)) / self.server}")
        self.info(f"Rounds {server.round + 1} to {self.num_rounds}.")
        for _ in range(server.round, self.num_rounds):
            if self.abort_signal.triggered:
                return
            self._round(server)
        write_arrays(pathlib.Path(workspace.get_run_dir(job)) / RESULT, server.predictive)

    def _round(self, server: Server) -> None:
        of = {"current_round": server.round, "start_round": 0, "total_rounds": self.num_rounds}
        model = FLModel(params=server.arrays, params_type=ParamsType.FULL, **of)
        results = self.send_model_and_wait(data=model, timeout=self.timeout)
        if len(results) < self.min_clients:
            self.warning(f"A round needs {self.min_clients} answers, but this one has {len(results)}: it is left out.")
            return
        metrics = server.next_or_warn(self._answers(results), self.warning)
        if metrics is not None:
            self.info(f"Round {server.round}: {metrics['num_clients']} clients, {metrics['num_examples']} examples.")

    def _answers(self, results: Sequence[FLModel]) -> list[Answer]:
        """Return the answers that are whole arrays."""
        answers = []
        for result in results:
            client = result.meta["client_name"]
            if result.params_type != ParamsType.FULL or not isinstance(result.params, dict):
                self.warning(f"The answer of client {client} is left out: it must hold whole arrays, no differences.")
                continue
            answers.append(Answer(client, result.meta.get("num_examples", -1), result.params))
        return answers


def made(server: str) -> Server:
    """Return the server that FILE.py:FUNCTION makes; what makes none is refused."""
    made: Server = made_by(function_of(server, SERVER), "server", (Server,), "an interop.Server")
    return made
