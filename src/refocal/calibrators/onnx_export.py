"""Export of a fitted calibrator to an ONNX graph.

The functions that predict also write the graph: they run on symbols instead of arrays, and a symbol records the
operations on it. The graph has float32 input and output and computes in float64 in between, so that jumps of a map and
saturated logits give the same results as `predict_proba`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal._files import replacing

if TYPE_CHECKING:
    from refocal.calibrators.base import Calibrator

_OPSET = 20
_IR_VERSION = 10
Shape = tuple[int | None, ...]


def to_onnx(calibrator: Calibrator, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a fitted calibrator to an ONNX file, which appears only when it is complete."""
    import onnx
    from onnx import TensorProto, helper

    head, columns = calibrator._export_head()
    graph = Graph()
    scores: Any = graph.cast(Symbol(graph, calibrator.input_, (None, columns), np.dtype(np.float32)), np.float64)
    arrays = {name: graph.constant(array) for name, array in head.arrays.items()}
    probs = head.compute(
        scores, arrays, probs=calibrator.input_ == "probs", limits=np.finfo(np.float32), log=False, xp=graph
    )
    result = probs if head.sets else graph.cast(probs, np.float32)
    name, kind = ("sets", TensorProto.BOOL) if head.sets else ("probabilities", TensorProto.FLOAT)
    graph.nodes.append(helper.make_node("Identity", [result.name], [name]))
    used = {name for node in graph.nodes for name in node.input}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            type(calibrator).__name__,
            [helper.make_tensor_value_info(calibrator.input_, TensorProto.FLOAT, ["batch", columns])],
            [helper.make_tensor_value_info(name, kind, ["batch", head.count_outputs(columns)])],
            initializer=[constant for constant in graph.constants if constant.name in used],
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="refocal",
    )
    onnx.checker.check_model(model, full_check=True)
    with replacing(path, overwrite=overwrite) as file:
        file.write(model.SerializeToString())


