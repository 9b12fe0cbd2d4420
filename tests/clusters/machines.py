"""Machines of a cluster on this one: each a network namespace with an address of its own, on a bridge of nothing else.

The programs that run in them can reach each other and no one besides: there is no route out.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tests.certificates import certify

NET = "10.77.0."
PORT = 6379


def addresses(number):
    return [f"{NET}{i + 1}" for i in range(number)]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def machines(number, prefix):
    """The names of namespaces; the bridge is in the first one."""
    names = [f"{prefix}{i}" for i in range(number)]
    try:
        for i, (name, address) in enumerate(zip(names, addresses(number))):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            if i == 0:
                ip("-n", name, "link", "add", "bridge", "type", "bridge")
                ip("-n", name, "link", "set", "bridge", "up")
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "bridge")
                continue
            ip("-n", name, "link", "add", "out", "type", "veth", "peer", "name", f"to{i}", "netns", names[0])
            ip("-n", name, "link", "set", "out", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "out")
            ip("-n", names[0], "link", "set", f"to{i}", "master", "bridge", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Cluster:
    """A head and nodes, each on a machine, with TLS and a token."""

    def __init__(self, names, folder):
        self.names, self.folder, self.started = names, folder, []
        # Of a short name, as paths of sockets must be.
        self.scratch = tempfile.mkdtemp(prefix="ray")
        self.addresses = addresses(len(names))
        certify(folder / "tls", self.addresses)
        (folder / "token").write_text("a" * 64)

    def environment(self, machine, token=True):
        kit = self.folder / "tls" / self.addresses[machine] / "startup"
        mode = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.folder / "token")} if token else {}
        return {
            **{name: x for name, x in os.environ.items() if not name.startswith("RAY_")},
            **mode,
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(kit / "client.crt"),
            "RAY_TLS_SERVER_KEY": str(kit / "client.key"),
            "RAY_TLS_CA_CERT": str(kit / "rootCA.pem"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def on(self, machine, *command, token=True, hidden=None):
        """A process on a machine, which does not see the folder `hidden`."""
        inside = ["ip", "netns", "exec", self.names[machine]]
        if hidden:
            inside += ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{hidden}" && exec "$@"', "sh"]
        log = open(self.folder / f"log-{machine}-{len(self.started)}", "wb")  # noqa: SIM115  (the process has it)
        process = subprocess.Popen(
            [*inside, *command],
            env=self.environment(machine, token),
            stdout=subprocess.PIPE if "-m" in command else log,
            stderr=log,
            start_new_session=True,
            text=True,
        )
        self.started.append(process)
        return process

    def head(self):
        ray = str(pathlib.Path(sys.executable).parent / "ray")
        more = f"--head --port={PORT} --include-dashboard=false --temp-dir={self.scratch}"
        return self.on(
            0, ray, "start", "--block", "--num-cpus=0", f"--node-ip-address={self.addresses[0]}", *more.split()
        )

    def node(self, machine, hidden=None):
        ray = str(pathlib.Path(sys.executable).parent / "ray")
        more = f"--address={self.addresses[0]}:{PORT} --node-ip-address={self.addresses[machine]}"
        return self.on(machine, ray, "start", "--block", "--num-cpus=1", *more.split(), hidden=hidden)

    def nodes(self, hidden=None):
        """One on each machine but the first, one after another: two at once hinder each other on one machine.

        Args:
          hidden: a folder that the last one does not see.
        """
        found = []
        for machine in range(1, len(self.names)):
            found.append(self.node(machine, hidden if machine == len(self.names) - 1 else None))
            self.wait(machine)
        return found

    def wait(self, nodes):
        """Until so many nodes have come to the head."""
        ask = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print(len(ray.nodes()))"
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            process = self.on(0, sys.executable, "-c", ask, f"{self.addresses[0]}:{PORT}", "-m")
            try:
                found = process.communicate(timeout=60)[0].split()
            except subprocess.TimeoutExpired:
                kill(process, signal.SIGKILL)
                continue
            if found and int(found[-1]) > nodes:
                return
            time.sleep(2)
        raise TimeoutError(f"{nodes} nodes did not come: see {self.folder}")

    def stop(self):
        for process in reversed(self.started):
            kill(process, signal.SIGTERM)
        deadline = time.monotonic() + 20
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            kill(process, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)


def kill(process, how):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def bytes_of(name, link):
    """What has gone out of a link of a machine, and come in."""
    folder = f"/sys/class/net/{link}/statistics"
    told = subprocess.run(
        ["ip", "netns", "exec", name, "cat", f"{folder}/tx_bytes", f"{folder}/rx_bytes"],
        check=True,
        capture_output=True,
        text=True,
    )
    return tuple(map(int, told.stdout.split()))
