"""Sending many requests, each with its answer: a bounded number is under way.

Invariants: requests are sent in the order in which they come, and the answers are in that order; an
answer is the receipt of the very request that was sent.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from delayd.client.asking import Ask
from delayd.client.connection import Connection
from delayd.client.outcomes import Sent, Verdict
from delayd.client.verdicts import Deadline, Ticket
from delayd.errors import DelaydError


def answers(
    connection: Connection, asked: Iterable[Ask], timeout_ms: int, under_way_max: int
) -> Iterator[Verdict | DelaydError]:
    """Send each request and yield its answer.

    Or the error for which there is none: VerdictUnknownError or OutcomeUnknownError if it may have
    been sent. `timeout_ms` counts from the sending of each. Lazy: requests are taken and sent while
    the caller iterates over the answers.
    """
    under_way: deque[Ticket | DelaydError] = deque()
    try:
        for each in asked:
            under_way.append(sent := _send(connection, each, timeout_ms))
            # Whoever is told that something fails may send no more.
            left_max = 0 if isinstance(sent, DelaydError) else under_way_max - 1
            while len(under_way) > left_max:
                yield _outcome(under_way.popleft())
        while under_way:
            yield _outcome(under_way.popleft())
    finally:
        for left in under_way:
            if not isinstance(left, DelaydError):
                left.close()


def _send(connection: Connection, asked: Ask, timeout_ms: int) -> Ticket | DelaydError:
    try:
        connection.outbox.check_buffer()
    except DelaydError as error:
        return error
    ticket = connection.verdicts.ticket(asked, Deadline.after(timeout_ms))
    try:
        ticket.wait_until_ready()
        connection.outbox.send(Sent, asked).add_done_callback(ticket.follow)
    except DelaydError as error:
        ticket.close()
        return error
    return ticket


def _outcome(sent: Ticket | DelaydError) -> Verdict | DelaydError:
    if isinstance(sent, DelaydError):
        return sent
    with sent as ticket:
        try:
            return ticket.wait()
        except DelaydError as error:
            return error
