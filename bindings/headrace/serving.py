"""Transforms for programs that serve a model without Python."""

from typing import Any

from headrace import selfcheck
from headrace.output import Output
from headrace.recipe import NotNative, to_json


def transform_to_json(transform: Any) -> str:
    """A torchvision transform as JSON for headrace's C++ library.

    `headrace::Transform::from_json` reads it; its results equal those of `transform` on PIL images
    opened as RGB, bit for bit, with the installed torchvision and Pillow, whose rules go into the
    JSON; a few pictures are compared first. examples/cpp/serve is such a program.

    Args:
        transform: a transform of torchvision.transforms or torchvision.transforms.v2, or a Compose
            of them, that the DataLoader runs natively and that ends in a tensor of constant shape.

    Returns:
        JSON, described in headrace/transform.h.

    Raises:
        ValueError: the transform has no native form, or its results differ here; the message names
            the step and the reason.
    """
    try:
        recipe = to_json(transform)
        selfcheck.check(recipe, transform, Output())
        return recipe
    except NotNative as reason:
        raise ValueError(f"no native form of {reason.culprit!r}: {reason}") from reason
