"""What query and keys hold: one function for each kind, named by `Recipe.values`.

A value generator takes (problem, recipe, seed, request) and gives that request's query
[seq_len_q, num_heads, qk_head_dim] and keys [K_b, qk_head_dim], float32. It is pure: the same
arguments give the same bits. A longer request continues a shorter one, except where a kind marks
places relative to its end (needles, hot_key).

Random data hide most faults: weights are alike, and each key counts little. Each other kind makes
one family of faults plain; its docstring says which, with the ids of docs/faults.md.

Kinds that choose scores do it through the first rope columns: the query's latent part is then zero,
the latent part of the keys stays free for values.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from reference.problem import Problem, Recipe
from reference.randomness import normal_deviates, random_bits, random_integers

E4M3_MAX = 448.0
TILE_KEYS = 128
POINTER = 16.0  # the query's value in a column that chooses scores
Values = tuple[Tensor, Tensor]


def normal(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Query and keys of independent magnitude * N(0, 1)."""
    dims = problem.dims
    query_shape = (dims.seq_len_q, dims.num_heads, dims.qk_head_dim)
    key_shape = (problem.seq_lens[request], dims.qk_head_dim)
    query = normal_deviates(seed, f"query/{request}", query_shape)
    keys = normal_deviates(seed, f"keys/{request}", key_shape)
    return query * recipe.magnitude, keys * recipe.magnitude


