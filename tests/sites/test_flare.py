"""A federation of processes that NVIDIA FLARE connects, with certificates: `nox -s test-deployment`."""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import socket
import threading
import time

import numpy as np
import psutil
import pyarrow.csv
import pytest

pytest.importorskip("nvflare")

import tfp_bfl as bfl
from tests.kit import assert_same, json_of, lines_of, refuses, summary_of
from tests.sites.test_deployment import Channel, run
from tfp_bfl.errors import Error
from tfp_bfl.sites.arrays import NO_ANSWER
from tfp_bfl.sites.deployment.channel import RUNS
from tfp_bfl.sites.deployment.demo import HOSPITALS, running, start_process, write_hospitals
from tfp_bfl.sites.deployment.kits import SERVER, make_kits, start
from tfp_bfl.sites.deployment.submit import submit, write_job

pytestmark = [pytest.mark.timeout(900), pytest.mark.cpu_seconds(600)]
# The memories of the sites survive kills and restarts, too.
OPTIONS = {"model": "mlp", "algorithm": "partitioned_vi", "rounds": 6, "evaluate_every": 6}

LINEAR = {"outcome": "diagnosis", "family": "bernoulli", "event_value": ["malignant"], "prior_stddev": 2.5}
LINEAR |= {"only": ["mean radius", "mean texture"]}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Folders of everybody, all started, and the list of their processes."""
    kits = tmp_path_factory.mktemp("federation") / "kits"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    make_kits(kits, "localhost", port, HOSPITALS)
    write_hospitals(kits)
    with running([kits / name for name in (SERVER, *HOSPITALS)], port) as processes:
        for name in HOSPITALS:
            connected(kits / name, 1)
        yield kits, processes


def connected(kit, times):
    """Wait until a site has connected `times` times to the server, by its log."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        log = kit / "process.log"
        if log.exists() and log.read_text(errors="replace").count("Connected to server") >= times:
            return
        time.sleep(0.5)
    raise AssertionError(f"{kit.name} did not connect")


def submitted(kits, name, reported=None, secure_sums=False, deadline=60, **options):
    folder = kits.parent / f"result of {name}"
    lines = [] if reported is None else reported
    how = {"quorum": 2, "deadline": deadline, "progress": lines.append, "timeout": 120, "secure_sums": secure_sums}
    return submit(kits / "admin", name, {**OPTIONS, **options}, folder, **how)


def weights(folder):
    return [x.numpy() for x in bfl.export.load(folder / "saved_model").weights]


@pytest.fixture(scope="module")
def reference(federation, tmp_path_factory):
    """name -> the weights of the same run in this process, of the same data and secrets."""
    kits, _ = federation

    def of(name, options=OPTIONS, **how):
        here = tmp_path_factory.mktemp("reference")
        for hospital in HOSPITALS:
            shutil.copytree(
                kits / hospital / "local", here / hospital / "local", ignore=shutil.ignore_patterns("memory")
            )
            shutil.copytree(kits / hospital / "startup", here / hospital / "startup")
        return weights(run(here, Channel(here), name, options, **how))

    return of


@pytest.mark.parametrize(
    ("name", "options", "secure_sums"),
    [
        ("whole", {}, False),
        ("masked", {"algorithm": "variational"}, True),
        ("short", {"algorithm": "fed_opt", "compressor": "largest:0.01", "error_memory": True}, False),
    ],
)
def test_it_comes_to_the_bits_of_one_process(federation, reference, name, options, secure_sums):
    options = {**OPTIONS, **options}
    done = submitted(federation[0], name, **options, secure_sums=secure_sums)
    assert_same(weights(done), reference(name, options, secure_sums=secure_sums))
    assert set(summary_of(done)["parties"]) == set(HOSPITALS)
    if "compressor" in options:
        assert rows_of(done)[-1]["upload_bits"] < 0.1 * 3 * 32 * sum(x.size for x in weights(done))


def processes_of(kit, kind):
    """Return the processes of the server or a site of this folder, those of jobs and their children included."""
    wanted = [str(kit), kind]
    found = [p for p in psutil.process_iter(["cmdline"]) if all(x in " ".join(p.info["cmdline"] or []) for x in wanted)]
    return [*found, *(child for p in found for child in p.children(recursive=True))]


