#!/usr/bin/env bash
# Makes a Debian 12 (or its like) able to run headrace: system packages, a virtual environment with
# torch, and headrace itself, built from this tree. Does only what is missing; a second call takes
# about a second.
#
#   bash tests/setup.sh [--dev | --demo]
#
# --dev adds what the tests and checks need, --demo what examples/demo.sh needs.
# HEADRACE_VENV         environment to use, made if absent; default: .venv in the tree
# HEADRACE_TORCH        version of torch to install where there is none
# HEADRACE_TORCHVISION  the same for torchvision
# PYTHON                interpreter to make the environment with; default: python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
source tests/steps.sh

venv=${HEADRACE_VENV:-$root/.venv}
torch=${HEADRACE_TORCH:-2.14.1}
torchvision=${HEADRACE_TORCHVISION:-0.29.1}
base_python=${PYTHON:-python3}
extra=
packages=(
  g++ libjpeg62-turbo-dev libpng-dev libsimdjson-dev libtbb-dev liburing-dev nlohmann-json3-dev
  pkg-config
)
case ${1:-} in
  '') ;;
  --demo) extra='[demo]' ;;
  --dev)
    extra='[dev,ecosystem]'
    packages+=(
      catch2 ccache clang clang-format clang-tidy g++-aarch64-linux-gnu libclang-rt-14-dev
      qemu-user valgrind
    )
    ;;
  *) die "usage: bash tests/setup.sh [--dev | --demo]" ;;
esac
start_log "$root/build/log/setup.log"

# --- system packages

python_has() { "$base_python" -c "$1" >/dev/null 2>&1; }

is_installed() {
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

install_packages() {
  "${as_root[@]}" apt-get update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "$@"
}

command -v "$base_python" >/dev/null ||
  die "There is no $base_python. Install Python 3.10 or newer, or name one in PYTHON."
python_has 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "$("$base_python" --version) is too old: headrace needs 3.10. Name a newer one in PYTHON."
# Debian splits these off its own Python; other builds of Python bring them along.
python_has 'import ensurepip, venv' || packages+=(python3-venv)
python_has 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' ||
  packages+=(python3-dev)

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
  missing=()
  for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
  done
  if ((${#missing[@]})); then
    as_root=()
    if ((EUID != 0)); then
      command -v sudo >/dev/null ||
        die "Packages are missing and there is no sudo. As root: apt-get install ${missing[*]}"
      as_root=(sudo)
      sudo -v # asks for the password here, where the question can be seen
    fi
    remedy="apt-get needs the network and the Debian 12 archive, or install by hand: ${missing[*]}" \
      step "system packages: ${missing[*]}" install_packages "${missing[@]}"
  fi
else
  echo "No apt here. Taken for granted are the counterparts of: ${packages[*]}"
fi

# --- the environment

export PATH="$venv/bin:$PATH"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore
needs_network="pip needs its registry: check the network, or set PIP_INDEX_URL to a mirror."

# An interrupted call may have left an environment without pip: made anew, it is whole.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  step "virtual environment $venv" "$base_python" -m venv "$venv"
fi
"$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "The Python in $venv is older than 3.10: remove it, or name another in HEADRACE_VENV."

installed() {
  "$venv/bin/python" -c \
    'import sys, importlib.metadata as m; [m.version(name) for name in sys.argv[1:]]' "$@" 2>/dev/null
}

if ! installed torch torchvision; then
  remedy=$needs_network step "torch $torch, torchvision $torchvision (some 5 GB)" \
    "$venv/bin/python" -m pip install "torch==$torch" "torchvision==$torchvision"
fi

# --- headrace

sources_hash() {
  find CMakeLists.txt pyproject.toml README.md LICENSE loader bindings -type f \
    -not -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

build_tools() {
  "$venv/bin/python" -m pip install 'scikit-build-core>=0.10' 'pybind11>=2.11' 'cmake>=3.25' ninja
}

# One build folder per environment: CMake remembers where it found Python and pybind11.
build_and_install() {
  "$venv/bin/python" -m pip install --no-build-isolation --verbose \
    --config-settings=build-dir="build/python-$(cksum <<<"$venv" | cut -d ' ' -f 1)" ".$extra"
}

# One line for each extra that was installed along with these sources.
stamp=$venv/.headrace-sources
hash=$(sources_hash)
if ! installed headrace || ! grep -qsxF -- "$hash$extra" "$stamp"; then
  remedy=$needs_network step "build tools" build_tools
  grep -qsF -- "$hash" "$stamp" || rm -f "$stamp"
  step "headrace, built and installed into $venv" build_and_install
  step "import headrace" "$venv/bin/python" -c 'import headrace'
  echo "$hash$extra" >>"$stamp"
fi
echo "headrace is ready in $venv ($SECONDS s)"
