"""The experiments of the calibrator arena: scores and labels to fit calibrators to, and others to measure them on.

python benchmarks/arena_experiments.py --data FOLDER --cache CACHE

FOLDER has `logits/*.npz` (published networks) and `tabular/*.npz` (`X`, `y`, `categorical`). CACHE gets one .npz file
per experiment; experiments that are already there are not made again. There are four families:

- network: logits of published networks, their validation part and their test part.
- zoo: logits of this project's networks in `lab/zoo`, the first seed of each.
- tabular-binary, tabular-multiclass: probabilities of five scikit-learn models with fixed settings. Each set is split
  at random, stratified by class, into 50 % to train the model, 25 % to calibrate and 25 % to test.

Tabular sets are prepared by fixed rules. Sets are cut to 10,000 rows at random, stratified. Classes with fewer than 16
rows are then dropped with their rows, so that every class has at least 3 rows in each part. Sets with fewer than 150
rows left are dropped, and so is `australian`, whose decimal points are lost. scikit-learn's `digits` is added. Its
`wine` and `breast_cancer` are left out: they are the sets `wine` and `wdbc`. Random forests and nearest neighbors give
probabilities of exactly 0.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

FAMILIES = ("network", "zoo", "tabular-binary", "tabular-multiclass")
ZOO = Path(__file__).parents[1] / "lab" / "zoo"
SEED = 0
MOST_ROWS = 10_000
FEWEST_ROWS = 150
FEWEST_OF_CLASS = 16
FEWEST_IN_PART = 3
DAMAGED = {"australian"}
MODELS: dict[str, Callable[[], Any]] = {
    "boosting": partial(HistGradientBoostingClassifier, max_iter=100, early_stopping=False, random_state=SEED),
    "forest": partial(RandomForestClassifier, n_estimators=100, random_state=SEED),
    "neighbors": partial(KNeighborsClassifier, n_neighbors=5),
    "mlp": partial(MLPClassifier, hidden_layer_sizes=(100,), max_iter=100, random_state=SEED),
    "logistic": partial(LogisticRegression, max_iter=100),
}
OF_TREES = {"boosting", "forest"}  # these take the codes of categories as they are


@dataclass(frozen=True)
class Experiment:
    """Scores (N, K) and labels (N,) of the calibration part and of the test part."""

    name: str
    family: str
    input: str
    scores_cal: np.ndarray
    labels_cal: np.ndarray
    scores_test: np.ndarray
    labels_test: np.ndarray

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.scores_cal.shape[1]

    def save(self, folder: Path) -> None:
        """Write the experiment to its file, under another name first."""
        temporary = folder / f"{self.name}.part"
        with temporary.open("wb") as file:
            np.savez_compressed(file, **vars(self))
        temporary.rename(folder / f"{self.name}.npz")


def load(path: Path) -> Experiment:
    """Read an experiment; float16 is widened, as it is only how logits are stored."""
    with np.load(path, allow_pickle=False) as data:
        arrays = {name: data[name] for name in data.files}
    texts = {name: str(arrays.pop(name)) for name in ("name", "family", "input")}
    scores = {name: arrays[name].astype(np.promote_types(arrays[name].dtype, np.float32)) for name in arrays}
    labels = {name: arrays[name].astype(np.int64) for name in arrays if name.startswith("labels")}
    return Experiment(**texts, **(scores | labels))


def list_cached(cache: Path, families: tuple[str, ...] = FAMILIES) -> list[Path]:
    """List the files of the families in a cache, in a fixed order."""
    return [path for family in families for path in sorted(cache.glob(f"{family}--*.npz"))]


def read_network(path: Path) -> Experiment:
    """Read the validation part and the test part of a published network."""
    with np.load(path, allow_pickle=False) as data:
        parts = [data[f"{what}_{part}"] for part in ("val", "test") for what in ("logits", "labels")]
    return Experiment(f"network--{path.stem}", "network", "logits", *parts)


def read_zoo(path: Path) -> Experiment:
    """Read the validation part and the test part of a network of the zoo."""
    with np.load(path, allow_pickle=False) as data:
        logits, labels, split = (data[name] for name in ("logits", "labels", "split"))
    parts = [part for name in ("val", "test") for part in (logits[split == name], labels[split == name])]
    return Experiment(f"zoo--{path.stem.removesuffix('-s0')}", "zoo", "logits", *parts)


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read features, labels, and which columns are categories."""
    with np.load(path, allow_pickle=False) as data:
        return data["X"], data["y"].astype(np.int64), data["categorical"].astype(bool)


