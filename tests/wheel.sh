#!/usr/bin/env bash
# A wheel and a source archive pass twine's check; the wheel, installed by pip in a fresh environment of each version of
# Python, gives a working tfp-bfl.
#   VERSIONS="3.12" tests/wheel.sh       of some versions only
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/environments.sh
source tests/environments.sh --functions

try() {
    local version=$1 wheel=$2 folder=$PWD/.venvs/wheel-$1
    rm -rf "$folder"
    "$(find_python "$version")" -m venv "$folder"
    "$folder/bin/pip" install --quiet --upgrade pip
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$wheel"
    cd "$folder"  # Where there is no source.
    bin/tfp-bfl doctor
    bin/tfp-bfl run --dataset digits --rounds 2 --hold-out 0.3 --output run
    bin/tfp-bfl calibrate run model --accuracy 0.6
    bin/tfp-bfl run --dataset diabetes --model mlp --rounds 2 --output numbers
    bin/tfp-bfl run --dataset breast_cancer --model mlp --rounds 2 --seeds 0..1 --output seeds
    bin/tfp-bfl runs .
    bin/python -c "import tfp_bfl as bfl; m = bfl.export.load('model'); print(m.predict(bfl.data.load('digits').features[:2])['entropy'])"
}

if [ "${1:-}" = --one ]; then
    try "${@:2}"
    exit
fi
mkdir -p .venvs
rm -rf .venvs/wheels
git ls-files -z --deduplicate | xargs -0 cp --parents -t "$(mkdir -p .venvs/wheels/src && echo .venvs/wheels/src)"
VERSIONS=${VERSIONS:-3.11 3.12 3.13}
"$(find_python "${VERSIONS%% *}")" -m venv .venvs/wheels/tools
.venvs/wheels/tools/bin/pip install --quiet --disable-pip-version-check build twine
.venvs/wheels/tools/bin/python -m build --outdir .venvs/wheels .venvs/wheels/src >/dev/null
.venvs/wheels/tools/bin/twine check --strict .venvs/wheels/*.whl .venvs/wheels/*.tar.gz
du -k .venvs/wheels/*.whl .venvs/wheels/*.tar.gz
wheel=$(ls "$PWD"/.venvs/wheels/*.whl)
for version in $VERSIONS; do
    SECONDS=0
    "$0" --one "$version" "$wheel" >".venvs/wheel-$version.log" 2>&1 || { cat ".venvs/wheel-$version.log"; echo "Python $version: failed"; exit 1; }
    echo "Python $version: $(basename "$wheel") works, after $SECONDS s"
done
