"""Whose turn it is: how long a node that finds the leader key absent lets others campaign first.

Pure: times go in. Not here: the campaign (`election.py`).

Source: docs/design/election.md, "Campaign", "Cool-down", "Lag" and "While etcd is away".
"""

from replication.election_facts import ResignReason
from replication.election_times import COOL_DOWN_POLLS, TURN_POLLS, ElectionTimes


class Turn:
    """Of one node in one election. `lets_reclaim`: a master may outlive its lease, and be there."""

    def __init__(self, times: ElectionTimes, *, lets_reclaim: bool) -> None:
        self._times = times
        self._lets_reclaim = lets_reclaim
        self._read_ms: int | None = None
        """When etcd last said who leads."""
        self._back_ms: int | None = None
        """When etcd answered this node after it had not for as long as a lease lasts."""
        self._absent_since_ms: int | None = None
        self._was_away = False
        """Was etcd back for less than a lease lasts when the key was found absent?"""
        self._not_before_ms = 0
        self.is_behind = False
        self.turns = 0
        """How many it lets others campaign first who are better placed."""

    def forget(self, now_ms: int) -> None:
        """Take note that somebody leads, or did until now: an absence begins anew."""
        self._note_read(now_ms)
        self._absent_since_ms = None

    def cool_down(self, now_ms: int, reason: ResignReason) -> None:
        """Stay out for a while; the longest cool-down counts."""
        until_ms = now_ms + COOL_DOWN_POLLS[reason] * self._times.poll_ms
        self._not_before_ms = max(self._not_before_ms, until_ms)

    def has_come(self, now_ms: int, *, has_died: bool) -> bool:
        """Return whether to campaign now that the key was read absent. `has_died`: the last master
        is known to be dead."""
        self._note_read(now_ms)
        if self._absent_since_ms is None or self._back_ms == now_ms:
            # Nobody knows what was there while etcd was away.
            self._absent_since_ms = now_ms
            self._was_away = (
                self._back_ms is not None and now_ms - self._back_ms < self._lease_ttl_ms
            )
        # An etcd that was away may have lost the key of who still leads, or lose it in a moment:
        # it still has a lease that ran out meanwhile until it looks for such ones.
        goes_last = self._lets_reclaim and self._was_away and not has_died
        # Nodes yield to others in rolling updates, and nobody is killed in those.
        yield_polls = 0 if has_died else self._times.yield_polls
        polls = self._times.behind_polls if self.is_behind or goes_last else yield_polls
        polls += self.turns * TURN_POLLS
        return now_ms >= max(
            self._not_before_ms, self._absent_since_ms + polls * self._times.poll_ms
        )

    @property
    def _lease_ttl_ms(self) -> int:
        return self._times.lease_ttl_s * 1_000

    def _note_read(self, now_ms: int) -> None:
        if self._read_ms is not None and now_ms - self._read_ms >= self._lease_ttl_ms:
            self._back_ms = now_ms
        self._read_ms = now_ms
