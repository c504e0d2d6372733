#!/bin/sh
# Make a virtual environment with this package: environment.sh DIRECTORY REQUIREMENT
set -eu
venv=$1
requirement=$2

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

if [ ! -x "$venv/bin/python" ] || ! usable "$venv/bin/python"; then
    found=
    for python in "${PYTHON:-python3}" python3.12 python3.11 python3.13 python3.10 python; do
        if usable "$python"; then found=$python; break; fi
    done
    if [ -z "$found" ]; then
        echo "Python 3.10 to 3.13 with venv and pip is needed; name it with PYTHON=/path/to/python" >&2
        exit 1
    fi
    echo "making an environment in $venv with $("$found" --version)"
    "$found" -m venv "$venv"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$requirement"
# Each process that a command starts would compile it anew where Python keeps no bytecode (PYTHONDONTWRITEBYTECODE).
"$venv/bin/python" -m compileall -q caramel
