"""One of two processes that train together: `python parallel_training.py FOLDER`, with RANK and the like set."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from tiny_models import make_model, train

from refocal.integrations.transformers import TrainerLoss, train_without_logits
from refocal.losses import FocalLoss


def main(folder):
    criterion = FocalLoss(gamma=2)
    options = {"ddp_backend": "gloo", "ddp_find_unused_parameters": False}
    for door in ("logits", "hidden states"):
        model, settings = make_model("llama"), {"batch": 2, "accumulate": 2, "options": options}
        if door == "hidden states":
            train_without_logits(model, criterion)
        else:
            settings["compute_loss_func"] = TrainerLoss(criterion, shift_labels=True)
        _, weights = train(model, folder, "llama", **settings)
        if os.environ["RANK"] == "0":
            torch.save(weights, folder / door)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
