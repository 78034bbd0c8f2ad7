"""What must be installed beside headrace, said clearly when it is not."""

import importlib
import re

# The oldest releases whose DataLoader has every argument that headrace passes on (in_order).
MINIMUM = {"torch": (2, 6), "torchvision": (0, 21)}


def check_requirements() -> None:
    """Raises ImportError that names the missing or too old package and the remedy."""
    for package, minimum in MINIMUM.items():
        wanted = ".".join(map(str, minimum))
        remedy = f"Install it with: pip install 'torch>={_text('torch')}' 'torchvision>={_text('torchvision')}'"
        try:
            version = importlib.import_module(package).__version__
        except ImportError as error:
            raise ImportError(
                f"headrace needs {package} {wanted} or newer, which cannot be imported ({error}). {remedy}"
            ) from error
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        if numbers < minimum:
            raise ImportError(
                f"headrace needs {package} {wanted} or newer, and {version} is installed. {remedy}"
            )


def _text(package: str) -> str:
    return ".".join(map(str, MINIMUM[package]))
