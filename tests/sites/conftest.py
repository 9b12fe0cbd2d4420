"""The fixtures of rounds, for sites."""

import pyarrow.csv
import pytest

from tests.federated.conftest import runtime, tff_runtime
from tests.glm.test_agreement import sites_of
from tests.sites.linear_models import SITES, WHOLE
from tfp_bfl.sites.deployment.demo import HOSPITALS, write_hospitals

__all__ = ["runtime", "tff_runtime"]


@pytest.fixture
def hospitals(tmp_path):
    """Folders of the hospitals of the demonstration, each with its rows."""
    for name in HOSPITALS:
        (tmp_path / name / "local").mkdir(parents=True)
    write_hospitals(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Folders of certificates of the sites of linear models."""
    from tests.certificates import certify

    folder = tmp_path_factory.mktemp("certificates")
    certify(folder, SITES)
    return folder


@pytest.fixture
def kits(tmp_path, certificates):
    """Kits of the sites of linear models, each with its rows."""
    for site, own in sites_of(WHOLE, "site").items():
        local = tmp_path / site / "local"
        local.mkdir(parents=True)
        pyarrow.csv.write_csv(own, local / "patients.csv")
        (local / "party.yaml").write_text("data: patients.csv\n")
        (tmp_path / site / "startup").symlink_to(certificates / site / "startup")
    return tmp_path
