#!/bin/sh
# Build Horovod with Gloo in an environment of its own, for the benchmarks against it: horovod.sh DIRECTORY
#
# Its last release (0.28.1) works with TensorFlow up to 2.13, thus Python up to 3.11, and needs a C++ compiler.
set -eu
venv=$1
horovod=0.28.1
tensorflow=2.13.1

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 11))' 2>/dev/null
}

if [ ! -x "$venv/bin/python" ] || ! usable "$venv/bin/python"; then
    found=
    for python in "${PYTHON:-python3}" python3.11 python3.10 python3.9 python; do
        if usable "$python"; then found=$python; break; fi
    done
    if [ -z "$found" ]; then
        echo "Python 3.8 to 3.11 with venv and pip is needed for Horovod; name it with PYTHON=/path/to/python" >&2
        exit 1
    fi
    "$found" -m venv "$venv"
fi
python=$venv/bin/python
if "$python" -c 'import horovod.tensorflow as hvd; assert hvd.gloo_built()' 2>/dev/null; then
    echo "Horovod is in $venv already"
    exit 0
fi
for compiler in "${CXX:-c++}" "${CC:-cc}"; do
    command -v "$compiler" >/dev/null || { echo "building Horovod needs $compiler: install a C and C++ compiler" >&2; exit 1; }
done
# Versions that its build knows; what it imports when it runs comes with them.
"$python" -m pip install --quiet --disable-pip-version-check "tensorflow-cpu==$tensorflow" 'setuptools<70' wheel \
    'cmake<4' cffi psutil cloudpickle packaging pyyaml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
    --dest "$work" "horovod==$horovod"
tar -xzf "$work"/horovod-*.tar.gz -C "$work"
(
    cd "$work/horovod-$horovod"
    PATH=$(cd "$OLDPWD" && cd "$venv/bin" && pwd):$PATH
    export PATH HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 \
        HOROVOD_WITHOUT_MPI=1
    python setup.py --quiet bdist_wheel >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log" >&2; exit 1; }
)
"$python" -m pip install --quiet --disable-pip-version-check --no-deps "$work/horovod-$horovod"/dist/*.whl
"$python" -c 'import horovod.tensorflow as hvd; assert hvd.gloo_built()'
echo "Horovod $horovod with Gloo and TensorFlow $tensorflow is in $venv"
