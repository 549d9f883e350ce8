"""A small Lightning module, its data, and quiet trainers."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

CLASSES = 3


def draw(rows, *, seed, classes=CLASSES):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=generator)
    truth = inputs[:, :classes] + 0.7 * torch.randn(rows, classes, generator=generator)
    return inputs, truth.argmax(dim=1)


TRAIN, VALID = draw(96, seed=0), draw(60, seed=1)


class Batches:
    """Batches in order. Lightning warns of a DataLoader without workers, and workers would make tests slow."""

    def __init__(self, data, *, size=16):
        self.batches = list(zip(*(values.split(size) for values in data), strict=True))

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class Network(pl.LightningModule):
    """A linear classifier that logs `val_loss`; `returns` says what `validation_step` returns."""

    def __init__(self, returns="dict", *, outputs=CLASSES, rate=0.5):
        super().__init__()
        torch.manual_seed(0)
        self.returns, self.rate = returns, rate
        self.layer = torch.nn.Linear(4, outputs)

    def forward(self, inputs):
        return self.layer(inputs)

    def training_step(self, batch):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    @override
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        inputs, labels = batch
        logits = self(inputs)
        if logits.shape[1] > 1 and dataloader_idx == 0:
            loss = torch.nn.functional.cross_entropy(logits, labels)
            self.log("val_loss", loss, add_dataloader_idx=False, sync_dist=True)
        return {
            "dict": {"logits": logits, "labels": labels, "more": 1},
            "tuple": (logits, labels),
            "other": {"preds": logits},
            "loss": logits.sum(),
            "nothing": None,
        }[self.returns]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


class Worsening(Network):
    """After the first epoch, steps go uphill: the first checkpoint stays the best."""

    def training_step(self, batch):
        loss = super().training_step(batch)
        return loss if self.current_epoch == 0 else -0.2 * loss


def make_trainer(folder, *callbacks, epochs=3, checkpoint=None, **settings):
    """Train on one CPU without a progress bar; `checkpoint` is a ModelCheckpoint, or False for none."""
    if checkpoint is None:
        checkpoint = ModelCheckpoint(dirpath=folder, monitor="val_loss")
    return pl.Trainer(
        **{
            "default_root_dir": folder,
            "max_epochs": epochs,
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": checkpoint is not False,
            "log_every_n_steps": 1,
            "callbacks": [*callbacks, *([checkpoint] if checkpoint else [])],
            **settings,
        }
    )
