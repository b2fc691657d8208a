"""Long searches for cases that a kernel fails.

    python -m fuzz run --kernel optimized --minutes 60
    python -m fuzz diff --kernel optimized --baseline main --cases 1000
    python -m fuzz schedule --kernel optimized --minutes 10
    python -m fuzz replay 0123456789ab       python -m fuzz minimize 0123456789ab
    python -m fuzz export 0123456789ab

Exit codes: 0 nothing was found, 1 something was, 2 the request cannot be met, 3 the corpus or the
records can no longer be written, 130 interrupted. docs/how_to/fuzz_a_change.md is a walk through.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from conformance.kernel import UsageError
from fuzz import commands
from fuzz.campaign import REFUSED, STORAGE_FULL
from fuzz.corpus import StorageError
from fuzz.options import parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; the exit code."""
    options = parsed(arguments, __doc__ or "")
    torch.set_num_threads(1)
    try:
        return commands.COMMANDS[options.command](options)
    except UsageError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except StorageError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return STORAGE_FULL


if __name__ == "__main__":
    sys.exit(main())
