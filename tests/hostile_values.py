"""Values and files that are made to harm, for the tests of both houses."""

from __future__ import annotations

import os
import re

import pytest

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
ESCAPES = "\x1b[31mred[/bold]\x07"
DEEP = "[" * 100_000
HOSTILE = [None, "x", True, -1, 10**400, float("nan"), float("inf"), [], {}, [[]], {"a": {"b": []}}, ESCAPES]
needs_fifo = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the operating system has no FIFOs")
