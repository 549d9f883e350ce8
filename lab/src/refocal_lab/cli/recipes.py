"""The recipes that `refocal-lab train` is asked for, by its options and its file."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from dataclasses import replace

from refocal import _check
from refocal_lab.train import data, models
from refocal_lab.train.defaults import TRIALS
from refocal_lab.train.own_parts import check_name
from refocal_lab.train.recipe import TrainingRecipe, parse_recipe, read_settings

_MOST_TRIALS = 10_000
_SETTINGS = (
    *("data", "model", "loss", "label_smoothing", "factor", "curvature_penalty", "epochs", "seed", "split_seed"),
    *("batch_size", "learning_rate", "milestones", "momentum", "weight_decay", "augmentation", "sum_loss", "clip_norm"),
    *("optimizer", "keep", "word_vectors"),
)


def build_recipes(options: Namespace) -> list[TrainingRecipe]:
    """Build one recipe for each run of the file, each gamma and each trial.

    Args:
        options: Those of `refocal-lab train`.
    """
    settings = read_settings(options.recipe) if options.recipe else {}
    where = options.recipe or "the command line"
    variants = settings.pop("runs", [{}])
    if not (isinstance(variants, list) and variants and all(isinstance(variant, dict) for variant in variants)):
        msg = f"runs in {where} must be tables of settings, written as [[runs]]"
        raise TypeError(msg)
    given = {name: getattr(options, name) for name in _SETTINGS if getattr(options, name) is not None}
    gammas = [{"gamma": gamma} for gamma in options.gamma] if options.gamma else [{}]
    recipes = []
    for variant in variants:
        for gamma in gammas:
            merged = settings | variant | given | gamma
            in_file = merged.pop("trials", TRIALS)
            trials = _check.count(in_file if options.trials is None else options.trials, "trials", most=_MOST_TRIALS)
            recipe = parse_recipe(merged, where=where)
            check_name(recipe.data, "data", data.names())
            check_name(recipe.model, "model", models.names())
            recipes += [replace(recipe, seed=recipe.seed + trial) for trial in range(trials)]
    names = [recipe.name for recipe in recipes]
    if len({(recipe.data, recipe.split_seed, recipe.word_vectors) for recipe in recipes}) > 1:
        msg = f"all runs of {where} must have the same data, split_seed and word_vectors"
        raise ValueError(msg)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        msg = f"two runs of {where} would have the name {min(twice)}: train them into different folders"
        raise ValueError(msg)
    return recipes
