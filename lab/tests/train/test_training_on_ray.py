"""Training on a real Ray cluster: shares of a GPU, and a network that continues after its worker died."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from made_zoo import write_zoo

ray = pytest.importorskip("ray")
# on one loaded CPU, each task waits minutes for a worker that imports PyTorch and Matplotlib
pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.timeout(900)]
CLUSTER = {"num_cpus": 6, "num_gpus": 1}  # resources as Ray counts them; they need not exist


def worker_that_trains():
    """The process of this cluster that trains; None if it is not found."""
    socket = ray.nodes()[0]["RayletSocketName"]
    listed = subprocess.run(["ps", "axww", "-o", "pid=,ppid=,args="], check=True, capture_output=True).stdout
    processes = [line.split(maxsplit=2) for line in listed.decode(errors="replace").splitlines()]
    raylets = {process[0] for process in processes if socket in process[-1]}
    for pid, parent, *command in processes:
        if parent in raylets and command[:1] and command[0].startswith("ray::_train_one"):
            return int(pid)
    return None


def kill_once_begun(history, killed):
    """Kill the worker that trains, after its second epoch. It is found before its first epoch, which takes seconds."""
    deadline = time.monotonic() + 240
    while not (worker := worker_that_trains()) and time.monotonic() < deadline:
        time.sleep(0.2)
    while worker and time.monotonic() < deadline:
        if history.exists() and history.read_text(encoding="utf-8").count("\n") >= 2:
            os.kill(worker, signal.SIGKILL)
            killed.append(history.read_text(encoding="utf-8").count("\n"))
            return
        time.sleep(0.005)


@pytest.mark.skipif(shutil.which("ps") is None, reason="ps, which lists processes, is not installed")
@pytest.mark.thorough
def test_a_worker_that_dies_costs_an_epoch(tmp_path):
    from refocal_lab.train.on_ray import train
    from refocal_lab.train.recipe import TrainingRecipe

    recipe = TrainingRecipe(data="digits", model="mlp", loss="focal", gamma=1.0, epochs=60)
    history = tmp_path / recipe.name / "metrics.jsonl"
    killed: list[int] = []
    thread = threading.Thread(target=kill_once_begun, args=(history, killed), daemon=True)
    thread.start()
    names: list[str] = []
    train([recipe], tmp_path, finished=names.append)
    thread.join()
    assert names == [recipe.name]
    assert killed
    assert 2 <= killed[0] < 60
    epochs = [json.loads(line)["epoch"] for line in history.read_text(encoding="utf-8").splitlines()]
    assert epochs == list(range(1, 61))
    card = json.loads((tmp_path / recipe.name / "card.json").read_text(encoding="utf-8"))
    assert card["ran_on"]["engine"] == "ray"
    assert card["error"] < 0.2


def test_a_network_that_was_trained_elsewhere_did_not_run_on_the_cluster(tmp_path):
    from refocal_lab.train import loop
    from refocal_lab.train import on_ray as training
    from refocal_lab.train.data import load
    from refocal_lab.train.recipe import TrainingRecipe
    from refocal_lab.train.run_folder import RunFolder

    recipe = TrainingRecipe(data="digits", model="mlp", epochs=1)
    loop.train([recipe], load("digits"), tmp_path, device=torch.device("cpu"), report=lambda *_: None)
    before = RunFolder(tmp_path / recipe.name).read_card()
    training.train([recipe], tmp_path)
    assert RunFolder(tmp_path / recipe.name).read_card() == before


def test_parts_of_ones_own_are_found_by_the_workers(tmp_path, monkeypatch):
    from refocal_lab.train import on_ray as training
    from refocal_lab.train.recipe import TrainingRecipe
    from refocal_lab.train.run_folder import RunFolder

    (tmp_path / "ray_parts.py").write_text(
        "from torch import nn\n"
        "from refocal_lab.train.data import load\n"
        "def digits(): return load('digits')\n"
        "def small(*, classes, shape): return nn.Linear(shape[0], classes)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    recipe = TrainingRecipe(data="ray_parts:digits", model="ray_parts:small", epochs=2)
    training.train([recipe], tmp_path / "runs", data_folder=tmp_path)
    card = RunFolder(tmp_path / "runs" / recipe.name).read_card()
    assert card["model"] == "ray_parts:small"
    assert card["error"] < 0.3


def meeting(folder, partners):
    """Make a task that waits until as many others run as may run at once."""

    def running():
        begun = len(list(folder.glob("*.begun")))  # counted first, so that a task that ends meanwhile counts once
        return begun - len(list(folder.glob("*.ended")))

    def meet(number):
        (folder / f"{number}.begun").touch()
        deadline = time.monotonic() + 240
        while len(list(folder.glob("*.begun"))) < partners and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)  # time for one task too many to start
        most = running()
        given = ray.get_runtime_context().get_assigned_resources()
        (folder / f"{number}.ended").touch()
        return most, given, os.environ["CUDA_VISIBLE_DEVICES"]

    return meet


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_as_many_tasks_share_a_gpu_as_were_asked_for(tmp_path, at_once):
    from refocal_lab.train.on_ray import run_tasks

    found = list(run_tasks(meeting(tmp_path, at_once), range(6), gpu_share=1 / at_once))
    assert max(most for most, _, _ in found) == at_once  # there are six CPUs; the others wait for the GPU
    for _, given, visible in found:
        assert given == {"CPU": 1.0, "GPU": pytest.approx(1 / at_once, abs=1e-4)}
        assert visible == "0"
    assert len(found) == 6


def test_a_task_waits_for_a_gpu_that_another_has(tmp_path):
    from refocal_lab.train.on_ray import run_tasks

    @ray.remote(num_gpus=1)
    class Holder:
        def ready(self):
            return True

    holder = Holder.remote()
    assert ray.get(holder.ready.remote())
    results = run_tasks(meeting(tmp_path, 1), [0], gpu_share=0.25)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(results))
    thread.start()
    thread.join(timeout=1.0)
    assert thread.is_alive()
    assert not (tmp_path / "0.begun").exists()
    ray.kill(holder)
    thread.join(timeout=240)
    assert found == [(1, {"CPU": 1.0, "GPU": 0.25}, "0")]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--at-once", "0"], "at_once must be 1 to 10000, got 0"),
        (["--at-once", "20000"], "at_once must be 1 to 10000, got 20000"),
        (["--keep-logits", "200"], "keep_logits must be 1 to 150, got 200"),
        (["--device", "cuda"], "--device and --download do not work with --engine ray"),
        (["--address", "127.0.0.1:1"], "address must be .*, to which this process is connected, got '127.0.0.1:1'"),
        (["--engine", "local", "--address", "auto"], "--address needs --engine ray"),
    ],
)
def test_what_a_cluster_is_not_asked_for(tmp_path, capsys, more, reason):
    from refocal_lab.cli import main

    words = ["train", "--data", "digits", "--model", "mlp", "--epochs", "150", "--engine", "ray"]
    assert main([*words, "--out", str(tmp_path), *more]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(reason, said), said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "passed"), [("learned", "learned"), ("vectors.txt", str(Path("/here/vectors.txt"))), ("/a.txt", "/a.txt")]
)
def test_word_vectors_are_those_of_the_recipe(tmp_path, monkeypatch, given, passed):
    from refocal_lab.train import data
    from refocal_lab.train import on_ray as training
    from refocal_lab.train.recipe import TrainingRecipe

    asked = {}

    def load(name, **settings):
        asked.update(settings)
        raise FileNotFoundError(name)

    monkeypatch.setattr(data, "load", load)
    recipe = TrainingRecipe(data="sst", model="tree-lstm", word_vectors=given)
    settings = {"out": tmp_path, "data_folder": None, "working_folder": Path("/here"), "compiled": False}
    with pytest.raises(FileNotFoundError, match="sst"):
        training._train_one(recipe, **settings, keep_logits=())
    assert asked["word_vectors"] == passed


def test_what_a_network_raises_comes_after_the_others_are_trained(tmp_path):
    from refocal_lab.train.on_ray import run_tasks

    def halve(number):
        if number % 2:
            msg = f"{number} is odd"
            raise ValueError(msg)
        return number // 2

    results = list(run_tasks(halve, [2, 3, 4], gpu_share=0.5))
    assert sorted(result for result in results if isinstance(result, int)) == [1, 2]
    (error,) = (result for result in results if not isinstance(result, int))
    assert type(error) is ValueError
    assert str(error) == "3 is odd"


def test_what_brings_down_its_workers_is_named(monkeypatch):
    from refocal.scale import tasks
    from refocal_lab.train import on_ray as training

    monkeypatch.setattr(training, "RETRIES", 1)
    monkeypatch.setattr(tasks, "RETRIES", 1)
    (error,) = training.run_tasks(lambda _: os._exit(1), ["003-fig-3"], gpu_share=0.5)
    assert str(error).startswith("a worker died 2 times while it worked on 003-fig-3: ")


def test_all_reasons_are_told():
    from refocal_lab.train.on_ray import raise_all

    with pytest.raises(OSError, match=r"^gone$"):
        raise_all([OSError("gone")])
    with pytest.raises(RuntimeError, match=r"^3 tasks failed: gone; diverged$"):
        raise_all([OSError("gone"), RuntimeError("diverged"), OSError("gone")])


@pytest.mark.thorough
def test_figures_are_made_by_tasks(tmp_path, capsys):
    from refocal_lab.cli import main

    experiments = Path(__file__).parents[2] / "experiments"
    zoo = write_zoo(tmp_path / "zoo", seeds=1, gammas=(0.0,))
    words = ["reproduce", "003-fig-3", "002-table-3", "--scale", "smoke", "--experiments", str(experiments)]
    words += ["--engine", "ray", "--results", str(tmp_path), "--zoo", str(zoo), "--json"]
    assert main(words) == 0
    made = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["id"] for record in made} == {"003-fig-3", "002-table-3"}
    assert any("error(cifar10 resnet20, cross-entropy, raw)" in record["values"] for record in made)
    assert all((tmp_path / record["id"] / "smoke" / "figure.svg").exists() for record in made)
    assert main([*words, "--address", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["train plan.toml", "reproduce --all"])
def test_an_address_means_ray(words):
    from refocal_lab.cli.parser import build_parser

    given = [*words.split(), "--address", "auto"]
    assert build_parser().parse_args(given).engine == "ray"
    assert build_parser().parse_args([*given, "--engine", "local"]).engine == "local"
    assert build_parser().parse_args(words.split()).engine is None
