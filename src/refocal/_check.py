"""Checks of arguments, called only by public functions.

Shapes, dtypes and hyper-parameters are always checked. Values are checked only if that has no side effects: on concrete
arrays in main memory (on a GPU it would block, and it would break tracing).
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from refocal._arrays import Array, Namespace, can_read_values, is_jax, is_torch, namespace

Input = Literal["logits", "probs"]  # whether scores are logits or probabilities
INPUTS: tuple[Input, ...] = get_args(Input)
Word = TypeVar("Word", bound=str)
Constants = float | tuple[float, ...]
FOR_LOGITS = "for logits, pass input='logits'"
_MOST = 1_000_000
LARGEST_SEED = 2**64 - 1  # the largest that PyTorch accepts
LARGEST_WEIGHT = 1e100  # of a sample: any possible sum of squares is finite
SMALLEST_WEIGHT = 1e-100  # of the heaviest sample: its square is not 0


def floating(array: Any, name: str) -> tuple[Namespace, Any]:
    """Check for a floating-point array and return its namespace and itself; sequences become NumPy arrays."""
    unmasked(array, name)
    try:
        if isinstance(array, (list, tuple, float, int)):
            array = np.asarray(array)
        xp = namespace(array)
    except (TypeError, ValueError) as error:
        found = "rows of different lengths" if isinstance(array, (list, tuple)) else type(array).__name__
        msg = f"{name} must be an array (NumPy, PyTorch, JAX or another array-API array), got {found}"
        raise TypeError(msg) from error
    if not xp.isdtype(array.dtype, "real floating"):
        msg = f"{name} must have a floating-point dtype, got {array.dtype}"
        raise TypeError(msg)
    return xp, array


def unmasked(array: Any, name: str) -> Any:
    """Reject NumPy masked arrays, alone or as rows of a list: masked values would be used like all others."""
    parts = array if isinstance(array, list | tuple) else [array]
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        msg = f"{name} must not be a masked array: leave out the masked rows, or fill them with .filled(value)"
        raise TypeError(msg)
    return array


def classes_last(array: Array, name: str) -> None:
    """Check that the last axis has at least two classes."""
    class_axis(-1, array, name)


def class_axis(value: Any, array: Array, name: str) -> int:
    """Check for an axis with at least two classes, and return it counted from the first."""
    if array.ndim < 1:
        msg = f"{name} must have shape (..., classes), got a number"
        raise ValueError(msg)
    place = axis(value, array, name)
    if array.shape[place] < 2:
        where = "its last axis" if place == array.ndim - 1 else f"axis {place}"
        msg = f"{name} must have at least 2 classes on {where}, got shape {tuple(array.shape)}"
        raise ValueError(msg)
    return place


def axis(value: Any, array: Array, name: str) -> int:
    """Check for an axis of an array, and return it counted from the first."""
    number = whole(value, "axis")
    if not -array.ndim <= number < array.ndim:
        msg = f"axis must be an axis of {name} with shape {tuple(array.shape)}, got {number}"
        raise ValueError(msg)
    return number % array.ndim


def same_shape(first: Array, second: Array, names: str) -> None:
    """Check that two arrays have the same shape."""
    shapes = tuple(first.shape), tuple(second.shape)
    if shapes[0] != shapes[1]:
        msg = f"{names} must have the same shape, got {shapes[0]} and {shapes[1]}"
        raise ValueError(msg)


def logits(array: Array, name: str, *, xp: Namespace) -> None:
    """Check for no NaN, no +inf, and at least one class per row that is not masked with -inf."""
    if not can_read_values(array):
        return
    largest = xp.max(array, axis=-1)  # NaN and +inf appear in the maximum of their row
    reject_rows(
        ~xp.isfinite(largest),
        largest,
        f"{name} must be finite or -inf (masked), with at least one finite value per row",
        xp,
    )


def possible_class(array: Array, name: str, *, xp: Namespace) -> None:
    """Check that each row has a score above -inf."""
    if can_read_values(array):
        largest = xp.max(array, axis=-1)
        reject_rows(
            largest == -xp.inf, largest, f"{name} must have a value above -inf in each row if normalize=True", xp
        )


def real(array: Array, name: str, *, xp: Namespace) -> None:
    """Check for no NaN; infinite values mean certainty."""
    if can_read_values(array):
        reject_rows(xp.isnan(array), array, f"{name} must not be NaN", xp)


def probabilities(array: Array, name: str, *, xp: Namespace, hint: str | None = None) -> None:
    """Check that each value lies in [0, 1]; `hint` is what a message says to a caller who passed logits."""
    if can_read_values(array):
        end = "" if hint is None else f" ({hint})"
        reject_rows(~((array >= 0) & (array <= 1)), array, f"{name} must lie in [0, 1]{end}", xp)


def log_probabilities(array: Array, name: str, *, xp: Namespace) -> None:
    """Check that each value is <= 0."""
    if can_read_values(array):
        reject_rows(~(array <= 0), array, f"{name} must be log-probabilities, <= 0", xp)


def simplex(array: Array, name: str, *, xp: Namespace, bits: int | None = None, hint: str | None = None) -> None:
    """Check that rows are non-negative and sum to 1.

    Args:
        array: Rows (..., K).
        name: Their name in messages.
        xp: The array namespace.
        bits: The precision in which the rows were computed; None for that of the array.
        hint: What a message says to a caller who passed logits.
    """
    if not can_read_values(array):
        return
    smallest = xp.min(array, axis=-1)
    end = "" if hint is None else f" ({hint})"
    reject_rows(~(smallest >= 0), smallest, f"{name} must be non-negative and not NaN{end}", xp)
    own = xp.finfo(array.dtype).bits
    sums = xp.sum(xp.astype(array, xp.float32) if own < 32 else array, axis=-1)
    reject_rows(
        ~(xp.abs(sums - 1) <= sum_tolerance(own if bits is None else bits)),
        sums,
        f"rows of {name} must sum to 1 ({hint or 'are these logits?'})",
        xp,
    )


def sum_tolerance(bits: int) -> float:
    """Return how far from 1 a row may sum in this precision: a softmax over 100,000 classes passes, others do not."""
    return 1e-4 if bits >= 32 else 0.02


def one_of(value: Any, name: str, allowed: tuple[Word, ...]) -> Word:
    """Check that a word is one of those allowed."""
    if not isinstance(value, str) or value not in allowed:
        msg = f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}"
        raise ValueError(msg)
    return allowed[allowed.index(value)]


def input_word(value: Any) -> Input:
    """Check the word that says whether scores are logits or probabilities."""
    return one_of(value, "input", INPUTS)


def count(value: Any, name: str, *, least: int = 1, most: int | None = None) -> int:
    """Check for a whole number within bounds; without `most` the limit is a million, to bound memory and time."""
    largest = _MOST if most is None else most
    is_range = most is not None and most <= _MOST  # a message need not quote a larger limit
    bounds = f"{least} to {most}" if is_range else f"at least {least}"
    value = whole(value, name, bounds=bounds)
    if not least <= value <= largest:
        if value > largest and not is_range:
            bounds = f"at most {largest:,}"
        msg = f"{name} must be {bounds}, got {value if abs(value) < 10**100 else 'a number with over 100 digits'}"
        raise ValueError(msg)
    return value


def seed(value: Any, name: str) -> int:
    """Check for a seed of random numbers."""
    return count(value, name, least=0, most=LARGEST_SEED)


def generator(value: Any, name: str) -> np.random.Generator:
    """Check for a seed, or a generator, and return a generator."""
    return value if isinstance(value, np.random.Generator) else np.random.default_rng(seed(value, name))


def whole(value: Any, name: str, *, bounds: str = "") -> int:
    """Check for a whole number; `bounds` is part of the message."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        msg = f"{name} must be {', '.join(filter(None, ('a whole number', bounds)))}, got {value!r}"
        raise TypeError(msg)
    return int(value)


