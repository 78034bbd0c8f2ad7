"""Training libraries that drive, wrap or rebuild loaders: headrace stays, with torch's bits."""

import logging
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler, default_collate
from torchvision.datasets import ImageFolder

from headrace import DataLoader
from headrace.iterator import NativeIterator
from headrace.worker_iterator import WorkerIterator
from support import assert_same, assert_same_behaviour, end, train

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": 2}


def loader_of(loader_type: Any, root: Path, **options: Any) -> Any:
    return loader_type(ImageFolder(root, train(16)), **{**OPTIONS, **options})


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 16 * 16, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images.flatten(1))


def seeded_model() -> Tiny:
    torch.manual_seed(11)
    return Tiny()


# --- Lightning ------------------------------------------------------------------------------------


@pytest.fixture
def lightning() -> Any:
    module = pytest.importorskip("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"persistent_workers": True}])
def test_lightnings_trainer_sees_torchs_batches(
    lightning: Any, pictures: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = seeded_model()
            self.seen: list[Any] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            images, labels = batch
            self.seen.append((images.clone(), labels.clone()))
            return torch.nn.functional.cross_entropy(self.model(images), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(loader_type: Any) -> Any:
        lightning.seed_everything(7, workers=True, verbose=False)
        module = Module()
        loader = loader_of(loader_type, pictures, **options)
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, loader)
        return trainer.train_dataloader, module

    used, ours = fit(DataLoader)
    _, theirs = fit(TorchLoader)
    assert type(used) is DataLoader and used.explain().native
    assert used.worker_init_fn is not None  # Lightning's, by seed_everything(workers=True)
    assert_same(ours.seen, theirs.seen)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_lightning_rebuilds_it_with_another_sampler(lightning: Any, pictures: Path) -> None:
    from lightning.pytorch.utilities.data import _update_dataloader

    loader = loader_of(
        DataLoader, pictures, threads=2, read_budget_bytes=1 << 20, prefetch_factor=3
    )
    sampler = DistributedSampler(loader.dataset, 2, 1)
    rebuilt = _update_dataloader(loader, sampler)
    assert type(rebuilt) is DataLoader and rebuilt.explain().native
    assert rebuilt.sampler is sampler
    for name in ("threads", "read_budget_bytes", "prefetch_factor", "num_workers", "batch_size"):
        assert getattr(rebuilt, name) == getattr(loader, name)


# --- seed functions -------------------------------------------------------------------------------


def lightnings_function() -> Any:
    return pytest.importorskip("lightning.fabric.utilities.seed").pl_worker_init_function


def timms_function() -> Any:
    return partial(pytest.importorskip("timm.data.loader")._worker_init, worker_seeding="all")


def transformers_function() -> Any:
    seed_worker = pytest.importorskip("transformers.trainer_utils").seed_worker
    return partial(seed_worker, num_workers=2, rank=1)


@pytest.mark.parametrize("of", [lightnings_function, timms_function, transformers_function])
def test_their_worker_init_functions_are_native(pictures: Path, of: Any) -> None:
    def build(loader_type: Any) -> Any:
        return loader_of(loader_type, pictures, worker_init_fn=of())

    assert_same_behaviour(build)
    iterator = iter(build(DataLoader))
    assert type(iterator) is WorkerIterator
    end(iterator)


# --- Accelerate -----------------------------------------------------------------------------------


@pytest.fixture
def accelerator() -> Iterator[Any]:
    accelerate = pytest.importorskip("accelerate")
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


@pytest.mark.parametrize("options", [{}, {"num_workers": 0, "shuffle": False, "drop_last": True}])
def test_accelerates_prepare_keeps_headrace_when_adapted(
    accelerator: Any, pictures: Path, options: dict[str, Any]
) -> None:
    from headrace.accelerate import adapt

    torch.manual_seed(3)
    expected = list(accelerator.prepare(loader_of(TorchLoader, pictures, **options)))
    adapted = adapt(accelerator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        original = loader_of(DataLoader, pictures, threads=1, **options)
        prepared = adapted.prepare(original)
    assert prepared is not original and isinstance(prepared, DataLoader)
    assert prepared.explain().native
    assert prepared.threads == 1
    assert len(prepared) == len(original)
    torch.manual_seed(3)
    assert_same(list(prepared), expected)

    skipped = adapted.skip_first_batches(prepared, 2)
    assert skipped.explain().native and skipped.threads == 1
    torch.manual_seed(3)
    labels = [batch[1] for batch in skipped]
    assert_same(labels, [batch[1] for batch in expected[2:]])


def test_accelerates_prepare_warns_that_it_replaces_headrace(
    accelerator: Any, pictures: Path
) -> None:
    with pytest.warns(UserWarning, match=r"headrace\.accelerate\.adapt"):
        prepared = accelerator.prepare(loader_of(DataLoader, pictures))
    assert type(prepared.base_dataloader) is TorchLoader


def test_an_adapted_accelerator_shards_over_its_processes(
    accelerator: Any, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate import data_loader

    from headrace.accelerate import adapt

    def shard(loader_type: Any, rank: int) -> list[Any]:
        original = loader_of(loader_type, pictures, shuffle=False)
        torch.manual_seed(5)
        monkeypatch.setattr(
            adapted,
            "prepare_data_loader",
            keeping(partial(data_loader.prepare_data_loader, num_processes=2, process_index=rank)),
        )
        prepared = adapted.prepare_data_loader(original)
        assert prepared.explain().native
        return [batch[1].tolist() for batch in prepared]

    from headrace.accelerate import _keeping as keeping

    adapted = adapt(accelerator)
    shards = [shard(DataLoader, rank) for rank in range(2)]
    assert shards == [shard(TorchLoader, rank) for rank in range(2)]
    assert len(shards[0]) == len(shards[1])


# --- the Trainer of transformers ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_transformers_trains_on_headrace(pictures: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from headrace.accelerate import adapt

    class Trainer(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            images, labels = inputs
            self.seen.append((images.clone(), labels.clone()))
            return torch.nn.functional.cross_entropy(model(images), labels)

    def train_with(adapted: bool) -> Any:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_train_epochs=2,
            dataloader_num_workers=2,
            remove_unused_columns=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model=seeded_model(),
            args=arguments,
            train_dataset=ImageFolder(pictures, train(16)),
            data_collator=default_collate,
        )
        trainer.seen = []
        if adapted:
            adapt(trainer.accelerator)
            assert trainer.get_train_dataloader().explain().native
        trainer.train()
        return trainer.seen

    ours, theirs = train_with(True), train_with(False)
    assert len(ours) == len(theirs) > 4
    assert_same(ours, theirs)


# --- timm -----------------------------------------------------------------------------------------


def test_timms_prefetcher_and_epochs_drive_the_loader(pictures: Path) -> None:
    loaders = pytest.importorskip("timm.data.loader")

    def batches(loader_type: Any) -> list[Any]:
        torch.manual_seed(8)
        loader = loader_of(loader_type, pictures, batch_size=6)
        prefetcher = loaders.PrefetchLoader(loader, device=torch.device("cpu"))
        assert prefetcher.dataset is loader.dataset
        return [batch for _ in range(2) for batch in prefetcher]

    assert_same(batches(DataLoader), batches(TorchLoader))


def test_timms_loader_of_many_epochs_can_be_headraces(pictures: Path) -> None:
    """MultiEpochsDataLoader's way: a batch sampler that repeats for ever under one iterator."""
    loaders = pytest.importorskip("timm.data.loader")

    def build(loader_type: Any) -> Any:
        options = {name: value for name, value in OPTIONS.items() if name != "num_workers"}
        source = loader_type(ImageFolder(pictures, train(16)), **options)
        repeated = loaders._RepeatSampler(source.batch_sampler)
        return loader_type(source.dataset, batch_sampler=repeated, num_workers=2)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        for _ in range(15):
            yield next(iterator)
        end(iterator)

    assert_same_behaviour(build, drive)


# --- torchdata ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cut", [None, 0, 1, 3, 4, "end"])
@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}]
)
def test_states_mean_what_they_mean_to_torchdatas_stateful_loader(
    pictures: Path, options: dict[str, Any], cut: Any
) -> None:
    """Before an epoch, in its middle, after its last batch and after its end: the same is left of
    it, for the loader that was saved and for a new one."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def rest_of(loader_type: Any) -> Any:
        def make() -> Any:
            return loader_type(ImageFolder(pictures, train(16)), 6, **options)

        loader = make()
        if cut is not None:
            iterator = iter(loader)
            seen = len(loader) + 1 if cut == "end" else cut
            assert sum(1 for _ in zip(range(seen), iterator, strict=False)) == min(seen, 4)
        state = loader.state_dict()
        rests = []
        for one in (loader, make()):
            one.load_state_dict(state)
            rests += [[labels.tolist() for _, labels in one] for _ in range(2)]
        return rests

    assert rest_of(DataLoader) == rest_of(stateful)


# --- torch.profiler -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_wait_shows_in_a_profile_as_torchs(pictures: Path, workers: int) -> None:
    loader = loader_of(DataLoader, pictures, num_workers=workers)
    iterator = iter(loader)
    assert isinstance(iterator, NativeIterator)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in iterator:
            pass
    waits = [event for event in profile.events() if "DataLoader" in event.name]
    assert len(waits) == len(loader) + 1
    for event in waits:
        assert event.name.startswith("enumerate(DataLoader)#")
        assert event.name.endswith(".__next__")
