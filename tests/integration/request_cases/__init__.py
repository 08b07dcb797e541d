"""Request cases: what docs/reference/request-cases.md says, and a real cluster must do.

| file | what it holds |
|---|---|
| `case.py` | what a case is |
| `making.py` | how those of headers are put together |
| `targets.py`, `times.py`, `operations.py` | each header good, at its edge, and bad |
| `moves.py` | other due times |
| `debounces.py` | the last of several messages |
| `groups.py` | names that messages share |
| `local_times.py` | due times by the clock of a zone |
| `wishes.py`, `series.py`, `others.py` | the same of other headers |
| `states.py` | each operation in each state of the id |

Not here: how they are played (request_play.py) and judged (request_judge.py), how a reader is told
of them (tests/unit/request/test_request_cases_page.py).
"""

from request_cases.case import Case
from request_cases.debounces import max_wait_cases, op_debounce_cases
from request_cases.groups import group_cases
from request_cases.local_times import local_time_cases
from request_cases.moves import by_cases, op_move_cases
from request_cases.operations import id_cases, op_cases, redrive_cases
from request_cases.others import other_header_cases, user_cases
from request_cases.series import catchup_cases, cron_cases, until_cases, zone_cases
from request_cases.states import ID_CASES
from request_cases.targets import key_cases, partition_cases, topic_cases
from request_cases.times import delay_cases, due_cases, level_cases, several_due_cases
from request_cases.wishes import late_cases, receipt_cases, window_cases

HEADER_CASES: tuple[Case, ...] = (
    *topic_cases(),
    *due_cases(),
    *delay_cases(),
    *level_cases(),
    *several_due_cases(),
    *key_cases(),
    *partition_cases(),
    *op_cases(),
    *op_move_cases(),
    *op_debounce_cases(),
    *by_cases(),
    *max_wait_cases(),
    *id_cases(),
    *redrive_cases(),
    *receipt_cases(),
    *late_cases(),
    *window_cases(),
    *group_cases(),
    *cron_cases(),
    *zone_cases(),
    *until_cases(),
    *catchup_cases(),
    *local_time_cases(),
    *other_header_cases(),
    *user_cases(),
)

CASES: tuple[Case, ...] = (*HEADER_CASES, *ID_CASES)

__all__ = ["CASES", "HEADER_CASES", "ID_CASES"]
