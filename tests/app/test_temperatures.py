"""The posterior temperature of `laplace` and `last-layer`: by held-out rows, else a default; stated in every record."""

import pytest

import tfp_bfl as bfl
from tests.app.test_laplace import RUN
from tests.app.test_revise import run
from tests.kit import call, summary_of
from tfp_bfl.app.one_run.after import GRID

pytestmark = pytest.mark.cpu_seconds(30)  # two runs serve the tests of the file


@pytest.fixture(scope="module", params=[None, 0.3])
def averaged(request, tmp_path_factory):
    hold_out = [] if request.param is None else ["--hold-out", str(request.param)]
    folder = tmp_path_factory.mktemp("runs") / "averaged"
    return run([*RUN.split(), "--num-samples", "4", *hold_out], folder), bool(hold_out)


@pytest.mark.parametrize("command", ["laplace", "last-layer"])
def test_the_temperature_is_chosen_and_stated(averaged, command, tmp_path, capsys):
    folder, has_rows = averaged
    assert call(command, folder, "--output", tmp_path / "chosen") == 0
    found, out = summary_of(tmp_path / "chosen"), capsys.readouterr().out
    assert f"posterior temperature {found['temperature']:g}: {found['temperature_by']}" in out
    if has_rows:
        assert found["temperature"] in GRID and "held-out rows" in found["temperature_by"]
    else:
        assert found["temperature"] == 0.01 and "no held-out rows" in found["temperature_by"]
    info = bfl.export.read_info(tmp_path / "chosen" / "saved_model").configuration
    assert info["temperature"] == found["temperature"] and info["temperature_by"] == found["temperature_by"]
    assert found["temperature_by"] in (tmp_path / "chosen" / "saved_model" / "model_card.md").read_text()


def test_the_mode_of_a_last_layer_does_not_depend_on_the_temperature(averaged, tmp_path):
    folder, has_rows = averaged
    if has_rows:
        return
    found = {}
    for temperature in (0.01, 1.0):
        output = tmp_path / str(temperature)
        assert call("last-layer", folder, "--temperature", temperature, "--output", output) == 0
        found[temperature] = summary_of(output)
        assert found[temperature]["temperature_by"] == "given"
    for name in ("prior_stddev", "log_marginal_likelihood", "effective_parameters"):
        assert found[0.01][name] == found[1.0][name]
    assert found[0.01]["epistemic"] < found[1.0]["epistemic"]
