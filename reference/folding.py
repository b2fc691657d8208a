"""How a request's rows (token, head) lie on the tiles of a kernel, as index maps.

Both ways of laying them cut the rows in token-major order, token * num_heads + head, into tiles:

- folding cuts after a whole number F of tokens, with F a divisor of seq_len_q: all tiles are alike;
- packing cuts after tile_m rows, across tokens: only the last tile may be partial.

The answer of a call does not depend on it.
"""

from dataclasses import dataclass

PACKED_TILE_M = 128  # the one tile height that packs


@dataclass(frozen=True)
class RowLayout:
    """Where each row of a request lies: num_tiles tiles (S_eff) of rows_per_tile rows (H_eff)."""

    num_heads: int
    seq_len_q: int
    rows_per_tile: int

    @property
    def num_rows(self) -> int:
        """Rows of a request, num_heads * seq_len_q."""
        return self.num_heads * self.seq_len_q

    @property
    def num_tiles(self) -> int:
        """Tiles of a request; the last one may be partial."""
        return -(-self.num_rows // self.rows_per_tile)

    def place(self, token: int, head: int) -> tuple[int, int]:
        """The tile, and the row in it, of a query token's head."""
        return divmod(token * self.num_heads + head, self.rows_per_tile)

    def row_at(self, tile: int, row: int) -> tuple[int, int] | None:
        """The token and head at a row of a tile; None where the row lies past the last one."""
        index = tile * self.rows_per_tile + row
        return divmod(index, self.num_heads) if index < self.num_rows else None


def fold_factor(num_heads: int, seq_len_q: int, tile_m: int) -> int:
    """Tokens folded into a tile: the largest divisor of seq_len_q whose rows fit; at least 1."""
    most = min(seq_len_q, tile_m // num_heads)
    return max((f for f in range(1, most + 1) if seq_len_q % f == 0), default=1)


def folded(num_heads: int, seq_len_q: int, tile_m: int) -> RowLayout:
    """Rows folded: tile g holds tokens g * F .. g * F + F - 1."""
    rows_per_tile = num_heads * fold_factor(num_heads, seq_len_q, tile_m)
    return RowLayout(num_heads, seq_len_q, rows_per_tile)


def packed(num_heads: int, seq_len_q: int) -> RowLayout:
    """Rows packed: tiles of 128 rows, whatever token they belong to."""
    return RowLayout(num_heads, seq_len_q, PACKED_TILE_M)


def token_major(token_stride: int, head_stride: int, num_heads: int) -> bool:
    """Whether a tensor's rows lie one head stride apart across tokens too: needed to pack."""
    return token_stride == num_heads * head_stride


def best_layout(num_heads: int, seq_len_q: int, tile_m: int, *, can_pack: bool) -> RowLayout:
    """Packed where that takes fewer tiles, else folded.

    can_pack: the kernel packs, and both query and out are token-major (`token_major`).
    """
    fold, pack = folded(num_heads, seq_len_q, tile_m), packed(num_heads, seq_len_q)
    packs = can_pack and tile_m == PACKED_TILE_M and pack.num_tiles < fold.num_tiles
    return pack if packs else fold