def share(value: Any, name: str) -> float:
    """Check for a number strictly between 0 and 1."""
    number = _number(value, name)
    if not 0 < number < 1:
        msg = f"{name} must lie strictly between 0 and 1, got {number}"
        raise ValueError(msg)
    return number


def sample_weights(weights: np.ndarray, name: str) -> None:
    """Check that sums and squares of sample weights (finite, non-negative) neither overflow nor vanish."""
    heaviest = float(weights.max(initial=0.0))
    if heaviest > LARGEST_WEIGHT or 0 < heaviest < SMALLEST_WEIGHT:
        msg = (
            f"the largest value of {name} must lie between {SMALLEST_WEIGHT:g} and {LARGEST_WEIGHT:g}, "
            f"got {heaviest:g}: divide all weights by the same number"
        )
        raise ValueError(msg)


def labels(array: Any, like: Array, name: str, *, xp: Namespace) -> Any:
    """Check for integer class indices, one for each row of `like`, within its classes."""
    unmasked(array, name)
    if isinstance(array, (list, tuple, int)):
        array = xp.asarray(np.asarray(array, dtype=None if np.size(array) else np.int64))
    try:
        same_library = namespace(array) is xp
    except TypeError:
        same_library = False
    if not same_library:
        msg = f"{name} must be a list or an array of the same library as the predictions, got {type(array).__name__}"
        raise TypeError(msg)
    if not xp.isdtype(array.dtype, "integral"):
        msg = f"{name} must have an integer dtype, got {array.dtype}"
        raise TypeError(msg)
    if tuple(array.shape) != tuple(like.shape[:-1]):
        msg = f"{name} must have shape {tuple(like.shape[:-1])}, one label per row, got {tuple(array.shape)}"
        raise ValueError(msg)
    classes = like.shape[-1]
    if can_read_values(array):
        reject_rows((array < 0) | (array >= classes), array, f"{name} must be from 0 to {classes - 1}", xp)
    # JAX warns about int64 unless it is enabled, and takes any integers as indices
    return array if is_jax(array) else xp.astype(array, xp.int64, copy=False)


