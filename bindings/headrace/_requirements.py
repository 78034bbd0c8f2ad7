"""What must be installed beside headrace, said clearly when it is not."""

import importlib
import os
import re
import sys

# The oldest releases whose DataLoader has every argument that headrace passes on (in_order).
MINIMUM = {"torch": (2, 6), "torchvision": (0, 21)}


def check_requirements() -> None:
    """Raises ImportError that names what is missing or too old, and the remedy."""
    newest = " ".join(f"'{package}>={_text(package)}'" for package in MINIMUM)
    remedy = f"Install it with: pip install {newest}"
    for package, minimum in MINIMUM.items():
        wanted = f"headrace needs {package} {_text(package)} or newer"
        try:
            version = importlib.import_module(package).__version__
        except ImportError as error:
            raise ImportError(f"{wanted}, which cannot be imported ({error}). {remedy}") from error
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        if numbers < minimum:
            raise ImportError(f"{wanted}, and {version} is installed. {remedy}")
    try:
        importlib.import_module("headrace._core")
    except ImportError as error:
        raise ImportError(
            f"headrace._core, the C++ core, cannot be imported ({error}): it was not built for "
            "this Python. Build it with: pip install --force-reinstall headrace; from its sources: "
            "pip install ."
        ) from error


def is_command() -> bool:
    """Whether this process is the command `headrace`, or `python -m headrace`."""
    if sys.argv[:1] == ["-m"]:  # so it is while Python looks for the module
        return "-m headrace " in " ".join([*sys.orig_argv, ""])
    return os.path.basename(sys.argv[0] if sys.argv else "") == "headrace"


def _text(package: str) -> str:
    return ".".join(map(str, MINIMUM[package]))
