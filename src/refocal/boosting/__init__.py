"""Focal loss for boosted trees: objectives, metrics and probabilities for LightGBM, XGBoost and CatBoost.

`BinaryFocal(gamma=2)` and `MulticlassFocal(gamma=2)` hold the settings of the loss. Their `lightgbm`, `xgboost` and
`catboost` give what each package asks for: an objective, a metric for early stopping, and the probabilities of a fitted
model. The packages come with the extra `boosting`.
"""

from typing import TYPE_CHECKING

from refocal._lazy import lazy_names

if TYPE_CHECKING:
    from refocal.boosting.focal import BinaryFocal, MulticlassFocal

__getattr__, __dir__ = lazy_names(__name__, {"focal": ("BinaryFocal", "MulticlassFocal")})

__all__ = ["BinaryFocal", "MulticlassFocal"]
