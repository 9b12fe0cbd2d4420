"""The administrator's end of a run over sites: a server that does not answer, and the lines of one that does."""

import json
import socket
import sys
import types

import pytest

from tfp_bfl.errors import Error
from tfp_bfl.sites.deployment.submit import report_new, submit


def test_a_server_that_is_not_there_is_waited_for_and_named(tmp_path, monkeypatch):
    from tests.certificates import certify

    certify(tmp_path, ["admin"])
    kit = tmp_path / "admin"
    (kit / "tfp_bfl.json").write_text('{"role": "admin", "name": "admin", "host": "localhost"}')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {"admin": {"username": "admin", "host": "127.0.0.1", "port": port}}
    (kit / "startup" / "fed_admin.json").write_text(json.dumps(told))
    monkeypatch.setattr("tfp_bfl.sites.deployment.submit.check_installed", lambda: None)
    api = types.ModuleType("flare_api")
    api.new_secure_session = lambda *args, **kwargs: pytest.fail("nobody listens")
    monkeypatch.setitem(sys.modules, "nvflare.fuel.flare_api.flare_api", api)
    lines, how = [], {"quorum": 2, "deadline": 5, "timeout": 2}
    with pytest.raises(Error, match=rf"at 127.0.0.1:{port} can't be reached \(ConnectionRefusedError\): is it running"):
        submit(kit, "first", {"model": "mlp", "rounds": 2}, tmp_path / "first", progress=lines.append, **how)
    assert lines == [f"no server answers at 127.0.0.1:{port}; retrying for 2 s"]


def test_each_line_of_the_server_is_reported_once():
    lines = []
    known = report_new({"before": 0, "lines": ["one", "two"]}, 0, lines.append)
    known = report_new({}, known, lines.append)
    known = report_new({"before": 1, "lines": ["two", "three"]}, known, lines.append)
    known = report_new({"before": 4, "lines": ["five", "\x1b[2Jsix"]}, known, lines.append)
    assert lines == ["one", "two", "three", "five", r"'\x1b[2Jsix'"] and known == 6
