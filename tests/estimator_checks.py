"""scikit-learn's checks that estimators of scores cannot pass, each for the reason given.

The checks pass features instead of scores.
"""

_FEATURES = "passes two features with labels of three classes, or labels that are not column numbers"
EXCLUDED = {
    "check_estimators_overwrite_params": _FEATURES,
    "check_estimators_fit_returns_self": _FEATURES,
    "check_readonly_memmap_input": _FEATURES,
    "check_estimators_nan_inf": _FEATURES,
    "check_classifiers_classes": _FEATURES,
    "check_classifiers_train": _FEATURES + "; it also expects an error for one-dimensional X, which is valid here",
}
