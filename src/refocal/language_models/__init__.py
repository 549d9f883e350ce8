"""Calibration of language models: how far their token probabilities can be trusted, from hidden states in one pass.

| you want | choose |
|---|---|
| NLL, perplexity and ECE of the next token, and fitted temperatures, without keeping logits | `TokenCalibration` |
| to train with focal loss | `refocal.losses.LinearFocalLoss` |
"""

from refocal._extras import require

require("torch", extra="torch", user="refocal.language_models")

from refocal.language_models.token_calibration import TokenCalibration  # noqa: E402
from refocal.language_models.token_report import FittedReadout, TokenReadout, TokenReport  # noqa: E402

__all__ = ["FittedReadout", "TokenCalibration", "TokenReadout", "TokenReport"]
