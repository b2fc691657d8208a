"""The instruction set: one family a file, each instruction a table entry and a small function.

``simulator.isa.table`` holds the table. A mnemonic that is not in it is ``Unsupported``: nothing is
ever guessed from a prefix.
"""
