"""A run on a remote worker whose link is cut in its second round; run in a network namespace of its own by a test."""

import subprocess
import sys
import time

from tfp_bfl import federated
from tfp_bfl.engines.tff import remote_workers
from tfp_bfl.engines.tff.workers import Worker
from tfp_bfl.errors import WorkerError

from .test_restarts import CLIENTS, build

ADDRESS = "10.9.9.1"


def main():
    for command in ("link set lo up", f"addr add {ADDRESS}/32 dev lo"):
        subprocess.run(["ip", *command.split()], check=True)
    worker = Worker.start(2, own_network=False)
    port = worker.address.split(":")[1]

    def cut(row):
        # The address goes, and packets to it are lost without a word.
        for command in (f"addr del {ADDRESS}/32 dev lo", f"route add blackhole {ADDRESS}/32"):
            subprocess.run(["ip", *command.split()], check=True)
        main.cut = time.monotonic()

    try:
        with remote_workers([f"{ADDRESS}:{port}"], 2, heartbeat_seconds=3) as runtime:
            federated.simulate(build(), CLIENTS, 3, runtime=runtime, checkpoint_dir=sys.argv[1], on_round=cut)
    except WorkerError as error:
        print(f"after {time.monotonic() - main.cut:.0f} s: {error}")
    finally:
        worker.stop()


if __name__ == "__main__":
    main()
