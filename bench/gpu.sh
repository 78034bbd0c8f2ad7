#!/usr/bin/env bash
# All that a machine with a GPU has to show, in under 8 minutes and without network: build, tests,
# compute-sanitizer, verify on the device, the rate of copies, overlap, the GPU's idle time in a
# ResNet-50 step with torch's loader and ours. Needs CUDA 13, Python 3.12, torch 2.11, CMake, ninja,
# pybind11 and the folder that bench/gpu_pack.sh makes elsewhere.
#
#   bash bench/gpu.sh [--dependencies DIR] [--out DIR] [--patience N]
#
# --dependencies  the packed folder; without it, what is installed
# --out           where gpu.json, gpu.png and the logs go; default: build/gpu/result
# --patience      multiplies the steps' time limits, for a machine that is slow or shared; default: 1
# Where there is no GPU, what needs one is skipped and named. Exit status 1 if a step failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
build=$root/build/gpu
out=$build/result
dependencies=
patience=1
while (($#)); do
  case $1 in
    --dependencies) dependencies=$(realpath "$2") ;;
    --out) out=$(realpath -m "$2") ;;
    --patience) patience=$2 ;;
    *) sed -n 's/^#   //p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
mkdir -p "$out"

python=${PYTHON:-python3}
cmake_options=()
if [[ -n $dependencies ]]; then
  usr=$dependencies/sysroot/usr
  if [[ ! -x $build/venv/bin/python ]]; then
    "$python" -m venv --system-site-packages --without-pip "$build/venv"
  fi
  # Beside torch, not over it; pip may be missing, and a wheel is a zip file.
  "$build/venv/bin/python" - "$dependencies/wheels" <<'EOF'
import pathlib, sys, sysconfig, zipfile
for wheel in sorted(pathlib.Path(sys.argv[1]).glob("*.whl")):
    zipfile.ZipFile(wheel).extractall(sysconfig.get_path("purelib"))
EOF
  python=$build/venv/bin/python
  export LD_LIBRARY_PATH=$usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PATH=$usr/bin:$PATH
  export PKG_CONFIG_SYSROOT_DIR=$dependencies/sysroot
  export PKG_CONFIG_LIBDIR=$usr/lib/x86_64-linux-gnu/pkgconfig:$usr/share/pkgconfig
  cmake_options+=(-DCMAKE_PREFIX_PATH="$usr" -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu)
fi
export PATH=$PATH:/usr/local/cuda/bin

exec "$python" bench/gpu.py --build "$build" --out "$out" --patience "$patience" -- \
  -DPython_EXECUTABLE="$(command -v "$python")" "${cmake_options[@]}"