def magnitudes(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Normal, with magnitudes drawn log-uniformly: of the query 0.1 to 100, of the latent and the
    rope part of the keys 0.1 to 10, each by itself.

    Shows scales that are folded twice or not at all, and a rope part read at the wrong place (N1,
    N10, N14): one of the parts then outweighs the other.
    """
    query, keys = normal(problem, recipe, seed, request)
    latent = problem.dims.kv_lora_rank
    uniform = [_uniform(seed, f"magnitude/{name}") for name in ("query", "latent", "rope")]
    query = query * 10.0 ** (3.0 * uniform[0] - 1.0)
    keys[:, :latent] *= 10.0 ** (2.0 * uniform[1] - 1.0)
    keys[:, latent:] *= 10.0 ** (2.0 * uniform[2] - 1.0)
    return query, keys


def positions(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Queries of zero, and values that say which key they are: out is the mean of what is seen.

    The first half of the latent columns is one-hot in key % half, the second in key // half. So out
    times the number of visible keys counts the visible keys of each residue and of each block, and
    a key more or less changes a count by one. Shows any wrong mask, length, page or split (M1, M2,
    M4, M5, M8, P2, P8, D3).
    """
    query, keys = normal(problem, recipe, seed, request)
    latent, num_keys = problem.dims.kv_lora_rank, len(keys)
    half = max(1, latent // 2)
    key = torch.arange(num_keys)
    keys[:, :latent] = 0.0
    keys[key, key % half] = 1.0
    if latent > half:
        keys[key, half + key // half % (latent - half)] = 1.0
    return torch.zeros_like(query), keys


def ones(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Values of one, random scores: out is output_scale wherever a key is seen.

    Shows weights that do not sum to one: lost mass, saturated P, a tile counted twice, padding in
    the denominator (M2, N4, N5).
    """
    query, keys = normal(problem, recipe, seed, request)
    latent = problem.dims.kv_lora_rank
    query[..., :latent] = 0.0
    keys[:, :latent] = 1.0
    return query, keys


def needles(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Keys at boundaries, of which each row gives one all the weight: out is that key's value.

    Boundaries are those of pages, tiles, splits (which are whole tiles), the causal mask, the
    window, the rank's blocks and the ends. A key that is dropped, doubled or taken from the wrong
    place changes the whole row, however many keys there are (M1, M4, P1, P2, K3, D2).
    """
    query, keys = normal(problem, recipe, seed, request)
    latent, rope = problem.dims.kv_lora_rank, problem.dims.qk_rope_head_dim
    places = boundaries(problem, request)
    query[:] = 0.0
    keys[:, latent:] = 0.0
    if not places:
        return query, keys
    chosen = random_integers(seed, f"needles/{request}", (rope,)) % len(places)
    strength = math.sqrt(40.0 / max(problem.softmax_scale, 40.0 / E4M3_MAX**2))
    rows = query.view(-1, query.shape[-1])
    for column, place in enumerate(dict.fromkeys(places[at] for at in chosen.tolist())):
        keys[place, latent + column] = strength
        num_needles = column + 1
    row = torch.arange(len(rows))
    rows[row, latent + row % num_needles] = strength
    return query, keys


def boundaries(problem: Problem, request: int) -> list[int]:
    """The keys of a request that lie at an edge of something, in order."""
    num_keys, tokens = problem.seq_lens[request], problem.dims.seq_len_q
    edges = {0, 1, num_keys // 2}
    edges |= {num_keys - back for back in (0, 1, 2, tokens, tokens + 1)}
    for unit in (problem.page_size, TILE_KEYS, problem.dcp.interleave_size):
        last = (num_keys - 1) // unit * unit
        edges |= {unit, last, last // 2 // unit * unit}
    if problem.mask.window_left >= 0:
        edges.add(num_keys - tokens - problem.mask.window_left)
    near = {edge + offset for edge in edges for offset in (-1, 0, 1)}
    return sorted(key for key in near if 0 <= key < num_keys)


def rising(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Scores that grow by 0.5 to 4 powers of two a tile, so that the row maximum never rests.

    Shows faults of rescaling: a stale maximum, a P that saturates, a rescale that is skipped, done
    twice or applied to the wrong tile (N4, N6).
    """
    return _sloped(problem, recipe, seed, request, direction=1.0)


def falling(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Scores that fall by 0.5 to 4 powers of two a tile: the first tile has the maximum.

    Shows a maximum that is forgotten between tiles or splits, and weights lost in a cast (N5, S8).
    """
    return _sloped(problem, recipe, seed, request, direction=-1.0)


def flat(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Equal scores, not zero: each key has the same weight, whatever tile or split it is in.

    Shows a tile, split or page that counts twice or not at all, at any length (K3, K4, N5).
    """
    return _scored(problem, recipe, seed, request, torch.full((problem.seq_lens[request],), 3.0))


def hot_key(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """One key, and all others about 7 nats below, at random places: a long tail.

    The tail has most of the weight where there are thousands of keys, and each of its P lies where
    an unscaled cast to e4m3 loses it. Shows a missing scale of P (N5).
    """
    num_keys = problem.seq_lens[request]
    nats = -7.0 + 0.3 * normal_deviates(seed, f"tail/{request}", (num_keys,))
    if num_keys:
        nats[int(random_integers(seed, f"hot/{request}", (1,))[0] % num_keys)] = 0.0
    return _scored(problem, recipe, seed, request, nats)


def very_negative(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """All raw scores shifted far below zero: by 5e3, 6e4 or 2e6, before softmax_scale.

    Shows finite stand-ins for minus infinity, and maxima that start from one (N6): a score that
    nobody may see then looks larger than the real ones.
    """
    query, keys = normal(problem, recipe, seed, request)
    latent, rope = problem.dims.kv_lora_rank, problem.dims.qk_rope_head_dim
    shifts = (5e3, 6e4, 2e6)
    shift = shifts[int(random_integers(seed, "shift", (1,))[0] % len(shifts))]
    value = min(E4M3_MAX, math.sqrt(shift / rope))
    query[..., latent:], keys[:, latent:] = -value, value
    return query, keys


def extremes(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Keys of all finite e4m3 values, subnormals and the largest among them; queries of the least.

    Shows flushed subnormals, wrong exponents and saturation in loads and conversions (N1).
    """
    dims = problem.dims
    codes = random_bits(
        seed, f"codes/{request}", (problem.seq_lens[request], dims.qk_head_dim), torch.uint8
    )
    keys = codes.view(torch.float8_e4m3fn).float().nan_to_num(nan=E4M3_MAX)
    shape = (dims.seq_len_q, dims.num_heads, dims.qk_head_dim)
    steps = random_integers(seed, f"steps/{request}", shape) % 31 - 15
    return 2.0**-9 * steps.float(), keys


def shared_pages(problem: Problem, recipe: Recipe, seed: int, request: int) -> Values:
    """Normal, but whole pages repeat, and `page_inputs` stores equal ones once.

    All requests begin with the same keys, as with a cached prefix; and each third page of a request
    is its first one again. Shows tables read at another request's row or at the wrong page, and
    writes to the cache (P2, P7, P9).
    """
    query, keys = normal(problem, recipe, seed, request)
    size, num_keys = problem.page_size, len(keys)
    common = normal_deviates(seed, "keys/common", (num_keys, problem.dims.qk_head_dim))
    prefix = num_keys // 2 // size * size
    keys[:prefix] = common[:prefix] * recipe.magnitude
    for start in range(2 * size, num_keys - size + 1, 3 * size):
        keys[start : start + size] = keys[:size]
    return query, keys


def _sloped(problem: Problem, recipe: Recipe, seed: int, request: int, direction: float) -> Values:
    powers = direction * (0.5 + 3.5 * _uniform(seed, f"slope/{request}"))
    tile = torch.arange(problem.seq_lens[request]) / TILE_KEYS
    return _scored(problem, recipe, seed, request, powers * math.log(2.0) * tile)


def _scored(problem: Problem, recipe: Recipe, seed: int, request: int, nats: Tensor) -> Values:
    """Normal values, and for all rows the scores ``nats`` [K_b] up to the rounding of the dtype."""
    query, keys = normal(problem, recipe, seed, request)
    latent = problem.dims.kv_lora_rank
    query[:], keys[:, latent:] = 0.0, 0.0
    query[..., latent] = POINTER
    if problem.softmax_scale > 0.0:
        keys[:, latent] = (nats / (POINTER * problem.softmax_scale)).clamp(-E4M3_MAX, E4M3_MAX)
    return query, keys


def _uniform(seed: int, name: str) -> float:
    """A number in [0, 1)."""
    return float(random_bits(seed, name, (1,), torch.uint16).item()) / 2.0**16


ValueGenerator = Callable[[Problem, Recipe, int, int], Values]
VALUES: Mapping[str, ValueGenerator] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            normal, magnitudes, positions, ones, needles, rising, falling, flat, hot_key,
            very_negative, extremes, shared_pages,
        )
    }
)  # fmt: skip
