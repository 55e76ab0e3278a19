#!/bin/sh
# Makes /tools, a virtual environment with uv and hatchling. Argument: its lock.
set -eu
# shellcheck source=docker/build/ca.sh
. /build/ca.sh
python3 -m venv /tools
/tools/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check --require-hashes -r "$1"
cp /build/ca.sh /tools/ca.sh
