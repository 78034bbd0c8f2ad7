"""The random generators that a loader's draws come from, as plain data."""

import base64
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

State = dict[str, Any]


def capture(generators: Sequence[torch.Generator] = ()) -> State:
    """Where torch's default CPU generator, Python's and numpy's stand, and those given.

    Returns:
        What JSON can hold; :func:`restore` takes it back, in this process or another.
    """
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state()  # noqa: NPY002  users have this one
    kind, keys, position, has_gauss, cached = numpy_state
    return {
        "torch": _text(torch.get_rng_state().numpy().tobytes()),
        "random": [version, _text(np.array(words, dtype="<u4").tobytes()), gauss],
        "numpy": [kind, _text(keys.astype("<u4").tobytes()), position, has_gauss, cached],
        "generators": [_text(each.get_state().numpy().tobytes()) for each in generators],
    }


def restore(state: State, generators: Sequence[torch.Generator] = ()) -> None:
    """Puts the generators where :func:`capture` found them; those that it has no word of stay."""
    torch.set_rng_state(_tensor(state["torch"]))
    if "random" in state:
        version, words, gauss = state["random"]
        random.setstate((version, tuple(_words(words).tolist()), gauss))
    if "numpy" in state:
        kind, keys, *rest = state["numpy"]
        np.random.set_state((kind, _words(keys).astype(np.uint32), *rest))  # noqa: NPY002
    for generator, text in zip(generators, state.get("generators", ()), strict=False):
        generator.set_state(_tensor(text))


@contextmanager
def undisturbed(generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """What is drawn meanwhile leaves the generators where they were."""
    state = capture(generators)
    try:
        yield
    finally:
        restore(state, generators)


def of_stream(stream: Any) -> State:
    """The state of a worker that draws from nothing but a native stream."""
    state = torch.Generator().get_state()
    stream.to_torch_state(state.numpy())
    return {"torch": _text(state.numpy().tobytes())}


def torch_state(state: State) -> torch.Tensor:
    """Its part for torch.set_rng_state."""
    return _tensor(state["torch"])


def of_loader(loader: Any) -> list[torch.Generator]:
    """The generators that the loader and its samplers were given, each once."""
    samplers = [
        loader.batch_sampler,
        getattr(loader.batch_sampler, "sampler", None),
        loader.sampler,
    ]
    found = [loader.generator, *(getattr(each, "generator", None) for each in samplers)]
    unique = {id(each): each for each in found if isinstance(each, torch.Generator)}
    return list(unique.values())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _words(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype="<u4")


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
