"""Finds by reading, in a syntax tree, what makes a workflow function decide otherwise when it is replayed. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import msgspec

from ductor_stream.cli import determinism_rules as rules
from ductor_stream.cli.determinism_names import FunctionNames, ModuleNames, Scope
from ductor_stream.cli.determinism_rules import Rule

IGNORE = "# ductor: ignore"
"""A comment that silences its line."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(msgspec.Struct, frozen=True, order=True):
    """One place in the code that breaks determinism, with the reason and the remedy."""

    file: str
    line: int
    column: int
    code: str
    found: str
    why: str
    remedy: str
    function: str


class SourceModule:
    """A file that was read: its tree, its lines, and what its names stand for. Raises SyntaxError."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = text.splitlines()
        self.tree = ast.parse(text, file)
        self.names = ModuleNames(self.tree)

    def function_at(self, line: int) -> Function | None:
        """The function whose first line (of its decorators, if it has any) this is."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if first == line:
                    return node
        return None

    def silenced(self, first: int, last: int) -> bool:
        """Whether one of these lines carries the comment."""
        return any(IGNORE in line for line in self.lines[first - 1 : last])


class Reading(msgspec.Struct):
    """What was found in one function: slips, how many were silenced, and names of what else it uses."""

    findings: list[Finding]
    ignored: int
    used: set[str]


def read_function(module: SourceModule, function: Function, run: str | None) -> Reading:
    """Read one function; ``run`` is the name of its parameter that is the run, if it has one."""
    reader = _Reader(module, function, run)
    for statement in function.body:
        reader.visit(statement)
    reader.look_for_forgotten(function)
    return Reading(sorted(set(reader.findings)), reader.ignored, reader.used)


def run_parameter(function: Function, *, workflow: bool) -> str | None:
    """The parameter that is the run: of a workflow the first one, of other functions the one called or annotated so."""
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    if workflow:
        return parameters[0].arg if parameters else None
    for each in parameters:
        annotation = ast.unparse(each.annotation).strip("'\"") if each.annotation is not None else ""
        if each.arg == "run" or annotation.rpartition(".")[2] == "Run":
            return each.arg
    return None


class _Reader(ast.NodeVisitor):
    def __init__(self, module: SourceModule, function: Function, run: str | None) -> None:
        self._module, self._function, self._run = module, function, run
        self._names = FunctionNames(module.names, function)
        self._free: set[ast.AST] = set()
        """Comprehensions whose order does not matter."""
        self.findings: list[Finding] = []
        self.ignored = 0
        self.used: set[str] = set()

    def _tell(self, node: ast.expr | ast.stmt, rule: Rule, found: str = "") -> None:
        last = node.end_lineno or node.lineno
        # Of a block only its head is what was found.
        last = node.lineno if isinstance(node, ast.For | ast.AsyncFor) else last
        if self._module.silenced(node.lineno, last):
            self.ignored += 1
            return
        text = found or ast.unparse(node).splitlines()[0][:80]
        self.findings.append(
            Finding(
                self._module.file, node.lineno, node.col_offset + 1, rule.code, text, rule.why, rule.remedy,
                self._function.name,
            )
        )  # fmt: skip

    # -- names --------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        self._look_up(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._look_up(node):
            self.generic_visit(node)

    def _look_up(self, node: ast.Name | ast.Attribute) -> bool:
        """Judge a dotted name as a whole; whether it was one."""
        name = self._names.dotted(node)
        if name is None:
            return False
        self.used.add(ast.unparse(node))
        rule = rules.rule_of(name)
        if rule is not None and not rule.calls_only:
            self._tell(node, rule)
        return True

    def visit_Global(self, node: ast.Global) -> None:
        self._tell(node, rules.GLOBAL)

    # -- calls --------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        name = self._names.dotted(node.func) or ""
        self._judge_call(node, name)
        if name in rules.ORDER_FREE:
            self._free.update(node.args)
        if name in rules.ORDERED or (isinstance(node.func, ast.Attribute) and node.func.attr == "join"):
            self._judge_order(node.args)
        self.generic_visit(node)

    def _judge_call(self, node: ast.Call, name: str) -> None:
        rule = rules.rule_of(name) if name else None
        head = f"{ast.unparse(node.func)}(…)"
        if name == "random.Random" and not node.args:
            self._tell(node, rules.RANDOM, head)
        elif rule is not None and rule.calls_only and not (rule is rules.HASH and _is_number(node.args)):
            self._tell(node, rule, head)
        elif name.startswith(".") and name[1:] in self._module.names.steps:
            self._tell(node, rules.STEP_CALL, head)
        elif isinstance(node.func, ast.Attribute):
            self._judge_method(node, node.func, head)

    def _judge_method(self, node: ast.Call, method: ast.Attribute, head: str) -> None:
        if method.attr in rules.FILE_METHODS:
            self._tell(node, rules.OUTSIDE, head)
        elif method.attr == "run_in_executor":
            self._tell(node, rules.THREADS, head)
        elif method.attr == "create_future":
            self._tell(node, rules.FUTURE, head)
        elif method.attr in rules.MUTATING and self._names.scope(method.value) is Scope.MODULE:
            self._tell(node, rules.GLOBAL, head)
        elif method.attr == "pop" and not node.args and self._names.is_set(method.value):
            self._tell(node, rules.SET_ORDER, head)

    # -- changes of what is global ------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        self._judge_targets(node, node.targets)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._judge_targets(node, [node.target])
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._judge_targets(node, node.targets)
        self.generic_visit(node)

    def _judge_targets(self, node: ast.stmt, targets: list[ast.expr]) -> None:
        for target in targets:
            if isinstance(target, ast.Subscript | ast.Attribute) and self._names.scope(target) is Scope.MODULE:
                self._tell(node, rules.GLOBAL)

    # -- the order of sets --------------------------------------------------------------------

    def visit_For(self, node: ast.For) -> None:
        if self._names.is_set(node.iter):
            self._tell(node, rules.SET_ORDER, f"for … in {ast.unparse(node.iter)}"[:80])
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._judge_order([node.value])
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        if node not in self._free:
            self._judge_order([part.iter for part in node.generators])
        self.generic_visit(node)

    def _judge_order(self, iterated: list[ast.expr]) -> None:
        for each in iterated:
            if self._names.is_set(each):
                self._tell(each, rules.SET_ORDER)

    # -- what is never awaited ----------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        if self._is_coroutine(node.value):
            self._tell(node, rules.NOT_AWAITED)
        self.generic_visit(node)

    def _is_coroutine(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        method = node.func
        if isinstance(method, ast.Attribute) and isinstance(method.value, ast.Name) and method.value.id == self._run:
            return method.attr in rules.COROUTINES
        return self._names.dotted(method) in rules.ASYNCIO_COROUTINES

    def look_for_forgotten(self, function: Function) -> None:
        """A coroutine that is put into a variable which is never read again is not awaited either."""
        read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        for node in _assignments(function):
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id not in read and self._is_coroutine(node.value):
                self._tell(node, rules.NOT_AWAITED)


def _assignments(function: Function) -> Iterator[ast.Assign]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield node


def _is_number(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and isinstance(arguments[0].value, int | float)
