#!/usr/bin/env bash
# The strategy for Flower and the program of docs/frameworks.md in an environment of their own, .venvs/flower: some 5 GB,
# as PyTorch comes with its libraries for GPUs.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/environments.sh
source tests/environments.sh --functions

folder=$PWD/.venvs/flower
rm -rf "$folder"
"$(find_python 3.12)" -m venv "$folder"
# shellcheck disable=SC2086
"$folder/bin/pip" install --quiet --disable-pip-version-check --editable ".[flower]" $PACKAGES torch
"$folder/bin/python" -m pytest -q -p no:cacheprovider tests/sites/interop
