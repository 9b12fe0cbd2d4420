"""Time rounds of pfl-research with the TensorFlow backend, in one process or in several that share the clients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import arguments


def main() -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("--workers", type=arguments.at_least(1), default=1, metavar="W", help="processes")
    parser.add_argument("--cohort", type=arguments.at_least(1), metavar="C", help="clients a round; all if not given")
    options = parser.parse_args()
    clients = arguments.load(options)
    cohort = options.cohort or len(clients)
    if not options.workers <= cohort <= len(clients):
        arguments.refuse(
            f"{options.workers} workers can't share cohorts of {cohort} of {len(clients)} clients: each needs one."
        )
    stdout = arguments.keep_stdout_clean()
    others = _start_others(options.workers) if "PFL_WORKER_RANK" not in os.environ else []
    try:
        import pfl_client  # here, after the check of the arguments and the workers' variables, for it loads TensorFlow

        result = pfl_client.train(options, clients)
        for process in others:
            process.wait(timeout=60)
    finally:
        for process in others:
            process.kill()
    if os.environ.get("PFL_WORKER_RANK", "0") == "0":
        arguments.report(
            stdout,
            options,
            clients,
            peer="pfl" if options.workers == 1 else f"pfl, {options.workers} workers",
            distribution="pfl",
            clock=result.clock,
            peak=result.peak,
            final_nll=result.total_nll / (cohort * float(clients.sizes.mean())),
            cohort=options.cohort,
        )


def _start_others(workers: int) -> list[subprocess.Popen]:
    """Start all workers but the first, which is this process, with an equal share of the cores each.

    pfl finds out from its environment who takes part: every worker runs the same program.
    """
    if workers == 1:
        return []
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    os.environ |= {
        "PFL_WORKER_ADDRESSES": ",".join(f"localhost:{port}" for port in _free_ports(workers)),
        "PFL_WORKER_RANK": "0",
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": threads,
    }
    command = [sys.executable, *sys.argv]
    return [subprocess.Popen(command, env={**os.environ, "PFL_WORKER_RANK": str(i)}) for i in range(1, workers)]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    main()
