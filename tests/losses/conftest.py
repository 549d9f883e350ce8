"""Fixtures of the tests of the kernels: which kernels run, and plans that depend on changed constants."""

from __future__ import annotations

import pytest


@pytest.fixture
def kernels(monkeypatch):
    """The names of the kernels that compute, in the order of calls."""
    from refocal.losses.gpu import dispatch, plan

    names, make = [], plan.plan_focal_loss

    def spy(call):
        made = make(call)
        names.append(made.compute._kernel.fn.__name__)
        return made

    monkeypatch.setattr(dispatch, "plan_focal_loss", spy)
    return names


@pytest.fixture
def plan_anew():
    """Plans depend on constants of the planner, which tests change."""
    from refocal.losses.gpu import plan

    plan.plan_focal_loss.cache_clear()
    yield
    plan.plan_focal_loss.cache_clear()