def job_process_of(kit):
    return processes_of(kit, "worker_process")[0]


def kill(kit):
    """All of the server or of a site, as a power cut does."""
    for process in [p for kind in ("_train", "worker_process", "runner_process") for p in processes_of(kit, kind)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def rows_of(folder):
    return lines_of(folder / "metrics.jsonl")


def after(kits, name, rounds, goes_on=lambda: True):
    """Waits until a run has done so many rounds, or has ended."""
    lines = kits / SERVER / RUNS / name / "metrics.jsonl"
    end = time.monotonic() + 300
    while not (lines.exists() and len(lines.read_text().splitlines()) >= rounds):
        if time.monotonic() > end or not goes_on():
            return
        time.sleep(0.2)


def while_it_runs(kits, name, done, act, **how):
    """Submits a run, and does something after some of its rounds."""
    reported, found = [], []
    thread = threading.Thread(target=lambda: found.append(submitted(kits, name, reported, **how)))
    thread.start()
    after(kits, name, done, thread.is_alive)
    began = time.monotonic()
    act()
    thread.join(600)
    print(f"{name} ended {time.monotonic() - began:.0f} s after what happened to it")
    assert found, reported
    return found[0], reported


def test_a_killed_site_returns_and_the_run_ends_with_the_same_bits(federation, reference):
    kits, _ = federation
    done, reported = while_it_runs(kits, "killed", 2, lambda: job_process_of(kits / "west").send_signal(signal.SIGKILL))
    assert any("resumes from its last checkpoint" in line for line in reported)
    assert [row["num_faulty"] for row in rows_of(done)] == [0] * 6
    assert_same(weights(done), reference("killed"))
    # Rounds are reported as they come.
    assert sum(re.match(r"round 6/6 .*accuracy 0\.", line) is not None for line in reported) == 1


def test_a_server_that_is_killed_and_started_again_ends_the_run_with_the_same_bits(federation, reference):
    kits, processes = federation

    def cut():
        kill(kits / SERVER)
        processes.append(start_process(kits / SERVER))

    done, reported = while_it_runs(kits, "power", 2, cut)
    assert any("resumes from its last checkpoint" in line for line in reported), reported
    assert [row["round"] for row in rows_of(done)] == list(range(1, 7))
    assert_same(weights(done), reference("power"))


def test_who_is_silent_past_the_deadline_is_left_out_until_it_answers_again(federation):
    kits, _ = federation

    def pause():
        process = job_process_of(kits / "west")
        process.send_signal(signal.SIGSTOP)
        try:
            after(kits, "silent", 4)
        finally:
            process.send_signal(signal.SIGCONT)

    done, _ = while_it_runs(kits, "silent", 2, pause, deadline=12, rounds=12, evaluate_every=12)
    faults = [row["faulty_clients"] for row in rows_of(done)]
    assert {"2": NO_ANSWER} in faults and faults[0] == faults[-1] == {}
    assert summary_of(done)["accuracy"] > 0.8


def ended(kits, job):
    """What comes of a job that is not ours."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    session = new_secure_session("admin@federation.local", str(kits / "admin"), timeout=60)
    try:
        try:
            number = session.submit_job(str(job))
        except Exception as error:
            return str(error)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            status = str(session.get_job_meta(number).get("status"))
            if status.startswith("FINISHED"):
                return status
            time.sleep(1)
        return "RUNNING"
    finally:
        session.close()


def refused(kit, pattern):
    """Return whether a site's log has the text."""
    return re.search(pattern, (kit / "process.log").read_text(errors="replace"))


def test_a_class_that_is_not_on_a_sites_list_does_not_run(federation, tmp_path):
    kits, _ = federation
    job = write_job(tmp_path, "foreign", OPTIONS, 1, 30)
    path = job / "app" / "config" / "config_fed_client.json"
    path.write_text(
        path.read_text().replace("tfp_bfl.sites.deployment.flare.Site", "nvflare.app_common.np.np_trainer.NPTrainer")
    )
    assert ended(kits, job) not in ("FINISHED:COMPLETED", "RUNNING")
    for name in HOSPITALS:
        assert refused(kits / name, r"ComponentNotAuthorized: component not authorized: Component '[\w.]*NPTrainer'")


def test_a_job_with_code_in_it_is_refused(federation, tmp_path):
    kits, _ = federation
    job = write_job(tmp_path, "code", OPTIONS, 1, 30)
    (job / "app" / "custom").mkdir()
    marker = tmp_path / "it ran"
    (job / "app" / "custom" / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    assert ended(kits, job) == "FINISHED:FAILED_TO_RUN" and not marker.exists()
    # The server's own rule comes first; sites have the same in theirs.
    assert refused(kits / SERVER, "Failed to deploy app 'app': BYOC not permitted")
    rules = [json.loads((kits / name / "local" / "authorization.json").read_text()) for name in HOSPITALS]
    assert all(found["permissions"]["project_admin"]["byoc"] == "none" for found in rules)


def test_a_certificate_of_another_authority_is_refused_at_once(federation, tmp_path):
    """The administrator's and a site's; neither waits for a server that will not have it."""
    kits, _ = federation
    port = json.loads((kits / "admin" / "startup" / "fed_admin.json").read_text())["admin"]["port"]
    make_kits(tmp_path / "others", "localhost", port, ["north"])
    wanted = rf"The server at localhost:{port} belongs to another federation than this folder"
    with pytest.raises(Error, match=wanted):
        submit(tmp_path / "others" / "admin", "no", OPTIONS, tmp_path / "no", quorum=1, deadline=5, progress=print)
    refuses(wanted, start, tmp_path / "others" / "north")
    # Who has the server's authority by some other way, too.
    shutil.copy(kits / "north" / "startup" / "rootCA.pem", tmp_path / "others" / "north" / "startup")
    refuses(r"rejects this folder's certificate, which is from another authority", start, tmp_path / "others" / "north")
    assert not pathlib.Path(kits / SERVER / RUNS / "no").exists()


def test_a_host_that_is_gone_is_gone_without_and_has_a_place_when_it_is_back(federation):
    kits, processes = federation
    done, _ = while_it_runs(kits, "gone", 2, lambda: kill(kits / "west"), deadline=12)
    faults = [row["faulty_clients"] for row in rows_of(done)]
    assert set(faults[0]) | set(faults[1]) == set() and faults[-1].keys() == {"2"}, faults
    # A run that begins without it has its reason.
    done = submitted(kits, "absent", deadline=10, rounds=2, evaluate_every=2)
    reported = json_of(done / "parties.json")
    assert summary_of(done)["num_clients"] == 2
    assert "west" not in reported or "refused" in reported["west"]
    times = (kits / "west" / "process.log").read_text(errors="replace").count("Connected to server")
    processes.append(start_process(kits / "west"))
    connected(kits / "west", times + 1)
    done = submitted(kits, "back", rounds=2, evaluate_every=2)
    assert summary_of(done)["num_clients"] == 3


@pytest.mark.parametrize("secure_sums", [False, True])
def test_a_linear_model_is_that_of_all_tables(federation, secure_sums):
    kits, _ = federation
    name, lines = f"linear_{secure_sums}", []
    how = {"quorum": 3, "deadline": 60, "progress": lines.append, "secure_sums": secure_sums}
    done = submit(kits / "admin", name, {"glm": LINEAR}, kits.parent / name, **how)
    clients = []
    for hospital in HOSPITALS:
        table = pyarrow.csv.read_csv(kits / hospital / "local" / "patients.csv")
        features = np.stack([table[column].to_numpy() for column in LINEAR["only"]], 1)
        clients.append((features, np.array(table["diagnosis"].to_pylist()) == "malignant"))
    exact = bfl.glm.fit(clients, "bernoulli", prior_stddev=2.5)
    found = json_of(done / "posterior.json")
    np.testing.assert_allclose((found["mean"] - exact.mean) / exact.stddev, 0, atol=1e-8)
    assert found["messages"] == exact.messages and (done / "report.html").exists()
    assert "3 clients" in summary_of(done)["lines"][0] and lines
    assert (kits / "north" / "local" / "linear_models" / f"{name}.json").exists()
