"""state_dict() and load_state_dict() of a loader, with the meaning of torchdata's
StatefulDataLoader: batches that were yielded, not those that were prefetched.

What they hold is plain data, so that it can be kept as JSON. Nothing is decoded to go on from it:
the sampler is taken forward, or put to its own state where it has one, and the random generators
are put to where they were.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import random_states
from headrace._core import Error
from headrace.progress import stateful_sampler

if TYPE_CHECKING:
    from headrace.loader import DataLoader

_FORMAT = 1


@dataclass(frozen=True)
class Resume:
    """What the next iter() is to go on from.

    Attributes:
        state: what load_state_dict() was given.
        epoch: counted from 0.
        seed: for rng="counter".
        point: as Progress.point() gives it; None: the beginning of the epoch.
        generators: where the caller's generators are to stand; None: they are left alone.
        mid_epoch: whether that is after iter(), and not before it.
    """

    state: dict[str, Any]
    epoch: int
    seed: int | None
    point: dict[str, Any] | None
    generators: random_states.State | None
    mid_epoch: bool


def save(loader: "DataLoader[Any]") -> dict[str, Any]:
    """The state of `loader` as plain data.

    Raises:
        Error: what was yielded is no beginning of the epoch.
    """
    if loader._resume is not None:  # loaded, and nothing iterated since
        return loader._resume.state
    progress = loader._progress
    if progress is None:
        epoch, seed, point, finished = loader._epoch, loader.seed, None, False
    else:
        if progress.any_order and progress.batches and not progress.finished:
            raise Error(
                "state_dict: with in_order=False torch's workers give batches in any order, so "
                "that going on after as many would lose and repeat samples. Use in_order=True, or "
                "save between epochs"
            )
        epoch, seed, point = progress.epoch, progress.seed, progress.point()
        finished = progress.finished
    return {
        "headrace": _FORMAT,
        "rng": loader.rng,
        "seed": seed,
        "epoch": epoch,
        "finished": finished,
        "point": point,
        "generators": random_states.capture(random_states.of_loader(loader)),
        "sampler_epoch": getattr(epoch_sampler(loader), "epoch", None),
        "errors": loader.error_count,
        **_shape(loader),
    }


def _shape(loader: "DataLoader[Any]") -> dict[str, Any]:
    return {
        "samples": len(loader.dataset) if loader.is_map_style else None,  # type: ignore[arg-type]
        "batch_size": loader.batch_size,
        "num_workers": loader.num_workers,
        "persistent_workers": loader.persistent_workers,
    }


def load(loader: "DataLoader[Any]", state: dict[str, Any]) -> Resume:
    """Checks that `loader` can go on from `state`.

    Raises:
        Error: it cannot, and what to change.
    """
    if not isinstance(state, dict) or state.get("headrace") != _FORMAT:
        raise Error(
            "load_state_dict: this is no state of headrace.DataLoader of this version. Give what "
            "its state_dict() returned"
        )
    _check_shape(loader, state)
    point, epoch, generators = state["point"], state["epoch"], state["generators"]
    counter = loader.rng == "counter"
    own_place = stateful_sampler(loader) is not None
    if point is not None and own_place != (point["sampler"] is not None):
        raise Error(
            "load_state_dict: the sampler keeps its place itself (state_dict) in only one of the "
            "run that was saved and this one. Use the same kind of sampler"
        )
    mid_epoch = point is not None and not state["finished"]
    if state["finished"]:
        epoch += 1
        point = _next_epoch(state, loader.num_workers, own_place)
    if point is not None and not counter and loader.num_workers > 0 and point["workers"] is None:
        raise Error(
            "load_state_dict: the saved run used torch's worker processes, which kept the state "
            "of their random generators to themselves, so that augmentation would go on otherwise. "
            'Save with resumable=True and in_order=True, or use rng="counter"'
        )
    if counter and own_place:  # nothing that the loader draws matters
        generators = None
        point = point and {**point, "begin": None, "first_pull": None}
    if mid_epoch and state["sampler_epoch"] is not None:
        sampler = epoch_sampler(loader)
        if sampler is not None:
            sampler.set_epoch(state["sampler_epoch"])
    return Resume(state, epoch, state["seed"], point, generators, mid_epoch)


def _next_epoch(state: dict[str, Any], num_workers: int, own_place: bool) -> dict[str, Any] | None:
    """Where the epoch begins that follows a finished one."""
    generators = state["generators"]
    begin = {
        **state["point"],
        "batches": 0,
        "checksum": 0,
        "begin": generators,
        "first_pull": None,
        "recent": [],
    }
    if state["persistent_workers"]:
        # Such workers go on with their streams, and no base_seed is drawn.
        return {**begin, "first_pull": generators}
    if own_place:
        return {**begin, "workers": [None] * num_workers}
    return None


def epoch_sampler(loader: "DataLoader[Any]") -> Any:
    """The sampler that is told the epoch, as torch's DistributedSampler is."""
    batch_sampler = loader.batch_sampler
    for each in (batch_sampler, getattr(batch_sampler, "sampler", None), loader.sampler):
        if hasattr(each, "set_epoch"):
            return each
    return None


def _check_shape(loader: "DataLoader[Any]", state: dict[str, Any]) -> None:
    def refuse(what: str, saved: Any, now: Any, remedy: str) -> None:
        if saved != now:
            raise Error(
                f"load_state_dict: {what} was {saved!r} in the run that was saved and is {now!r} "
                f"now. {remedy}"
            )

    shape = _shape(loader)
    if shape["samples"] is None and state["point"] is not None and not state["finished"]:
        raise Error(
            "load_state_dict: an IterableDataset cannot be put to a place without reading it. "
            "Use a map-style dataset, or keep the place in the dataset itself"
        )
    same = "Make the loader as it was"
    refuse("rng", state["rng"], loader.rng, same)
    if loader.seed is not None:
        refuse("seed", state["seed"], loader.seed, same)
    refuse("the dataset's length", state["samples"], shape["samples"], same)
    if stateful_sampler(loader) is None:
        refuse(
            "batch_size",
            state["batch_size"],
            shape["batch_size"],
            f"{same}, or use a sampler that keeps its place in samples, such as "
            "headrace.ShardedSampler",
        )
    if loader.rng == "torch":
        refuse(
            "num_workers",
            state["num_workers"],
            shape["num_workers"],
            f'{same}: each worker has a random stream. With rng="counter" it may change',
        )
        refuse("persistent_workers", state["persistent_workers"], loader.persistent_workers, same)
