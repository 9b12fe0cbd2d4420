#!/usr/bin/env bash
# The library where TensorFlow Federated is not: for each version of Python a fresh environment in .venvs/, a plain
# `pip install` of what git tracks, a run from the command line, and tests of what was installed.
#   tests/environments.sh [arguments of pytest]         such as -m "not deep", or tests/layers
#   VERSIONS="3.12" tests/environments.sh ...           of some versions only
# make test proves requirements/py312.lock; this proves what pip resolves by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
# Of the extra dev what tests import; the rest checks types, formats and builds pages, the same on every version.
PACKAGES="hypothesis kdepy pytest pytest-benchmark pytest-timeout pytest-xdist"
# What depends most on TensorFlow, Keras and NumPy, for minutes: left out are the deep tests, data, plots, servers, weightings, the clients'
# and the algorithms' own tests, the command line's but for a run, fuzzing, studies and notebooks. Name them to run them.
SOME="tests/layers tests/posterior tests/models/test_builders.py tests/weights/test_functional_call.py tests/evaluation
    tests/rules/test_contract.py tests/files tests/export/test_saved_model.py tests/export/test_tflite.py
    tests/federated/test_local.py tests/test_keras.py"

find_python() {
    "python$1" -c "" 2>/dev/null && echo "python$1" && return
    ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python 2>/dev/null | sort -V | tail -n 1 | grep . ||
        { echo "There is no Python $1: install it, or leave it out with VERSIONS=..." >&2; return 2; }
}

check() {
    local version=$1 folder=$PWD/.venvs/$1 python
    shift
    python=$(find_python "$version")
    rm -rf "$folder"
    "$python" -m venv "$folder"
    mkdir "$folder/src"
    git ls-files -z --deduplicate | xargs -0 cp --parents -t "$folder/src"
    cd "$folder/src"
    # shellcheck disable=SC2086
    "$folder/bin/pip" install --quiet --disable-pip-version-check . $PACKAGES
    echo "installed, after $SECONDS s"
    rm -rf tfp_bfl build  # so that what is tested is what was installed
    ! "$folder/bin/python" -c "import tensorflow_federated" 2>/dev/null || { echo "TFF is there"; return 1; }
    "$folder/bin/tfp-bfl" doctor
    "$folder/bin/tfp-bfl" run --rounds 2 --output "$folder/run"
    test -s "$folder/run/report.html"
    echo "a run and its report, after $SECONDS s"
    "$folder/bin/python" -m pytest -q -p no:cacheprovider "$@"
    echo "tested, after $SECONDS s"
}

[ "${1:-}" != --functions ] || return 0  # For tests/wheel.sh.
if [ "${1:-}" = --one ]; then
    check "${@:2}"
    exit
fi
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- -m "not tff and not deep" $SOME
mkdir -p .venvs
declare -A started
for version in ${VERSIONS:-3.11 3.12 3.13}; do
    "$0" --one "$version" "$@" >".venvs/$version.log" 2>&1 &
    started[$version]=$!
done
failed=0
for version in "${!started[@]}"; do
    wait "${started[$version]}" || { failed=1; cat ".venvs/$version.log"; }
    echo "Python $version: $(grep -E ", after [0-9]+ s$| passed| failed" ".venvs/$version.log" | tr '\n' ';')"
done
exit $failed
