"""Where the state spaces lie in the simulated 64-bit generic address space.

Global memory keeps the host's own addresses, which are below 2^48. The windows of the other state
spaces lie above it. Shared addresses are 32-bit: the CTA's rank in its cluster in the top byte and
the offset below (a ``shared::cluster`` address of the CTA's own memory equals its ``shared::cta``
address), as kernels that clear rank bits to reach their peer assume.
"""

from __future__ import annotations

from typing import Final

PARAM_WINDOW: Final = 1 << 56
"""Generic address of byte 0 of the kernel's parameters."""

PARAM_WINDOW_BYTES: Final = 1 << 16
"""Extent of the window; a kernel has at most 32764 bytes of parameters."""

SHARED_WINDOW: Final = 1 << 52
"""Generic address of shared address 0."""

SHARED_WINDOW_BYTES: Final = 1 << 32
"""Extent of the window: all shared addresses."""

LOCAL_WINDOW: Final = 1 << 55
"""Generic address of byte 0 of local memory, which is another byte for each thread."""

LOCAL_WINDOW_BYTES: Final = 1 << 24
"""Extent of the window; a thread has at most 512 KiB."""

SHARED_BASE: Final = 1024
"""Offset of the first shared variable; below it lies what the system reserves from sm_90 on."""

RANK_SHIFT: Final = 24
"""A shared address is ``rank << RANK_SHIFT | offset``."""

OFFSET_MASK: Final = (1 << RANK_SHIFT) - 1
"""The offset part of a shared address."""
