"""docs/reference/audit.md has what the code has: its table of faults, the fields of the JSON."""

import json
import re
from pathlib import Path

import pytest
from generated_pages import check_blocks
from sample_reports import empty_report, failed_report, ok_report

from delayd.audit.judging.faults import JOBS, Fault

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "audit.md"


def faults() -> str:
    rows = [f"| `{each.slug}` | {each.job} | {each.meaning} |" for each in Fault]
    assert not [each for each in Fault if "|" in each.meaning], "it would begin another cell"
    return "\n".join(["", "| fault | found by | means |", "|---|---|---|", *rows, "", ""])


def test_the_table_of_faults_is_up_to_date(request: pytest.FixtureRequest) -> None:
    """With `--rewrite` it is written."""
    check_blocks(PAGE, {"faults": faults()}, request)


def test_each_fault_is_found_by_a_job_that_there_is() -> None:
    assert {fault.job for fault in Fault} == set(JOBS)


def test_each_field_of_the_json_is_in_the_reference_and_no_other_is() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## JSON")[1].split("## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(ok_report().to_json())


def test_the_json_can_be_written_and_agrees_with_the_verdict() -> None:
    for report in (ok_report(), failed_report(), empty_report()):
        said = json.loads(json.dumps(report.to_json()))
        assert said["verdict"] == ("ok" if report.ok else "failed")
        fates = "delivered cancelled replaced rejected refused_as_duplicate conflict expired dead"
        names = [*fates.split(), "pending", "lost", "unproven"]
        assert sum(said[name] for name in names) == said["accepted"]
    said = failed_report().to_json()
    assert (said["lost"], said["duplicate"], said["early"], said["altered"]) == (3, 1, 0, 27)
    assert said["replicas_differ"] == 41, "an absent node does not differ: nobody knows"
