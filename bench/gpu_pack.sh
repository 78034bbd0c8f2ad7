#!/usr/bin/env bash
# Packs what bench/gpu.sh needs on a machine without network that has just CUDA 13, Python 3.12,
# torch 2.11, CMake, ninja and pybind11. Run it on a Debian 12 (or its like) where tests/setup.sh
# --dev has run; it needs the network for the wheels.
#
#   bash bench/gpu_pack.sh DIR
#
# DIR/sysroot  libraries and headers, from the installed packages
# DIR/wheels   Python packages
# At most 60 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
(($# == 1)) || { echo "usage: bash bench/gpu_pack.sh DIR" >&2; exit 2; }
out=$1
mkdir -p "$out/sysroot" "$out/wheels"

packages=(catch2 libjpeg62-turbo libjpeg62-turbo-dev libpkgconf3 libpng-dev libpng16-16 libtbb-dev
  libtbb12 libtbbmalloc2 libtbbbind-2-5 liburing-dev liburing2 nlohmann-json3-dev pkgconf pkgconf-bin
  libsimdjson-dev libsimdjson14 zlib1g zlib1g-dev)
for package in "${packages[@]}"; do
  if ! dpkg -L "$package" >/dev/null 2>&1; then
    echo "not installed: $package (apt-get install $package)" >&2
    exit 1
  fi
  dpkg -L "$package"
done | sort -u | while read -r file; do
  case $file in
    */libCatch2*.a) ;;
    */share/doc/* | */share/man/* | *.a | */tools/* | */share/lintian/* | */share/pkgconfig/personality*) continue ;;
  esac
  if [[ -f $file || -L $file ]]; then
    # Where /lib is a link into /usr, packages still name both.
    target=$out/sysroot/${file#/}
    [[ $file == /lib/* ]] && target=$out/sysroot/usr$file
    mkdir -p "$(dirname "$target")"
    cp -a "$file" "$target"
  fi
done

# torchvision of torch 2.11; numpy for the tests' helpers; matplotlib for the picture.
python3 -m pip download --quiet --disable-pip-version-check --dest "$out/wheels" \
  --python-version 3.12 --only-binary=:all: --no-deps \
  'torchvision==0.26.0' pillow numpy rich markdown-it-py mdurl pygments pytest pytest-timeout \
  iniconfig pluggy packaging matplotlib contourpy cycler fonttools kiwisolver pyparsing \
  python-dateutil six

size=$(du -sm "$out" | cut -f 1)
echo "$out: $size MB"
((size <= 60)) || { echo "more than 60 MB" >&2; exit 1; }
