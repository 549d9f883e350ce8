"""The mutants of a module: every small fault that `mutate.py` plants in it, one at a time.

A fault replaces one node of the syntax tree: another operator, comparison or constant, a sign or a keyword argument
that is missing, `min` for `max`, `x` for `abs(x)`. Messages, annotations, decorators and calls of `_check` are left
alone: they are no formulas.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "refocal"

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Add,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_PAIRS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("floor", "ceil"),
    ("sum", "mean"),
)
SWAPPED = dict(_PAIRS) | {second: first for first, second in _PAIRS} | {"amin": "amax", "amax": "amin"}
UNWRAPPED = {"abs", "sqrt", "log", "exp", "detach", "stop_gradient"}
# keywords that choose no value: an array library, a place, a copy
NO_FORMULA = {"xp", "copy", "device", "like", "maxsize", "stacklevel", "strict"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault: where it is, what it changes, and the lines that a test must run to notice it."""

    module: str  # maps/focal.py
    scope: str  # the function
    before: str
    after: str
    occurrence: int  # the first, second ... place in the function where `before` becomes `after`
    lines: tuple[int, int] | None  # first and last line of its statement; None: all functions of the module
    tree: ast.Module = dataclasses.field(repr=False, compare=False)
    plant: Callable[[], None] = dataclasses.field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """A name that stays when other lines of the module change."""
        again = f" (place {self.occurrence})" if self.occurrence > 1 else ""
        return f"{self.module} {self.scope}: {self.before} -> {self.after}{again}"

    def code(self) -> object:
        """The module with its fault: once for each tree, since the fault stays in it."""
        self.plant()
        return compile(ast.fix_missing_locations(self.tree), str(PACKAGE / self.module), "exec")


def mutants_of(module: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    found: list[Mutant] = []
    seen: dict[tuple[str, str, str], int] = {}
    for scope, lines, node, parent, field, index in _places(tree, (), None):
        for other in _variants(node):
            key = (".".join(scope) or "module", _text(node), _text(other))
            seen[key] = seen.get(key, 0) + 1
            plant = functools.partial(_put, parent, field, index, other)
            found.append(Mutant(module, *key, seen[key], lines, tree, plant))
    return found


def _text(node: ast.AST) -> str:
    """The node's text in one line."""
    return ast.unparse(node).replace("\n", " ")


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _places(
    parent: ast.AST, scope: tuple[str, ...], lines: tuple[int, int] | None
) -> Iterator[tuple[tuple[str, ...], tuple[int, int] | None, ast.AST, ast.AST, str, int | None]]:
    """Every node below `parent` that may change, with the function and the lines it belongs to."""
    for field, value in ast.iter_fields(parent):
        if field in (
            "annotation",
            "returns",
            "decorator_list",
            "bases",
            "keywords" if isinstance(parent, ast.ClassDef) else "",
        ):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(node, ast.AST) or _is_no_formula(node):
                continue
            inner, own = scope, lines
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                inner = (*scope, node.name)
            if isinstance(node, ast.FunctionDef):
                own = (node.lineno, node.end_lineno or node.lineno)  # for its defaults
            elif isinstance(node, ast.stmt) and not hasattr(node, "body") and lines is not None:
                own = (node.lineno, node.end_lineno or node.lineno)
            elif isinstance(node, ast.expr) and isinstance(parent, ast.If | ast.While | ast.For):
                own = (node.lineno, node.end_lineno or node.lineno) if lines is not None else None
            yield scope, own, node, parent, field, index
            yield from _places(node, inner, own)


def _is_no_formula(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Assert():
            return True
        case ast.Assign(targets=[ast.Name(id="msg" | "Array" | "__all__")]):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="_check"))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.keyword(arg=str() as name):
            return name in NO_FORMULA
    return False


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one small fault."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if not _is_text(left) and not _is_text(right):
            yield from (ast.BinOp(left, other(), right) for other in OPERATORS.get(type(op), ()))
        case ast.AugAssign(target=target, op=op, value=value):
            yield from (ast.AugAssign(target, other(), value) for other in OPERATORS.get(type(op), ()))
        case ast.BoolOp(op=op, values=values):
            yield from (ast.BoolOp(other(), values) for other in OPERATORS[type(op)])
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for place, op in enumerate(ops):
                for other in OPERATORS[type(op)]:
                    yield ast.Compare(left, [*ops[:place], other(), *ops[place + 1 :]], comparators)
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield operand
        case ast.IfExp(test=test, body=body, orelse=orelse) if _is_plain(test):
            yield ast.IfExp(test, orelse, body)
        case ast.Constant(value=bool() | int() | float() as value):
            yield ast.Constant(_other_number(value))
        case ast.Call():
            yield from _calls(node)


def _other_number(value: float) -> float:
    """The opposite truth, the next integer, the double of a float; 1.0 for 0.0."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return 2 * value if value else 1.0


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    """A call with another function, without one of its keywords, or its argument alone."""
    name = _called(node)
    if name in SWAPPED:
        func = copy.copy(node.func)
        setattr(func, "attr" if isinstance(func, ast.Attribute) else "id", SWAPPED[name])
        yield ast.Call(func, node.args, node.keywords)
    if name in UNWRAPPED:
        yield node.args[0] if node.args else node.func.value  # type: ignore[attr-defined]
    for place, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in NO_FORMULA and (name, keyword.arg) not in _required():
            yield ast.Call(node.func, node.args, node.keywords[:place] + node.keywords[place + 1 :])


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_plain(test: ast.AST) -> bool:
    """A condition that no other fault turns round."""
    return not isinstance(test, ast.Compare | ast.BoolOp) and not (
        isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    )


@functools.cache
def _required() -> frozenset[tuple[str, str]]:
    """Keyword arguments of refocal's functions that have no default: leaving one out is no fault that needs a test."""
    required = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                arguments = node.args
                for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
                    if default is None:
                        required.add((node.name, argument.arg))
    return frozenset(required)
