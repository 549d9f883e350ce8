"""The settings of a training, their checks, and the papers' values as defaults."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from refocal import _check
from refocal._documents import parse_toml, read_document
from refocal_lab.train.data import TEXTS
from refocal_lab.train.defaults import ARRAYS, DOCUMENTS, TREES
from refocal_lab.train.objective import check_loss
from refocal_lab.train.own_parts import check_name, is_own

Augmentation = Literal["crop-flip", "crop", "none"]
Optimizer = Literal["sgd", "adam", "adagrad"]
KeptNetwork = Literal["last", "best-validation", "best-refinement"]
_FLIPPED = ("cifar10", "cifar10-s", "cifar100", "tiny-imagenet")  # a mirrored digit or letter is another one
_LATE_DECAY = ("svhn",)
_WORDS = ("Augmentation", "Optimizer", "KeptNetwork")  # types of settings that are one of a few words
_BY_DATA: Any = None  # a setting whose default depends on the data, see `refocal_lab.train.defaults`


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """All settings of one training. Recipes with equal settings train the same network.

    Data, model and loss are names that the lab knows, or `package.module:function` for parts of your own.

    Attributes:
        data: Name of a data set, see `refocal_lab.train.data.load`.
        model: Name of a network, see `refocal_lab.train.models.build`.
        loss: Name of a loss, see `refocal_lab.train.objective.LOSSES`.
        gamma: Focusing parameter of the losses that have one.
        label_smoothing: Label smoothing of cross-entropy and focal loss.
        factor: Weight of MMCE, which is added to cross-entropy. Mukhoti et al. (2020) use 2 for images, 8 for texts.
        curvature_penalty: Weight tau of the trace of the loss's Hessian, which is added to the loss; Kimura and
            Naganuma (2024), Eq. 33.
        optimizer: "sgd", "adam" or "adagrad". Default: "sgd"; "adam" for documents, "adagrad" for trees.
        epochs: Passes over the training part. Default: 200; 50 for documents, 25 for trees.
        batch_size: Samples per step. Samples that do not fill the last batch of an epoch are left out of it. Default:
            128; 25 for trees.
        learning_rate: Initial learning rate. Default: 0.1; 0.001 for documents, 0.05 for trees.
        milestones: Epochs after which the learning rate falls to a tenth. Default: after 40 % and 75 % of the epochs,
            for SVHN 50 % and 80 %, as in Charoenphakdee et al. (2021); never for texts.
        momentum: Momentum of "sgd". Default: 0.9.
        weight_decay: Weight decay of all parameters except word vectors, which would fade because most words are
            absent from a batch. Default: 0.0005; 0 for documents, 0.0001 for trees.
        keep: "last" keeps the network of the last epoch, "best-validation" that of the first epoch with the lowest
            validation error, "best-refinement" that of the first epoch with the lowest validation log loss after
            calibration (`refocal.calibrators.refinement`). Default: "last"; "best-validation" for texts.
        word_vectors: Of texts: "glove", "learned" or a file, see `refocal_lab.train.data.load`. Default: "glove".
        augmentation: "crop-flip" (pad with four black pixels, crop at random, mirror at random), "crop" or "none".
            Default: "crop-flip" for CIFAR and Tiny ImageNet, "none" for all others.
        sum_loss: Sum the loss over the batch instead of averaging it, as the code of Mukhoti et al. (2020) does; that
            code also clips the gradient.
        clip_norm: Largest norm of the gradient; 2 in the code of Mukhoti et al. (2020).
        seed: Fixes initial weights, order and augmentation.
        split_seed: Fixes which samples are held out.

    Example:
        >>> recipe = TrainingRecipe(data="svhn", model="resnet20", loss="focal", gamma=3.0, epochs=50)
        >>> recipe.name, recipe.milestones
        ('svhn-resnet20-focal-g3-s0', (25, 40))

    Reference: Charoenphakdee et al. (2021), section 6; Mukhoti et al. (2020), Appendix C.
    """

    data: str
    model: str
    loss: str = "cross-entropy"
    gamma: float | None = None
    label_smoothing: float = 0.0
    factor: float | None = None
    curvature_penalty: float | None = None
    optimizer: Optimizer = _BY_DATA
    epochs: int = _BY_DATA
    batch_size: int = _BY_DATA
    learning_rate: float = _BY_DATA
    milestones: tuple[int, ...] | None = None
    momentum: float = _BY_DATA
    weight_decay: float = _BY_DATA
    keep: KeptNetwork = _BY_DATA
    word_vectors: str | None = None
    augmentation: Augmentation | None = None
    sum_loss: bool = False
    clip_norm: float | None = None
    seed: int = 0
    split_seed: int = 0

    def __post_init__(self) -> None:
        self._complete()
        _check.one_of(self.optimizer, "optimizer", get_args(Optimizer))
        _check.one_of(self.keep, "keep", get_args(KeptNetwork))
        if self.momentum and self.optimizer != "sgd":
            msg = f"momentum needs optimizer 'sgd', got {self.momentum!r} with {self.optimizer!r}"
            raise ValueError(msg)
        if self.word_vectors is not None and self.data not in TEXTS:
            msg = f"word_vectors are for {', '.join(TEXTS)}, got {self.word_vectors!r} for {self.data}"
            raise ValueError(msg)
        for name in ("data", "model"):
            if is_own(getattr(self, name)):
                check_name(getattr(self, name), name, ())
        if self.sum_loss and is_own(self.loss):
            msg = f"sum_loss is for the lab's losses, got loss {self.loss!r}: let it return the mean over the batch"
            raise ValueError(msg)
        check_loss(self.loss, gamma=self.gamma, label_smoothing=self.label_smoothing, factor=self.factor)
        for name in ("seed", "split_seed"):
            _check.count(getattr(self, name), name, least=0, most=_check.LARGEST_SEED)
        for name in ("learning_rate", "clip_norm", "curvature_penalty"):
            if getattr(self, name) is not None:
                _check.positive(getattr(self, name), name)
        for name in ("momentum", "weight_decay"):
            if not 0 <= getattr(self, name) < 1:
                msg = f"{name} must be in [0, 1), got {getattr(self, name)!r}"
                raise ValueError(msg)
        for milestone in self.milestones or ():
            _check.count(milestone, "milestones")
        if list(self.milestones or ()) != sorted(set(self.milestones or ())):
            msg = f"milestones must increase, got {self.milestones}"
            raise ValueError(msg)
        _check.one_of(self.augmentation, "augmentation", get_args(Augmentation))

    def _complete(self) -> None:
        """Set each setting whose default depends on the others."""
        defaults = ARRAYS if self.data not in TEXTS else TREES if self.data == "sst" else DOCUMENTS
        for name, value in defaults.items():
            if getattr(self, name) is None:
                not_sgd = name == "momentum" and self.optimizer != "sgd"
                object.__setattr__(self, name, 0.0 if not_sgd else value)
        for name in ("epochs", "batch_size"):
            _check.count(getattr(self, name), name)
        if self.milestones is None:
            shares = (0.5, 0.8) if self.data in _LATE_DECAY else (0.4, 0.75)
            milestones = sorted({max(1, round(share * self.epochs)) for share in shares})
            object.__setattr__(self, "milestones", tuple(milestones))
        if self.augmentation is None:
            object.__setattr__(self, "augmentation", "crop-flip" if self.data in _FLIPPED else "none")
        for setting in dataclasses.fields(self):
            if "float" in str(setting.type) and isinstance(getattr(self, setting.name), int):
                object.__setattr__(self, setting.name, float(getattr(self, setting.name)))  # 3 and 3.0 are one setting

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        return self.learning_rate * 0.1 ** sum(epoch >= milestone for milestone in self.milestones or ())

    @property
    def name(self) -> str:
        """The name of a run of this recipe: data, network, loss with its settings, and seed."""
        parts = [part.replace(":", ".") for part in (self.data, self.model, self.loss)]
        marked = (("g", self.gamma), ("f", self.factor), ("tau", self.curvature_penalty))
        parts += [f"{mark}{value:g}" for mark, value in marked if value is not None]
        if self.label_smoothing:
            parts.append(f"ls{self.label_smoothing:g}")
        return "-".join([*parts, f"s{self.seed}"])

    def settings(self) -> dict[str, Any]:
        """All settings, in types that JSON and TOML have."""
        values = dataclasses.asdict(self)
        return values | {"milestones": list(self.milestones or ())}


def parse_recipe(settings: Mapping[str, Any], *, where: str = "the recipe") -> TrainingRecipe:
    """Make a recipe from a mapping of settings, such as a TOML file or a card holds. Imports nothing.

    Args:
        settings: Values by the names of `TrainingRecipe`.
        where: Where the settings come from, for messages.

    Raises:
        ValueError: A setting is unknown, missing or out of range.
        TypeError: A setting has the wrong type.

    Example:
        >>> parse_recipe({"data": "svhn", "model": "resnet20", "loss": "focal", "gamma": 3, "epochs": 50}).milestones
        (25, 40)
    """
    fields = {field.name: _write_type(str(field.type)) for field in dataclasses.fields(TrainingRecipe)}
    for name, value in settings.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            msg = f"{where} has no setting {name!r}{f', did you mean {near[0]!r}?' if near else ''}"
            raise ValueError(msg)
        if not _has_type(value, fields[name]):
            msg = f"{name} in {where} must be of type {fields[name]}, got {value!r}"
            raise TypeError(msg)
    missing = [name for name in ("data", "model") if name not in settings]
    if missing:
        msg = f"{where} needs {' and '.join(missing)}"
        raise ValueError(msg)
    given = dict(settings)
    if "loss" in given:
        given["loss"] = expand_loss_name(given["loss"])
    if given.get("milestones") is not None:
        given["milestones"] = tuple(given["milestones"])
    return TrainingRecipe(**given)


def expand_loss_name(name: str) -> str:
    """The full name of a loss: "ce" is short for "cross-entropy"."""
    return "cross-entropy" if name == "ce" else name


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read the settings in a TOML file; `parse_recipe` checks and completes them."""
    return parse_toml(read_document(path), lambda reason: ValueError(f"{path} is not a TOML file: {reason}"))


def _write_type(annotation: str) -> str:
    """The type of a setting as JSON and TOML know it: a word is a string."""
    for word in _WORDS:
        annotation = annotation.replace(word, "str")
    return annotation


def _has_type(value: Any, wanted: str) -> bool:
    if value is None:
        return "None" in wanted
    if "tuple" in wanted:
        return isinstance(value, list | tuple) and all(_has_type(item, "int") for item in value)
    if isinstance(value, bool) or "bool" in wanted:
        return isinstance(value, bool) and "bool" in wanted
    return isinstance(value, str) if "str" in wanted else isinstance(value, int | float if "float" in wanted else int)
