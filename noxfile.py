"""Tasks that are rarer than those of the Makefile: `.venv/bin/nox --list`, `.venv/bin/nox -s mutants -- --sample 50`.

They run in .venv, which `make demo` or `make test` makes, unless they say otherwise.
"""

import pathlib
import re
import shutil
import sys

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "none"
nox.options.sessions = []
PYTHON = sys.executable
PYTEST = (PYTHON, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")


@nox.session(name="test-seeds")
def test_seeds(session: nox.Session) -> None:
    """Run the fast tests under ten base seeds, or those given: ten times as long as `make test`."""
    seeds = session.posargs or [str(seed) for seed in range(10)]
    failed = []
    for seed in seeds:
        try:
            session.run(*PYTEST, "-m", "not deep", f"--base-seed={seed}")
        except CommandFailed:
            failed.append(seed)
    if failed:
        session.error(f"The fast tests failed under the base seeds {', '.join(failed)}.")


@nox.session(name="test-long")
def test_long(session: nox.Session) -> None:
    """Run the longest tests: hundreds of rounds, ResNet-20, cells of studies."""
    session.run(*PYTEST, "-m", "long", "--timeout=1800", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Try 10,000 new broken files for every reader, or as many as given."""
    inputs = session.posargs[0] if session.posargs else "10000"
    settings = {"TFP_BFL_FUZZ_NEW": "1", "TFP_BFL_FUZZ_INPUTS": inputs}
    session.run(PYTHON, "-m", "pytest", "-s", "--timeout=0", "tests/fuzz", env=settings)


@nox.session
def mutants(session: nox.Session) -> None:
    """Measure whether the tests notice 200 small faults of the arithmetic: `-- --sample N` for others."""
    session.run(PYTHON, "-m", "tests.mutants.run", "--jobs", "2", "--deep", *(session.posargs or ("--sample", "200")))


@nox.session
def notebooks(session: nox.Session) -> None:
    """Run the notebooks, and save them with their outputs."""
    session.run(PYTHON, "docs/execute_notebooks.py", *session.posargs)


@nox.session
def measured(session: nox.Session) -> None:
    """Measure the numbers and the picture of the documentation, and write them."""
    session.run(PYTHON, "docs/measure.py", *session.posargs)


@nox.session(name="docs-version")
def docs_version(session: nox.Session) -> None:
    """Build the site, copy it to build/site/VERSION, and let build/site lead to the version."""
    session.run("make", "docs", external=True)
    (version,) = re.findall(r"^version = (.+)$", pathlib.Path("setup.cfg").read_text(), re.MULTILINE)
    shutil.copytree("build/docs", f"build/site/{version}", dirs_exist_ok=True)
    page = pathlib.Path("docs/_root/index.html").read_text().replace("docs/index.html", f"{version}/docs/index.html")
    pathlib.Path("build/site/index.html").write_text(page)


@nox.session
def tables(session: nox.Session) -> None:
    """Build the tables and figures of the studies from their records."""
    session.run(PYTHON, "-m", "experiments.build_tables")


@nox.session
def sbom(session: nox.Session) -> None:
    """List what is installed, with licences: build/sbom.json (CycloneDX) and build/NOTICE."""
    folder = pathlib.Path(".venvs/sbom/bin")
    session.run(PYTHON, "-m", "venv", str(folder.parent))
    pip = (str(folder / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    session.run(*pip, "cyclonedx-bom==7.5.0", "pip-licenses==5.5.5")
    pathlib.Path("build").mkdir(exist_ok=True)
    report = ("environment", "--output-reproducible", "--output-file", "build/sbom.json", PYTHON)
    session.run(str(folder / "cyclonedx-py"), *report)
    form = ("--with-license-file", "--no-license-path", "--with-urls", "--format", "plain-vertical")
    session.run(str(folder / "pip-licenses"), "--python", PYTHON, *form, "--output-file", "build/NOTICE")


@nox.session
def environments(session: nox.Session) -> None:
    """Try the library without TensorFlow Federated, in fresh environments on Python 3.11 to 3.13."""
    session.run("tests/environments.sh", *session.posargs, external=True)


@nox.session
def wheel(session: nox.Session) -> None:
    """Try a wheel in fresh environments on Python 3.11 to 3.13."""
    session.run("tests/wheel.sh", external=True)


@nox.session(name="test-deployment")
def test_deployment(session: nox.Session) -> None:
    """Run a federation of processes in .venvs/deployment: its bits, and what kills and strangers come to."""
    session.run("make", "deployment", external=True)
    tests = ("tests/sites/test_ledger.py", "tests/sites/test_flare.py", "tests/sites/interop/test_flare.py")
    session.run(".venvs/deployment/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, external=True)


@nox.session(name="test-clusters")
def test_clusters(session: nox.Session) -> None:
    """Run Ray over network namespaces (as root) in .venvs/clusters: its bits, lost machines, strangers, unseen data."""
    python = ".venvs/clusters/bin/python"
    if not pathlib.Path(python).exists():
        session.run(PYTHON, "-m", "venv", ".venvs/clusters")
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
        session.run(*pip, "--require-hashes", "-r", "requirements/clusters.lock", external=True)
        session.run(*pip, "--no-build-isolation", "--editable", ".", external=True)
    session.run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/clusters", external=True)


@nox.session(name="test-flower")
def test_flower(session: nox.Session) -> None:
    """Run the strategy for Flower and its program, with PyTorch, in .venvs/flower."""
    session.run("tests/flower.sh", external=True)
