"""PTX text to tokens. Source: PTX ISA, chapter 4 (Syntax)."""

from __future__ import annotations

import re
from typing import NamedTuple

from simulator.errors import Location, Unsupported

_TOKEN = re.compile(
    r"""
      (?P<skip>   [ \t\r]+ | //[^\n]* | /\*.*?\*/ )
    | (?P<newline> \n )
    | (?P<loc>    \.loc\b[^\n]* )
    | (?P<name>   [%$_A-Za-z.][\w$%]*(?:(?:\.|::)[\w$%]+)* )
    | (?P<number> 0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b
                | -?0[xX][0-9a-fA-F]+U?\b | -?0[bB][01]+U?\b | -?\d+U?\b )
    | (?P<string> "[^"\n]*" )
    | (?P<mark>   [{}()\[\],;:@!|+=<>-] )
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A word of the text and its line, counted from 1.

    ``kind`` is ``name``, ``number``, ``string``, ``mark``, ``loc`` (a whole directive) or ``end``.
    """

    kind: str
    text: str
    line: int


def tokenise(text: str) -> list[Token]:
    """The tokens of a PTX text, ended by one of kind ``end``.

    Raises ``Unsupported`` at a character that begins none of them.
    """
    tokens, line, position = [], 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            rest = text[position:].split("\n", 1)[0]
            raise Unsupported(f"cannot read {rest[:20]!r}", Location(ptx_line=line, ptx_text=rest))
        kind = match.lastgroup
        assert kind is not None
        if kind == "newline":
            line += 1
        elif kind == "skip":
            line += match.group().count("\n")
        else:
            tokens.append(Token(kind, match.group(), line))
        position = match.end()
    tokens.append(Token("end", "", line))
    return tokens
