"""What a name in a function stands for: an import, a builtin, something of its module, or its own. Pure."""

from __future__ import annotations

import ast
import builtins
import enum
from collections.abc import Iterator

_BUILTINS = frozenset(dir(builtins))
_SETS = frozenset({"set", "frozenset"})
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
_SET_ANNOTATIONS = frozenset({"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"})
_ORDERLESS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Scope(enum.Enum):
    """Where a name belongs."""

    LOCAL = "local"
    MODULE = "module"
    IMPORTED = "imported"
    BUILTIN = "builtin"


def imports_of(nodes: Iterator[ast.AST]) -> dict[str, str]:
    """Names that imports bind, and the dotted names they stand for."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            for alias in node.names:
                found[alias.asname or alias.name] = f"{start}.{alias.name}"
    return found


_DECLARED = frozenset({"external_step", "decision_table", "expression", "http_step", "kafka_step"})
"""Methods of an app that give a step without a function."""


class ModuleNames:
    """Names of a module: imports, what it assigns, its functions and classes, and which of them are steps."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports: dict[str, str] = {}
        self.assigned: set[str] = set()
        self.defined: set[str] = set()
        self.steps: set[str] = set()
        for node in _top(tree):
            self.imports.update(imports_of(iter([node])))
            if isinstance(node, Function | ast.ClassDef):
                self.defined.add(node.name)
                if any(_names_step(one) for one in node.decorator_list):
                    self.steps.add(node.name)
            for name in _bound(node):
                self.assigned.add(name)
                if isinstance(node, ast.Assign) and _is_declared_step(node.value):
                    self.steps.add(name)


def _top(tree: ast.Module) -> Iterator[ast.AST]:
    """Statements of the module itself, also those under ``if`` and ``try``."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            waiting += [
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler)
            ]


def _bound(node: ast.AST) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    for target in targets:
        yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name) and _stores(part))


def _stores(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _names_step(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "step"


def _is_declared_step(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _DECLARED


class FunctionNames:
    """Names as one function sees them."""

    def __init__(self, module: ModuleNames, function: Function) -> None:
        self._module = module
        inner = [node for statement in function.body for node in ast.walk(statement)]
        self._imports = {**module.imports, **imports_of(iter(inner))}
        self._globals = {name for node in inner if isinstance(node, ast.Global) for name in node.names}
        parameters = [node for node in ast.walk(function) if isinstance(node, ast.arg)]
        self._locals = {each.arg for each in parameters}
        self._locals |= {node.id for node in inner if isinstance(node, ast.Name) and _stores(node)}
        self._locals |= {node.name for node in inner if isinstance(node, Function | ast.ClassDef)}
        self._locals -= self._globals
        self._sets: set[str] = {each.arg for each in parameters if _annotated_as_set(each.annotation)}
        self._sets |= self._assigned_sets(inner)

    def _assigned_sets(self, inner: list[ast.AST]) -> set[str]:
        """Variables that hold sets and nothing else, as far as assignments tell."""
        held: dict[str, bool] = {}
        for node in inner:
            if isinstance(node, ast.Assign):
                for name in _bound(node):
                    plain = len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
                    held[name] = held.get(name, True) and plain and self.is_set(node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                held[node.target.id] = _annotated_as_set(node.annotation)
        return {name for name, always in held.items() if always}

    def scope(self, node: ast.expr) -> Scope | None:
        """Where the first name of an expression (``STATE`` of ``STATE["x"].y``) belongs; None where it has none."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        if node.id in self._locals:
            return Scope.LOCAL
        if node.id in self._imports:
            return Scope.IMPORTED
        if node.id in self._module.assigned or node.id in self._globals:
            return Scope.MODULE
        return Scope.MODULE if node.id in self._module.defined else Scope.BUILTIN if node.id in _BUILTINS else None

    def dotted(self, node: ast.expr) -> str | None:
        """The dotted name of an expression with imports resolved (``dt.now`` as ``datetime.datetime.now``), or None.

        What the module itself defines has a dot in front.
        """
        if isinstance(node, ast.Attribute):
            start = self.dotted(node.value)
            return None if start is None else f"{start}.{node.attr}"
        if not isinstance(node, ast.Name) or node.id in self._locals:
            return None
        if node.id in self._imports:
            return self._imports[node.id]
        return f".{node.id}" if node.id in self._module.assigned | self._module.defined else node.id

    def is_set(self, node: ast.expr) -> bool:
        """Whether an expression is a set whose order may differ between processes."""
        if isinstance(node, ast.Set):
            return not all(
                isinstance(one, ast.Constant) and not isinstance(one.value, str | bytes) for one in node.elts
            )
        if isinstance(node, ast.SetComp):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._sets
        if isinstance(node, ast.BinOp) and isinstance(node.op, _ORDERLESS):
            return self.is_set(node.left) or self.is_set(node.right)
        if isinstance(node, ast.Call):
            return self._makes_set(node)
        return False

    def _makes_set(self, node: ast.Call) -> bool:
        if self.dotted(node.func) in _SETS:
            return not (node.args and isinstance(node.args[0], ast.Call) and self.dotted(node.args[0].func) == "range")
        return isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS and self.is_set(node.func.value)


def _annotated_as_set(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.partition("[")[0].rpartition(".")[2] in _SET_ANNOTATIONS
    return ast.unparse(annotation).partition("[")[0].rpartition(".")[2] in _SET_ANNOTATIONS