def gamma(value: Any, *, classes: int | None, least: float | None = None) -> Constants:
    """Check a focusing parameter, > -1 (or >= `least`): a number, or one per class; equal values become one."""
    numbers = _numbers(value, "gamma", classes)
    for number in numbers if isinstance(numbers, tuple) else (numbers,):
        # not math.isfinite: torch.compile treats the gamma of a second loss as a variable, which isfinite rejects
        if not (number < math.inf and (number > -1 if least is None else number >= least)):
            bound = "greater than -1" if least is None else f"at least {least:g}"
            msg = f"gamma must be {bound} and finite, got {number}"
            raise ValueError(msg)
    return numbers[0] if isinstance(numbers, tuple) and len(set(numbers)) == 1 else numbers


def scalar_gamma(value: Any, *, least: float | None = None, above: float | None = None) -> float:
    """Check a single focusing parameter."""
    number = _number(value, "gamma")
    if above is not None and not above < number < math.inf:
        msg = f"gamma must be greater than {above:g} and finite, got {number}"
        raise ValueError(msg)
    gamma(number, classes=None, least=least)
    return number


def weight(value: Any, *, classes: int) -> Any:
    """Check class weights: positive, finite, one per class; equal weights have no effect and become None.

    A tensor is returned unchanged during compilation, because its values are unknown.
    """
    if value is None:
        return None
    if is_torch(value) and not can_read_values(value) and tuple(value.shape) == (classes,):
        return value
    numbers = _numbers(value, "weight", classes)
    if not isinstance(numbers, tuple):
        msg = f"weight must have one value for each of {classes} classes, got a number"
        raise ValueError(msg)
    for index, number in enumerate(numbers):
        if not (number > 0 and math.isfinite(number)):
            msg = f"weight must be positive and finite, got {number} for class {index}"
            raise ValueError(msg)
    return None if len(set(numbers)) == 1 else numbers


def alpha(value: Any, *, classes: int | None) -> Constants | None:
    """Check the balance of sigmoid focal loss, in (0, 1): a number, or one per class."""
    if value is None:
        return None
    numbers = _numbers(value, "alpha", classes)
    for number in numbers if isinstance(numbers, tuple) else (numbers,):
        if not 0 < number < 1:
            msg = f"alpha must lie strictly between 0 and 1 (or be None), got {number}"
            raise ValueError(msg)
    return numbers


