"""List all claims, find one by its id, and check them in several processes."""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import get_context

from flint import ctx

from refocal_lab.claims import (
    charoenphakdee2021,
    charoenphakdee2021_map,
    kimura2024,
    kimura2024_curvature,
    komisarenko2024,
    komisarenko2024_map,
    komisarenko2024_numbers,
    komisarenko2024_tables,
    mukhoti2020,
    mukhoti2020_entropy,
    mukhoti2020_linear,
    mukhoti2020_tables,
    networks,
)
from refocal_lab.claims.balls import PRECISION
from refocal_lab.claims.claim import Claim, ClaimRecord

_MODULES = (
    *(charoenphakdee2021, charoenphakdee2021_map),
    *(mukhoti2020, mukhoti2020_entropy, mukhoti2020_tables, mukhoti2020_linear),
    *(komisarenko2024, komisarenko2024_map, komisarenko2024_numbers, komisarenko2024_tables),
    *(kimura2024, kimura2024_curvature, networks),
)


def all_claims() -> tuple[Claim, ...]:
    """List every claim, paper by paper.

    Example:
        >>> sorted({claim.paper for claim in all_claims()})
        ['001', '002', '003', '004']
    """
    return tuple(claim for module in _MODULES for claim in module.CLAIMS)


def find(id: str) -> Claim:
    """Find a claim by its id.

    Args:
        id: For example "003-prop-5".

    Raises:
        ValueError: If there is no such claim; the message names the nearest id.

    Example:
        >>> find("003-prop-5").where
        'Proposition 5'
    """
    claims = {claim.id: claim for claim in all_claims()}
    if id not in claims:
        near = difflib.get_close_matches(id, claims, n=1, cutoff=0.0)
        msg = f"there is no claim {id!r}; the nearest is {near[0]!r}. `refocal-lab claims` lists all claims"
        raise ValueError(msg)
    return claims[id]


def check(
    ids: Sequence[str], *, processes: int | None = None, progress: Callable[[str], None] = lambda _: None
) -> list[ClaimRecord]:
    """Check claims.

    Args:
        ids: The claims to check.
        processes: Number of processes; by default one per core. A single claim is checked in this process.
        progress: Called with each id after its check.

    Returns:
        One record per id, in the order of `ids`.

    Raises:
        ValueError: If an id is unknown.
        RuntimeError: If a check could not decide.

    Example:
        >>> check(["001-thm-5"])[0].verdict
        'holds'
    """
    for id in ids:
        find(id)
    processes = min(processes or os.cpu_count() or 1, len(ids))
    records: dict[str, ClaimRecord] = {}
    if processes <= 1:
        for id in ids:
            records[id] = _check_one(id)
            progress(id)
        return [records[id] for id in ids]
    # spawn, not fork: forking a process with threads, such as that of a progress bar, can hang
    with get_context("spawn").Pool(processes, initializer=_ignore_interrupts) as pool:
        for record in pool.imap_unordered(_check_one, ids):
            records[record.id] = record
            progress(record.id)
    return [records[id] for id in ids]


def _ignore_interrupts() -> None:
    """Leave interrupts to the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _check_one(id: str) -> ClaimRecord:
    claim = find(id)
    try:
        with ctx.workprec(PRECISION):
            verdict, evidence = claim.check()
    except RuntimeError as error:
        msg = f"{id}: {error}"
        raise RuntimeError(msg) from error
    return ClaimRecord(
        claim.id,
        claim.paper,
        claim.where,
        claim.statement,
        claim.method.value,
        claim.domain,
        verdict.value,
        evidence,
    )
