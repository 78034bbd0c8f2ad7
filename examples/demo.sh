#!/usr/bin/env bash
# Trains a small network with torch's DataLoader and with headrace's on pictures that it makes, and
# shows that the losses are the same and where the time went. Installs what is missing first.
#
#   bash examples/demo.sh [--data FOLDER] [--epochs N] [--batch-size N] [--num-workers N]
#                         [--out FILE.png]     (all options: --help)
#
# --data takes your own pictures: FOLDER/CLASS/PICTURE.jpg. The environment variables are those of
# tests/setup.sh.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/tests/setup.sh" --demo
venv=$(cd "$root" && realpath "${HEADRACE_VENV:-.venv}")
exec "$venv/bin/python" "$root/examples/demo.py" "$@"
