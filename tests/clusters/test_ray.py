"""Ray over machines with separate networks, TLS and a token: bits, a lost machine, an intruder, unseen data."""

import json
import os
import shutil
import signal
import subprocess
import time

import psutil
import pytest

import tfp_bfl as bfl
from tests.clusters.machines import PORT, Cluster, bytes_of, machines
from tests.clusters.run import digest, process_of

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="only root makes network namespaces"),
    pytest.mark.timeout(900),
]
ROUNDS = 6
# Of which a link's bytes are counted.
MEASURED = 20


def clients_of(copies):
    """Six clients; `copies` of each example."""
    source = bfl.data.load("digits")
    clients = source.partition(bfl.data.iid(6), seed=0)
    return bfl.data.Clients(source, [part[:60].repeat(copies) for part in clients.indices])


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The clients in files, and the run's digest in this process, its clients in as many sums."""
    folder = tmp_path_factory.mktemp("clients")
    files = bfl.data.write_clients(clients_of(1), folder / "seen")
    process = process_of(files)
    process.local.concurrent_calls = 2
    return files, digest(bfl.simulate(process, files, ROUNDS, engine="local").state)


@pytest.fixture
def cluster(tmp_path):
    with machines(3, f"bfl{os.getpid()}-") as names:
        found = Cluster(names, tmp_path)
        try:
            found.head()
            found.wait(0)
            yield found
        finally:
            found.stop()


def begin(cluster, files, rounds=ROUNDS, token=True):
    arguments = str(files.folder), f"{cluster.addresses[0]}:{PORT}", str(rounds)
    python = shutil.which("python", path=os.path.dirname(os.sys.executable))
    return cluster.on(0, python, "-m", "tests.clusters.run", *arguments, token=token)


def told(output):
    """What the run says, between what Ray does."""
    return [json.loads(line) for line in output if line.startswith("{")]


def first(run, number):
    """The first so many things that it says."""
    rows = []
    while len(rows) < number and (line := run.stdout.readline()):
        rows += told([line])
    return rows


def test_a_lost_machine_costs_time_and_no_bit(cluster, here):
    files, wanted = here
    nodes = cluster.nodes()
    run = begin(cluster, files)
    rows = first(run, 3)
    assert [row.get("round") for row in rows] == [1, 2, 3], rows
    time.sleep(rows[-1]["seconds"] / 3)
    raylets = [p for p in psutil.Process(nodes[1].pid).children(recursive=True) if p.name() == "raylet"]
    os.kill(raylets[0].pid, signal.SIGKILL)
    rows += told(run.stdout)
    print([round(row["seconds"], 1) for row in rows[:-1]])
    assert rows[-1] == {"digest": wanted}


def test_a_cut_machine_costs_time_and_no_bit(cluster, here):
    files, wanted = here
    cluster.nodes()
    run = begin(cluster, files)
    rows = first(run, 3)
    time.sleep(rows[-1]["seconds"] / 3)
    subprocess.run(["ip", "-n", cluster.names[2], "link", "set", "out", "down"], check=True)
    rows += told(run.stdout)
    print([round(row["seconds"], 1) for row in rows[:-1]])
    assert rows[-1] == {"digest": wanted}


def test_who_has_no_token_does_not_come_in(cluster, here):
    output = told(begin(cluster, here[0], token=False).stdout)[-1]
    assert output["error"].startswith("WorkerError: No Ray cluster can be joined at")


def test_data_that_a_machine_does_not_see(cluster, here):
    cluster.nodes(hidden=here[0].folder.parent)
    output = told(begin(cluster, here[0]).stdout)[-1]
    assert "InvalidArgument: The machine 10.77.0.3 of the cluster does not see the clients" in output["error"]


def test_bytes_do_not_grow_with_the_data(cluster, here, tmp_path):
    """A working machine's link carries a round's messages, and Ray's heartbeats as long as it lasts.

    Ten times the data would be 105 kB a round more there if its clients' examples were sent: a tenth of that is let go.
    """
    cluster.nodes()
    carried = lambda: sum(bytes_of(cluster.names[1], "out"))
    before = carried()
    time.sleep(20)
    heartbeats = (carried() - before) / 20
    print(f"{heartbeats / 1000:.2f} kB a second of heartbeats")
    large = bfl.data.write_clients(clients_of(10), tmp_path / "large")
    rates = []
    for files in (here[0], large):
        run = begin(cluster, files, rounds=MEASURED + 2)
        first(run, 2)
        before, began = carried(), time.monotonic()
        rows = first(run, MEASURED)
        seconds, sent = (time.monotonic() - began) / MEASURED, (carried() - before) / MEASURED
        rates.append(sent - heartbeats * seconds)
        print(f"{sent / 1000:.1f} kB and {seconds:.2f} s a round, {rates[-1] / 1000:.1f} kB without heartbeats")
        assert [row.get("round") for row in rows] == list(range(3, MEASURED + 3)), rows
        assert "digest" in told(run.stdout)[-1]
    more = (large.sizes.sum() - here[0].sizes.sum()) * 65 / 2
    assert abs(rates[1] - rates[0]) < more / 10
