"""Keys come back from the pool in their order, whatever the pages' order in it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.paging import gather, page_order, pages_needed, slots
from reference.problem import PAGE_SIZES


@settings(deadline=None)
@given(
    page_size=st.sampled_from(PAGE_SIZES),
    num_keys=st.integers(0, 300),
    pages=st.permutations(range(151)),
)
def test_what_is_stored_is_gathered(page_size: int, num_keys: int, pages: list[int]) -> None:
    owned = torch.tensor(pages[: pages_needed(num_keys, page_size)], dtype=torch.int32)
    pool = torch.full((151 * page_size, 1), torch.nan)
    pool[slots(owned, page_size, num_keys)] = torch.arange(num_keys, dtype=torch.float32)[:, None]
    got = gather(pool.view(151, page_size, 1), owned, num_keys)
    assert got.dtype == torch.float64
    assert got[:, 0].tolist() == list(range(num_keys))


@settings(deadline=None)
@given(num_keys=st.integers(0, 1000), page_size=st.sampled_from(PAGE_SIZES))
def test_pages_needed_is_the_fewest(num_keys: int, page_size: int) -> None:
    pages = pages_needed(num_keys, page_size)
    assert (pages - 1) * page_size < num_keys <= pages * page_size or pages == num_keys == 0


def test_each_key_is_found_where_the_contract_says() -> None:
    pool = torch.arange(5 * 4 * 2, dtype=torch.float32).view(5, 4, 2)
    got = gather(pool, torch.tensor([3, 0, 4]), 10)
    for key in range(10):
        page = [3, 0, 4][key // 4]
        assert torch.equal(got[key], pool[page, key % 4].double())


@pytest.mark.parametrize("page", [-1, 5, 2**31 - 1])
def test_page_outside_the_pool_is_refused(page: int) -> None:
    pool = torch.zeros(5, 4, 2)
    message = rf"block_tables\[..., 1\] must be in \[0, 4\], got {page}"
    with pytest.raises(ValueError, match=message):
        gather(pool, torch.tensor([0, page]), 5)
    assert len(gather(pool, torch.tensor([0, page]), 4)) == 4  # past the last page: never read


def test_short_table_is_refused() -> None:
    with pytest.raises(ValueError, match="block_tables must have 3 pages for 9 keys, got 2"):
        gather(torch.zeros(5, 4, 2), torch.tensor([0, 1]), 9)


def test_page_orders() -> None:
    priorities = torch.tensor([5, -3, 9, 0])
    assert page_order("random", priorities).tolist() == [1, 3, 0, 2]
    assert page_order("identity", priorities).tolist() == [0, 1, 2, 3]
    assert page_order("reversed", priorities).tolist() == [3, 2, 1, 0]