class Symbol:
    """An array that exists when the graph runs; the length of its batch dimension is None."""

    device = "cpu"

    def __init__(self, graph: Graph, name: str, shape: Shape, dtype: np.dtype, value: np.ndarray | None = None) -> None:
        self.graph, self.name, self.shape, self.dtype, self.value = graph, name, shape, dtype, value
        self.ndim = len(shape)

    def __getitem__(self, key: Any) -> Symbol:
        if isinstance(key, int):
            assert self.value is not None
            return self.graph.constant(self.value[key])
        _, last = key  # [..., start:] or [..., start:stop]
        length = self.shape[-1]
        assert length is not None
        stop = length if last.stop is None else last.stop
        bounds = [self.graph.constant(np.array([number])) for number in (last.start, stop, -1)]
        return self.graph.node("Slice", [self, *bounds], (*self.shape[:-1], stop - last.start), self.dtype)

    def __neg__(self) -> Symbol:
        return self.graph.node("Neg", [self], self.shape, self.dtype)

    def __invert__(self) -> Symbol:
        return self.graph.node("Not", [self], self.shape, self.dtype)

    def __add__(self, other: Any) -> Symbol:
        return self.graph.pairwise("Add", self, other)

    def __mul__(self, other: Any) -> Symbol:
        return self.graph.pairwise("Mul", self, other)

    def __sub__(self, other: Any) -> Symbol:
        return self.graph.pairwise("Sub", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return self.graph.pairwise("Sub", other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return self.graph.pairwise("Div", self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return self.graph.pairwise("Div", other, self)

    def __and__(self, other: Any) -> Symbol:
        return self.graph.pairwise("And", self, other)

    def __or__(self, other: Any) -> Symbol:
        return self.graph.pairwise("Or", self, other)

    def __lt__(self, other: Any) -> Symbol:
        return self.graph.pairwise("Less", self, other, dtype=bool)

    def __gt__(self, other: Any) -> Symbol:
        return self.graph.pairwise("Greater", self, other, dtype=bool)

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]
        return self.graph.pairwise("Equal", self, other, dtype=bool)

    __hash__ = None  # type: ignore[assignment]
    __radd__, __rmul__ = __add__, __mul__


class Graph:
    """The part of the array-API namespace that heads use, for symbols. It keeps the graph's nodes and constants."""

    inf = math.inf
    float64, int64 = np.dtype(np.float64), np.dtype(np.int64)

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> Symbol:
        """Store numbers in the graph."""
        from onnx import numpy_helper

        array = np.ascontiguousarray(value).reshape(np.shape(value))
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return Symbol(self, name, array.shape, array.dtype, array)

    def node(self, operation: str, inputs: list[Symbol], shape: Shape, dtype: Any, **attributes: Any) -> Symbol:
        """Add one step of the computation."""
        from onnx import helper

        name = f"n{len(self.nodes)}"
        names = [symbol.name for symbol in inputs]
        self.nodes.append(helper.make_node(operation, names, [name], **attributes))
        return Symbol(self, name, shape, np.dtype(dtype))

    def pairwise(self, operation: str, first: Any, second: Any, *, dtype: Any = None) -> Symbol:
        """Add an operation on two arrays, or on an array and a number of its kind."""
        kind = next(each.dtype for each in (first, second) if isinstance(each, Symbol))
        pair = [each if isinstance(each, Symbol) else self.constant(kind.type(each)) for each in (first, second)]
        return self.node(operation, pair, _broadcast(pair[0].shape, pair[1].shape), dtype or kind)

    def cast(self, x: Symbol, dtype: Any) -> Symbol:
        """Convert to another dtype."""
        from onnx import helper

        code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.node("Cast", [x], x.shape, dtype, to=code)

    def asarray(self, value: Any, *, dtype: Any, device: Any) -> Symbol:  # noqa: ARG002, D102
        return self.constant(np.asarray(value, dtype=dtype))

    def arange(self, stop: int, *, device: Any) -> Symbol:  # noqa: ARG002, D102
        return self.constant(np.arange(stop))

    def full_like(self, x: Symbol, value: float) -> Symbol:  # noqa: D102
        return self.constant(x.dtype.type(value))

    def astype(self, x: Symbol, dtype: Any, *, copy: bool = True) -> Symbol:  # noqa: ARG002, D102
        return x if x.dtype == dtype else self.cast(x, dtype)

    def exp(self, x: Symbol) -> Symbol:  # noqa: D102
        return self.node("Exp", [x], x.shape, x.dtype)

    def log(self, x: Symbol) -> Symbol:  # noqa: D102
        return self.node("Log", [x], x.shape, x.dtype)

    def log1p(self, x: Symbol) -> Symbol:
        """Compute log(1 + x), which ONNX lacks, as log(1 + x) x / ((1 + x) - 1): rounding errors of 1 + x cancel."""
        shifted = 1 + x
        lost = shifted == 1.0
        return self.where(lost, x, self.log(shifted) * (x / self.where(lost, 1.0, shifted - 1)))

    def expm1(self, x: Symbol) -> Symbol:  # noqa: D102
        return self.exp(x) - 1

    def isinf(self, x: Symbol) -> Symbol:  # noqa: D102
        return self.node("IsInf", [x], x.shape, bool)

    def minimum(self, x: Symbol, y: Symbol) -> Symbol:  # noqa: D102
        return self.pairwise("Min", x, y)

    def where(self, condition: Symbol, x: Any, y: Any) -> Symbol:  # noqa: D102
        kind = next((each.dtype for each in (x, y) if isinstance(each, Symbol)), self.float64)
        pair = [each if isinstance(each, Symbol) else self.constant(kind.type(each)) for each in (x, y)]
        shape = _broadcast(condition.shape, _broadcast(pair[0].shape, pair[1].shape))
        return self.node("Where", [condition, *pair], shape, kind)

    def sum(self, x: Symbol, *, axis: int, keepdims: bool) -> Symbol:  # noqa: D102
        return self._reduce("ReduceSum", x, axis, keepdims)

    def max(self, x: Symbol, *, axis: int, keepdims: bool) -> Symbol:  # noqa: D102
        return self._reduce("ReduceMax", x, axis, keepdims)

    def mean(self, x: Symbol, *, axis: int, keepdims: bool) -> Symbol:  # noqa: D102
        return self._reduce("ReduceMean", x, axis, keepdims)

    def _reduce(self, operation: str, x: Symbol, axis: int, keepdims: bool) -> Symbol:
        assert axis == -1
        assert keepdims
        return self.node(operation, [x, self.constant(np.array([-1]))], (*x.shape[:-1], 1), x.dtype, keepdims=1)

    def argmax(self, x: Symbol, *, axis: int, keepdims: bool) -> Symbol:  # noqa: D102
        return self.node("ArgMax", [x], (*x.shape[:-1], 1), np.int64, axis=axis, keepdims=int(keepdims))

    def take_along_axis(self, x: Symbol, index: Symbol, *, axis: int) -> Symbol:  # noqa: D102
        return self.node("GatherElements", [x, index], index.shape, x.dtype, axis=axis)

    def take(self, x: Symbol, index: Symbol, *, axis: int) -> Symbol:  # noqa: D102
        return self.node("Gather", [x, index], index.shape, x.dtype, axis=axis)

    def sort(self, x: Symbol, *, axis: int) -> Symbol:
        """Sort each row, the smallest first."""
        from onnx import helper

        name, size = f"n{len(self.nodes)}", self.constant(np.array([x.shape[-1]]))
        outputs = [name, f"{name}_places"]
        self.nodes.append(helper.make_node("TopK", [x.name, size.name], outputs, axis=axis, largest=0, sorted=1))
        return Symbol(self, name, x.shape, x.dtype)

    def cumulative_sum(self, x: Symbol, *, axis: int) -> Symbol:  # noqa: D102
        return self.node("CumSum", [x, self.constant(np.array(axis))], x.shape, x.dtype)

    def concat(self, parts: list[Symbol], *, axis: int) -> Symbol:  # noqa: D102
        lengths = [part.shape[-1] for part in parts]
        total = sum(length for length in lengths if length is not None)
        return self.node("Concat", parts, (*parts[0].shape[:-1], total), parts[0].dtype, axis=axis)

    def reshape(self, x: Symbol, shape: Shape) -> Symbol:  # noqa: D102
        if x.value is not None:
            return self.constant(x.value.reshape([-1 if length is None else length for length in shape]))
        sizes = self.constant(np.array([-1 if length is None else length for length in shape]))
        return self.node("Reshape", [x, sizes], tuple(None if length == -1 else length for length in shape), x.dtype)

    def permute_dims(self, x: Symbol, axes: tuple[int, ...]) -> Symbol:  # noqa: D102
        assert x.value is not None
        return self.constant(np.transpose(x.value, axes))

    def matmul(self, x: Symbol, y: Symbol) -> Symbol:  # noqa: D102
        return self.node("MatMul", [x, y], (*x.shape[:-1], y.shape[-1]), x.dtype)


def _broadcast(first: Shape, second: Shape) -> Shape:
    """Compute the shape of a pairwise operation. A batch of unknown length goes with itself and with 1."""
    length = max(len(first), len(second))
    padded = [(1,) * (length - len(shape)) + shape for shape in (first, second)]
    return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))