def split_table(features: np.ndarray, labels: np.ndarray) -> list[np.ndarray] | None:
    """Apply the rules for sets: features and labels of the three parts, or None for a set that is too small."""
    rows = np.arange(len(labels))
    if len(rows) > MOST_ROWS:
        rows, _ = train_test_split(rows, train_size=MOST_ROWS, stratify=labels, random_state=SEED)
    values, counts = np.unique(labels[rows], return_counts=True)
    rows = rows[np.isin(labels[rows], values[counts >= FEWEST_OF_CLASS])]
    values, labels = np.unique(labels[rows], return_inverse=True)
    if len(rows) < FEWEST_ROWS or len(values) < 2:
        return None
    features = features[rows]
    train, rest = train_test_split(np.arange(len(rows)), train_size=0.5, stratify=labels, random_state=SEED)
    cal, test = train_test_split(rest, train_size=0.5, stratify=labels[rest], random_state=SEED)
    parts = [part for chosen in (train, cal, test) for part in (features[chosen], labels[chosen])]
    fewest = min(np.bincount(part, minlength=len(values)).min() for part in parts[1::2])
    if fewest < FEWEST_IN_PART:
        msg = f"every class needs {FEWEST_IN_PART} rows in each part, got {fewest}"
        raise ValueError(msg)
    return parts


def make_model(name: str, categorical: np.ndarray) -> Any:
    """Make an unfitted model; those that are not trees get scaled numbers and one column per category."""
    model = MODELS[name]()
    if name in OF_TREES:
        return model
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), np.flatnonzero(categorical)),
        (StandardScaler(), np.flatnonzero(~categorical)),
    )
    return make_pipeline(columns, model)


def run_models(name: str, table: tuple[np.ndarray, np.ndarray, np.ndarray], cache: Path) -> Iterator[str]:
    """Train every model on a set, and write its experiments; give a line about each."""
    features, labels, categorical = table
    parts = split_table(features, labels)
    if parts is None:
        yield f"{name}: left out, too small"
        return
    x_train, y_train, x_cal, y_cal, x_test, y_test = parts
    classes = int(y_train.max()) + 1
    dropped = len(np.unique(labels)) - classes
    family = "tabular-binary" if classes == 2 else "tabular-multiclass"
    for model_name in MODELS:
        experiment_name = f"{family}--{name}-{model_name}"
        if (cache / f"{experiment_name}.npz").exists():
            continue
        start = time.perf_counter()
        model = make_model(model_name, categorical).fit(x_train, y_train)
        scores = [model.predict_proba(x) for x in (x_cal, x_test)]
        Experiment(experiment_name, family, "probs", scores[0], y_cal, scores[1], y_test).save(cache)
        note = f", {dropped} small classes dropped" if dropped else ""
        seconds = time.perf_counter() - start
        yield f"{experiment_name}: {len(y_cal)} + {len(y_test)} rows, {classes} classes{note}, {seconds:.1f} s"


def prepare_table(name: str, path: Path | None, cache: Path) -> None:
    """Make the experiments of one set in this process, with one thread; without a path it is `digits`."""
    warnings.simplefilter("ignore")  # models that stop before they converge are as good for this as others
    with threadpool_limits(1):
        if path is None:
            features, labels = load_digits(return_X_y=True)
            table = (features, labels, np.zeros(features.shape[1], dtype=bool))
        else:
            table = read_table(path)
        for line in run_models(name, table, cache):
            print(line, flush=True)


def prepare(data: Path, cache: Path, zoo: Path = ZOO, jobs: int = 1) -> Counter[str]:
    """Fill the cache, and count the experiments of each family."""
    cache.mkdir(parents=True, exist_ok=True)
    readers = [(read_network, path) for path in sorted((data / "logits").glob("*.npz"))]
    readers += [(read_zoo, path) for path in sorted(zoo.glob("*-s0.npz"))]
    for read, path in readers:
        experiment = read(path)
        if not (cache / f"{experiment.name}.npz").exists():
            experiment.save(cache)
    paths = sorted((data / "tabular").glob("*.npz"))
    tables: list[tuple[str, Path | None, Path]] = [
        (path.stem, path, cache) for path in paths if path.stem not in DAMAGED
    ]
    with get_context("spawn").Pool(jobs) as pool:
        pool.starmap(prepare_table, [*tables, ("digits", None, cache)], chunksize=1)
    return Counter(path.name.split("--")[0] for path in list_cached(cache))


def main() -> None:
    """Fill the cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with logits/ and tabular/")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the experiments")
    parser.add_argument("--zoo", type=Path, default=ZOO, help="folder of the zoo")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    counts = prepare(arguments.data, arguments.cache, arguments.zoo, arguments.jobs)
    print(*(f"{family}: {counts[family]}" for family in FAMILIES), f"all: {counts.total()}", sep="\n")


if __name__ == "__main__":
    main()