def label_smoothing(value: Any, *, allow_one: bool = False) -> float:
    """Check a smoothing epsilon in [0, 1), which can be undone; `allow_one` also permits 1."""
    number = _number(value, "label_smoothing")
    if not (0 <= number < 1 or (allow_one and number == 1)):
        msg = f"label_smoothing must lie in [0, 1{']' if allow_one else ')'}, got {number}"
        raise ValueError(msg)
    return number


def positive(value: Any, name: str) -> float:
    """Check for a positive, finite number."""
    number = _number(value, name)
    if not 0 < number < math.inf:  # not math.isfinite: see `gamma`
        msg = f"{name} must be positive and finite, got {number}"
        raise ValueError(msg)
    return number


def finite(value: Any, name: str, *, least: float | None = None) -> float:
    """Check for a finite number, >= `least` if given."""
    number = _number(value, name)
    if not (-math.inf < number < math.inf and (least is None or number >= least)):
        bound = "" if least is None else f"at least {least:g} and "
        msg = f"{name} must be {bound}finite, got {number}"
        raise ValueError(msg)
    return number


def interval(value: Any, name: str) -> tuple[float, float]:
    """Check for a pair of numbers, or r for (-r, r)."""
    numbers = _numbers(value, name, 2, several="a pair of numbers")
    return (numbers[0], numbers[1]) if isinstance(numbers, tuple) else (-numbers, numbers)


def _numbers(value: Any, name: str, size: int | None, *, several: str = "") -> Constants:
    """Convert to a float or to `size` floats, without array libraries, so that compilers can trace it.

    `several` describes the floats in error messages; by default they are one per class.
    """
    if isinstance(value, (int, float)):
        return float(value)
    if getattr(value, "requires_grad", False):
        msg = f"{name} must be a constant: pass a number or a tensor that does not require a gradient"
        raise TypeError(msg)
    try:
        if isinstance(value, (str, bytes, dict)):
            raise TypeError
        plain = value.tolist() if hasattr(value, "tolist") else list(value)
        numbers = float(plain) if isinstance(plain, (int, float)) else tuple(float(number) for number in plain)
    except (TypeError, ValueError) as error:
        allowed = "a number" if size is None else f"a number or {several or 'a sequence of numbers'}"
        msg = f"{name} must be {allowed}, got {value!r}"
        raise TypeError(msg) from error
    if isinstance(numbers, tuple) and (not size or len(numbers) != size):
        several = several or (f"one value for each of {size} classes" if size else "one value per class")
        allowed = "a single number" if size is None else f"a number or {several}"
        msg = f"{name} must be {allowed}, got {len(numbers)} values"
        raise ValueError(msg)
    return numbers


def _number(value: Any, name: str) -> float:
    number = _numbers(value, name, None)
    assert isinstance(number, float)
    return number


def reject_rows(
    bad: Array,
    values: Array,
    message: str,
    xp: Namespace = np,
    *,
    shape: tuple[int, ...] | None = None,
    rows: np.ndarray | int = 0,
) -> None:
    """Raise an error that names the first bad row, if there is one.

    Args:
        bad: Whether a row is bad, one value per row.
        values: The values that the error quotes, of the shape of `bad`.
        message: The start of the error message: what is allowed.
        xp: The array namespace.
        shape: The shape of all rows, if `bad` is a block of them; None if it has all rows.
        rows: The flat indices of the block's rows in `shape`, or the first of consecutive ones.
    """
    if not bool(xp.any(bad)):
        return
    first = int(xp.argmax(xp.astype(xp.reshape(bad, (-1,)), xp.uint8)))
    value = xp.reshape(values, (-1,))[first]
    found = int(value) if xp.isdtype(values.dtype, "integral") else float(value)
    flat = rows + first if isinstance(rows, int) else int(rows[first])
    index = tuple(int(i) for i in np.unravel_index(flat, tuple(bad.shape) if shape is None else shape))
    where = f" in row {index[0] if len(index) == 1 else index}" if index else ""
    msg = f"{message}, got {found}{where}"
    raise ValueError(msg)
