"""PTX tokens to nodes. Source: PTX ISA, chapters 4 (Syntax), 5 (State Spaces) and 10 (Directives).

Names are resolved when a function is complete, because a label may be used before it stands:
``{ }`` opens a scope whose registers and labels hide those outside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from simulator.errors import Location, Unsupported
from simulator.ptx import nodes
from simulator.ptx.lexer import Token, tokenise

TYPE_BYTES = {
    f"{letter}{bits}": bits // 8
    for letter in "busf"
    for bits in (8, 16, 32, 64)
    if (letter, bits) != ("f", 8)
}
_FUNCTION_DIRECTIVES = (
    ".reqntid",
    ".maxntid",
    ".minnctapersm",
    ".maxnctapersm",
    ".maxnreg",
    ".reqnctapercluster",
    ".maxclusterrank",
    ".explicitcluster",
)


def parse(text: str) -> nodes.Module:
    """The module that a PTX text holds.

    Raises ``Unsupported``, naming the line, for anything outside the subset that kernels compiled
    by the CuTe DSL use (device functions and calls, for example).
    """
    return _Parser(tokenise(text)).module()


@dataclass
class _Scope:
    """One ``{ }``: what it declares, and the scope around it."""

    number: int
    parent: _Scope | None
    registers: dict[str, nodes.Register] = field(default_factory=dict)
    ranges: dict[str, tuple[str, int]] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)

    def unique(self, name: str) -> str:
        return name if self.number == 0 else f"{name}@{self.number}"

    def declare(self, name: str, kind: str) -> nodes.Register:
        self.registers[name] = nodes.Register(self.unique(name), kind)
        return self.registers[name]

    def register(self, name: str) -> nodes.Register | None:
        """The register of this name; one of a range is declared when first asked for."""
        if name in self.registers:
            return self.registers[name]
        for split in range(len(name) - 1, 0, -1):
            if not name[split].isdecimal():
                break
            prefix, number = name[:split], name[split:]
            if prefix in self.ranges and number == str(int(number)):
                kind, count = self.ranges[prefix]
                if int(number) < count:
                    return self.declare(name, kind)
        return self.parent.register(name) if self.parent else None

    def label(self, name: str) -> nodes.Label | None:
        if name in self.labels:
            return nodes.Label(self.unique(name))
        return self.parent.label(name) if self.parent else None


@dataclass(frozen=True)
class _Raw:
    """An instruction whose names are not resolved yet."""

    mnemonic: str
    operands: tuple[object, ...]
    guard: tuple[str, bool] | None
    line: int
    source: str | None
    scope: _Scope


def _refuse(line: int, message: str) -> NoReturn:
    raise Unsupported(message, Location(ptx_line=line))


def _files(tokens: list[Token]) -> dict[int, str]:
    """The source files by number. They are declared anywhere, mostly after the code."""
    return {
        int(number.text): path.text.strip('"')
        for directive, number, path in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if directive.text == ".file" and number.kind == "number"
    }


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._files = _files(tokens)
        self._source: str | None = None
        self._shared: list[nodes.Variable] = []
        """The module's; those of a kernel are found in its body."""

    # 1. Tokens

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        if token.kind == "end":
            _refuse(token.line, "the text ends too early")
        self._at += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._peek().text == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        token = self._next()
        if token.text != text:
            _refuse(token.line, f"expected {text!r}, found {token.text!r}")
        return token

    def _integer(self) -> int:
        token = self._next()
        if token.kind != "number":
            _refuse(token.line, f"expected a number, found {token.text!r}")
        return _number(token).value

    # 2. Module level

    def module(self) -> nodes.Module:
        version, target, kernels = "", "", {}
        while self._peek().kind != "end":
            token = self._next()
            match token.text:
                case ".version":
                    version = self._next().text
                    while self._peek().line == token.line:
                        version += self._next().text
                case ".target":
                    target = self._next().text
                    while self._accept(","):
                        self._next()
                case ".address_size":
                    if (size := self._integer()) != 64:
                        _refuse(token.line, f"address size {size}; only 64")
                case ".file":
                    self._skip_file()
                case ".section":
                    self._section()
                case ".shared":
                    self._shared.append(self._variable())
                case ".entry":
                    kernel = self._kernel()
                    kernels[kernel.name] = kernel
                case ".visible" | ".extern" | ".weak":
                    pass
                case _:
                    _refuse(token.line, f"{token.text!r} at module level")
        return nodes.Module(version, target, kernels)

    def _skip_file(self) -> None:
        self._integer()
        self._next()
        while self._accept(","):
            self._next()

    def _section(self) -> None:
        """Skip a debug section: its braces hold data, not statements."""
        self._skip("{")
        self._skip("}")

    def _skip(self, text: str) -> None:
        while self._next().text != text:
            pass

    def _variable(self) -> nodes.Variable:
        """What follows ``.shared`` or ``.local``: alignment, type, name, extent of an array."""
        alignment = self._integer() if self._accept(".align") else 1
        kind = self._next()
        item = TYPE_BYTES.get(kind.text.lstrip("."))
        if item is None:
            _refuse(kind.line, f"a variable of type {kind.text!r}")
        name, size = self._next().text, item
        while self._accept("["):
            if self._accept("]"):
                self._expect(";")
                return nodes.Variable(name, max(alignment, item), None)
            size *= self._integer()
            self._expect("]")
        self._expect(";")
        return nodes.Variable(name, max(alignment, item), size)

    # 3. Kernels

    def _kernel(self) -> nodes.Kernel:
        name = self._next().text
        params = self._params()
        directives: dict[str, tuple[int, ...]] = {}
        while self._peek().text != "{":
            token = self._next()
            if token.text not in _FUNCTION_DIRECTIVES:
                _refuse(token.line, f"directive {token.text!r}")
            values = [self._integer()] if self._peek().kind == "number" else []
            while self._accept(","):
                values.append(self._integer())
            directives[token.text[1:]] = tuple(values)
        self._expect("{")
        shared, start = list(self._shared), self._at
        local: list[nodes.Variable] = []
        raw = self._body(shared, local)
        symbols = {p.name for p in params} | {v.name for v in (*shared, *local)}
        body = tuple(r if isinstance(r, nodes.LabelMark) else _resolve(r, symbols) for r in raw)
        used = {token.text for token in self._tokens[start : self._at]}
        return nodes.Kernel(
            name,
            params,
            body,
            tuple(v for v in shared if v.name in used),
            directives,
            tuple(local),
        )

    def _params(self) -> tuple[nodes.Param, ...]:
        params: list[nodes.Param] = []
        offset = 0
        if not self._accept("("):
            return ()
        while not self._accept(")"):
            if params:
                self._expect(",")
            self._expect(".param")
            alignment = self._integer() if self._accept(".align") else None
            type_token = self._next()
            size = TYPE_BYTES.get(type_token.text.lstrip("."))
            if size is None:
                _refuse(type_token.line, f"parameter type {type_token.text}")
            alignment = alignment or size
            name = self._next().text
            if self._accept("["):
                size *= self._integer()
                self._expect("]")
            offset = -(-offset // alignment) * alignment
            params.append(nodes.Param(name, offset, size, alignment))
            offset += size
        return tuple(params)

    def _body(
        self, shared: list[nodes.Variable], local: list[nodes.Variable]
    ) -> list[_Raw | nodes.LabelMark]:
        """The statements of a function; what it declares is added to ``shared`` or ``local``."""
        out: list[_Raw | nodes.LabelMark] = []
        scope, count, self._source = _Scope(0, None), 0, None
        while True:
            token = self._next()
            if token.text == "{":
                count += 1
                scope = _Scope(count, scope)
            elif token.text == "}":
                if scope.parent is None:
                    return out
                scope = scope.parent
            elif token.kind == "loc":
                self._locate(token)
            elif token.text == ".reg":
                self._registers(scope)
            elif token.text == ".shared":
                shared.append(self._variable())
            elif token.text == ".local":
                local.append(self._variable())
            elif token.text == ".pragma":
                self._skip(";")
            elif token.kind == "name" and self._accept(":"):
                out.append(_label(token, scope))
            elif token.text == "@" or (token.kind == "name" and not token.text.startswith(".")):
                out.append(self._instruction(token, scope))
            elif token.text != ";":
                _refuse(token.line, f"{token.text!r} in a function body")

    def _locate(self, token: Token) -> None:
        numbers = re.match(r"\.loc\s+(\d+)\s+(\d+)", token.text)
        if numbers:
            self._source = f"{self._files.get(int(numbers[1]), '?')}:{numbers[2]}"

    def _registers(self, scope: _Scope) -> None:
        kind = self._next().text.lstrip(".")
        while True:
            name = self._next().text
            if self._accept("<"):
                scope.ranges[name] = (kind, self._integer())
                self._expect(">")
            else:
                scope.declare(name, kind)
            if not self._accept(","):
                break
        self._expect(";")

    # 4. Instructions

    def _instruction(self, token: Token, scope: _Scope) -> _Raw:
        guard = None
        if token.text == "@":
            negated = self._accept("!")
            guard = (self._next().text, negated)
            token = self._next()
        operands = []
        while self._peek().text != ";":
            operands.append(self._operand())
            if not self._accept(","):
                break
        self._expect(";")
        return _Raw(token.text, tuple(operands), guard, token.line, self._source, scope)

    def _operand(self) -> object:
        token = self._next()
        if token.text == "{":
            elements = [] if self._accept("}") else [self._operand()]
            while self._accept(","):
                elements.append(self._operand())
            if elements:
                self._expect("}")
            return nodes.Vector(tuple(elements))  # type: ignore[arg-type]  # resolved later
        if token.text == "[":
            return self._address()
        if token.kind == "number":
            return _number(token)
        if token.kind != "name":
            _refuse(token.line, f"operand {token.text!r}")
        if self._accept("|"):
            return nodes.Pair(token.text, self._next().text)  # type: ignore[arg-type]  # resolved later
        return token.text

    def _address(self) -> nodes.Address:
        """The inside of ``[ ]``. A negative offset is one token: ``[%r1-4]``, ``[%r1+-4]``."""
        base, offset, coordinates = self._operand(), 0, None
        if self._accept("+") or self._peek().text.startswith("-"):
            offset = self._integer()
        if self._accept(","):
            coordinates = self._operand()
        self._expect("]")
        return nodes.Address(base, offset, coordinates)  # type: ignore[arg-type]  # resolved later


def _label(token: Token, scope: _Scope) -> nodes.LabelMark:
    if token.text in scope.labels:
        _refuse(token.line, f"label {token.text!r} stands twice in one scope")
    scope.labels.add(token.text)
    return nodes.LabelMark(scope.unique(token.text), token.line)


def _number(token: Token) -> nodes.Immediate:
    """The value of an integer literal, or the bits of a floating-point one."""
    text = token.text.rstrip("U")
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return nodes.Immediate(int(text[2:], 16), is_float=True)
    octal = re.fullmatch(r"(-?)0([0-7]+)", text)
    if octal:
        return nodes.Immediate(int(octal[1] + octal[2], 8))
    if re.fullmatch(r"-?0\d+", text):
        _refuse(token.line, f"the octal number {text} has a digit past 7")
    return nodes.Immediate(int(text, 0))


def _resolve(raw: _Raw, symbols: set[str]) -> nodes.Instruction:
    guard = None
    if raw.guard:
        register = raw.scope.register(raw.guard[0])
        if register is None:
            _refuse(raw.line, f"unknown predicate {raw.guard[0]!r}")
        guard = nodes.Guard(register, raw.guard[1])
    operands = tuple(_resolve_operand(o, raw, symbols) for o in raw.operands)
    return nodes.Instruction(raw.mnemonic, operands, guard, raw.line, raw.source)


def _resolve_operand(item: object, raw: _Raw, symbols: set[str]) -> nodes.Operand:
    def again(inner: object) -> nodes.Operand:
        return _resolve_operand(inner, raw, symbols)

    match item:
        case str():
            return _resolve_name(item, raw, symbols)
        case nodes.Vector(elements=elements):
            return nodes.Vector(tuple(map(again, elements)))
        case nodes.Pair(first=first, second=second):
            return nodes.Pair(again(first), again(second))
        case nodes.Address(base=base, offset=offset, coordinates=coordinates):
            vector = again(coordinates) if coordinates is not None else None
            assert vector is None or isinstance(vector, nodes.Vector)
            return nodes.Address(again(base), offset, vector)
        case nodes.Immediate():
            return item
    _refuse(raw.line, f"operand {item!r}")


def _resolve_name(name: str, raw: _Raw, symbols: set[str]) -> nodes.Operand:
    if name == "_":
        return nodes.Sink()
    if (register := raw.scope.register(name)) is not None:
        return register
    if name in symbols:
        return nodes.Symbol(name)
    if (label := raw.scope.label(name)) is not None:
        return label
    if name.startswith("%"):
        return nodes.Special(name)
    _refuse(raw.line, f"unknown name {name!r} in {raw.mnemonic}")
