"""Networks trained on a real Ray: where a worker dies, its network goes on from the checkpoint."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from made_zoo import write_zoo

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("cluster")]


def worker_that_trains():
    """The process of this cluster that trains; None where it is not found."""
    socket = ray.nodes()[0]["RayletSocketName"]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_text().startswith("ray::_train_one"):
                parent = (process / "status").read_text().split("PPid:")[1].split()[0]
                if socket in Path("/proc", parent, "cmdline").read_text():
                    return int(process.name)
        except OSError:  # it has ended
            continue
    return None


def kill_once_begun(history, killed):
    """End the worker that trains, after its second epoch."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if history.exists() and history.read_text().count("\n") >= 2 and (worker := worker_that_trains()):
            os.kill(worker, signal.SIGKILL)
            killed.append(history.read_text().count("\n"))
            return
        time.sleep(0.01)


def test_a_worker_that_dies_costs_an_epoch(tmp_path):
    from refocal.scale.training import train
    from refocal.train.recipe import Recipe

    recipe = Recipe(data="digits", model="mlp", loss="focal", gamma=1.0, epochs=60)
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
    epochs = [json.loads(line)["epoch"] for line in history.read_text().splitlines()]
    assert epochs == list(range(1, 61))
    card = json.loads((tmp_path / recipe.name / "card.json").read_text())
    assert card["ran_on"]["engine"] == "ray"
    assert card["error"] < 0.2


def test_what_a_network_raises_comes_after_the_others_are_trained(tmp_path):
    from refocal.scale.training import spread

    def halve(number):
        if number % 2:
            msg = f"{number} is odd"
            raise ValueError(msg)
        return number // 2

    results = list(spread(halve, [2, 3, 4], gpu_share=0.5))
    assert sorted(result for result in results if isinstance(result, int)) == [1, 2]
    (error,) = (result for result in results if not isinstance(result, int))
    assert type(error) is ValueError
    assert str(error) == "3 is odd"


def test_figures_are_made_by_tasks(tmp_path, capsys):
    from refocal.cli import main

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
