"""What the tests of invalid files share: small valid scores, and the check that a file is rejected."""

from __future__ import annotations

import re

import numpy as np
import pytest

from refocal.predictions import Predictions, PredictionsError, PredictionsReader

GOOD = np.array([[2.0, 1.0], [0.5, 1.5], [1.0, 0.0]])
HALF = np.full((3, 2), 0.5)


def assert_rejected(path, message):
    """Check that reading the file, whole and in blocks, raises the error and names the file."""
    expected = re.compile(re.escape(str(path)) + ".*" + message, re.DOTALL)
    with pytest.raises(PredictionsError, match=expected):
        Predictions.read(path)
    with pytest.raises(PredictionsError, match=expected), PredictionsReader(path) as blocks:
        list(blocks)
