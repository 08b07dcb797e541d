"""How a full step is shared between lanes.

Source: docs/design/frontier.md, "Full steps".
"""

from collections.abc import Mapping


def share_fairly(wanted: Mapping[int, int], budget: int) -> dict[int, int]:
    """Return what each lane gets: what it wants, or the same share as others that want more.

    The sum is at most `budget`, except that every lane that wants something gets at least one, so
    that no lane ever stands still.
    """
    shares: dict[int, int] = {}
    left = budget
    by_want = sorted(wanted.items(), key=lambda item: (item[1], item[0]))
    for index, (lane, want) in enumerate(by_want):
        share = left // (len(by_want) - index)
        shares[lane] = min(want, max(share, 1))
        left = max(0, left - shares[lane])
    return shares
