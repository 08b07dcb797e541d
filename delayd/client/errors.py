"""Errors of requests that a Python program makes.

Invariant: a failure is called definite only if the record certainly is not in the buffer; any other
answer of Kafka leaves the outcome unknown.
"""

from collections.abc import Mapping
from typing import Final

from delayd.client.driver import Failure
from delayd.errors import DelaydError, KafkaUnreachableError
from delayd.request import Op

_NOTHING_DONE: Final[Mapping[Op, str]] = {
    Op.SCHEDULE: "the message is not scheduled",
    Op.CANCEL: "nothing is cancelled",
    Op.REPLACE: "nothing is replaced or scheduled",
    Op.REDRIVE: "nothing is redriven",
    Op.RESCHEDULE: "the due time is as it was",
    Op.FIRE: "the due time is as it was",
    Op.DEBOUNCE: "nothing is debounced",
}
_MAY_BE_DONE: Final[Mapping[Op, str]] = {
    Op.SCHEDULE: "the message may be scheduled or not",
    Op.CANCEL: "the message may be cancelled or not",
    Op.REPLACE: "the message may be replaced or not",
    Op.REDRIVE: "the dead letter may be redriven or not",
    Op.RESCHEDULE: "the message may have another due time or not",
    Op.FIRE: "the message may be delivered at once or not",
    Op.DEBOUNCE: "the message may be debounced or not",
}
_REPEAT: Final[Mapping[Op, str]] = {
    Op.SCHEDULE: "with an id repeat it unchanged before it is due: it is scheduled once; later, or "
    "without an id, repeat it only if a second delivery does no harm",
    Op.CANCEL: "cancel the same id again: a repeated cancel gets a true answer",
    Op.REPLACE: "with a due time (at), repeat it unchanged: it is done once, and each repetition "
    "gets a true answer; with a delay, `delayd show ID` tells what is pending",
    Op.REDRIVE: "redrive it again: it is sent once, and a second redrive is told so",
    Op.RESCHEDULE: "with a time (at) or a delay (in_), reschedule it again; what is relative (by) "
    "would move it twice: `delayd show ID` tells when it is due",
    Op.FIRE: "fire it again, unless the id is of a series or may be used anew: that would fire "
    "what comes next; `delayd show ID` tells what came of it",
    Op.DEBOUNCE: "debounce it again: the last one counts",
}


class RequestRefusedError(DelaydError, ValueError):
    """delayd would reject this request, or the call makes no sense; nothing was sent."""

    code = "request-refused"


class NotScheduledError(DelaydError):
    """Kafka or the local queue refused the request for good: nothing is done."""

    code = "not-scheduled"


class OutcomeUnknownError(DelaydError):
    """No acknowledgement within the bound: the request may be in the buffer or not."""

    code = "outcome-unknown"


class VerdictUnknownError(DelaydError):
    """No receipt within the bound: whether the request was carried out is not known.

    It can be asked again: a repeated cancel of the same id gets a true answer. So does a
    replace that is repeated unchanged and has a due time (`at`).
    """

    code = "verdict-unknown"


class ReceiptsUnreadableError(DelaydError):
    """The reader of receipts failed in a way that no driver knows; nothing was sent."""

    code = "receipts-unreadable"


def failed(op: Op, failure: Failure) -> DelaydError:
    """Return the error that a failed delivery report means for the request."""
    return not_done(failure.text, op) if failure.certain else outcome_unknown(failure.text, op)


def not_done(what: str, op: Op = Op.SCHEDULE) -> NotScheduledError:
    """Return the error for a request that Kafka certainly does not have."""
    return NotScheduledError(f"{_NOTHING_DONE[op]}: {what}", remedy="mend it and repeat")


def outcome_unknown(what: str, op: Op = Op.SCHEDULE) -> OutcomeUnknownError:
    """Return the error for a request that Kafka may or may not have."""
    return OutcomeUnknownError(f"{_MAY_BE_DONE[op]}: {what}", remedy=_REPEAT[op])


def verdict_unknown(what: str, op: Op) -> VerdictUnknownError:
    """Return the error for a wait that ended without a receipt."""
    return VerdictUnknownError(
        f"the outcome is unknown, {_MAY_BE_DONE[op]}: {what}",
        remedy=f"{_REPEAT[op]}. While a transaction of yours is open on the buffer, no verdict "
        "can come: end it first",
    )


def receipts_unreachable(timeout_ms: int) -> KafkaUnreachableError:
    """Return the error for a reader of receipts that was not ready in time; nothing was sent."""
    return KafkaUnreachableError(
        f"the receipts could not be read within {timeout_ms} ms, so nothing was sent",
        remedy="check the brokers, or wait longer",
    )


def no_receipt(timeout_ms: int, op: Op) -> VerdictUnknownError:
    """Return the error for a verdict that did not come in time."""
    return verdict_unknown(f"no receipt came within {timeout_ms} ms", op)


def refuse_to_wait(wait: bool) -> None:
    """Raise RequestRefusedError if a verdict is to be waited for inside a transaction."""
    if wait:
        raise RequestRefusedError(
            "no verdict can come inside the transaction that asks for it",
            remedy="send without wait, commit, then ask: a repeated cancel gets a true answer",
        )
