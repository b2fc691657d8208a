"""Which warp does what.

0-3   softmax      one row each two threads: scores -> P, row maximum and sum, LSE
4-7   correction   loads the query, rescales the output in TMEM, writes it out
8     mma          issues every MMA (in a cluster of two: that of the even CTA only)
9     load keys    TMA
10    load values  TMA
"""

WARP_THREADS = 32
SOFTMAX_WARPS = range(0, 4)
CORRECTION_WARPS = range(4, 8)
MMA_WARP = 8
LOAD_KEYS_WARP = 9
LOAD_VALUES_WARP = 10
NUM_WARPS = 11
NUM_THREADS = NUM_WARPS * WARP_THREADS
ROLE_THREADS = 4 * WARP_THREADS  # of the softmax warps, and of the correction warps

# Named barriers. 0 is that of the whole CTA.
FIRST_PAIR_BARRIER = 1  # softmax warps 0 and 2; the next one is that of warps 1 and 3
