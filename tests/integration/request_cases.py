"""All request cases: what docs/reference/request-cases.md says and a real cluster must do."""

from request_case import Case
from request_cases_headers import HEADER_CASES
from request_cases_ids import ID_CASES

CASES: tuple[Case, ...] = (*HEADER_CASES, *ID_CASES)
