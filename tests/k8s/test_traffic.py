"""The chaos component: its judge, fault by fault; the plan of a run; its access to Kafka."""

import ast
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rendering import K8S
from tally import FAULTS, Asked, Tally, gaps_of
from traffic import DELAY_MAX_MS, DELAY_MIN_MS, Run, kafka_options, plan

DUE_MS = 1_785_000_000_000


def tally_of(count: int = 3) -> Tally:
    """Return a tally of messages that are all due at once, of which none has arrived yet."""
    tally = Tally("r")
    for number in range(count):
        tally.asked[number] = Asked(DUE_MS, b"%d" % number)
    return tally


def deliver(tally: Tally, number: int, *, late_ms: int = 5, value: bytes | None = None) -> None:
    key = tally.id_of(number).encode()
    tally.take_delivery(key, value or b"%d" % number, DUE_MS + late_ms)


def answer(tally: Tally, number: int, verdict: str, op: str = "cancel") -> None:
    told = {"id": tally.id_of(number), "op": op, "verdict": verdict}
    tally.take_receipt(json.dumps(told).encode())


def whole() -> Tally:
    """Return a tally of three: one delivered, one cancelled, one cancelled too late."""
    tally = tally_of()
    deliver(tally, 0)
    tally.cancelled |= {1, 2}
    answer(tally, 1, "cancelled")
    deliver(tally, 2, late_ms=7)
    answer(tally, 2, "too-late")
    return tally


def test_a_run_without_a_fault_is_ok() -> None:
    report = whole().report()
    assert report["verdict"] == "ok" and not any(report[fault] for fault in FAULTS)
    assert (report["sent"], report["delivered"], report["cancels"]) == (3, 2, 2)
    assert report["answers"] == {"cancelled": 1, "too-late": 1}
    assert report["late_ms"] == {"p50": 5, "p99": 7, "max": 7}
    assert report["examples"] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault: str) -> None:
    tally = whole()
    match fault:
        case "lost":
            del tally.deliveries[0]
        case "doubled":
            deliver(tally, 0)
        case "early":
            tally.deliveries[0] = [DUE_MS - 1]
        case "altered":
            tally.altered.clear()
            del tally.deliveries[0]
            deliver(tally, 0, value=b"other")
        case "wrong_verdict":
            deliver(tally, 1)
        case "unanswered":
            del tally.verdicts[2]
        case "unknown":
            deliver(tally, 9)
    report = tally.report()
    assert report["verdict"] == "failed"
    assert {name: report[name] for name in FAULTS} == {name: int(name == fault) for name in FAULTS}


@pytest.mark.parametrize(("verdict", "times"), [("too-late", 0), ("cancelled", 1), ("odd", 1)])
def test_a_verdict_that_is_not_so_is_found(verdict: str, times: int) -> None:
    tally = tally_of(1)
    answer(tally, 0, verdict)
    for _ in range(times):
        deliver(tally, 0)
    assert tally.report()["wrong_verdict"] == 1


def test_a_cancel_that_is_answered_twice_is_found() -> None:
    tally = whole()
    answer(tally, 1, "cancelled")
    assert tally.report()["wrong_verdict"] == 1


def test_it_is_over_when_everything_has_an_outcome() -> None:
    assert whole().is_over()
    assert not tally_of().is_over()
    without_answer = whole()
    del without_answer.verdicts[1]
    assert not without_answer.is_over()


def test_what_kafka_may_not_have_is_not_lost() -> None:
    tally = whole()
    tally.asked[3] = Asked(DUE_MS, b"3", is_acknowledged=False)
    assert tally.is_over() and tally.report()["verdict"] == "ok"
    assert tally.report()["unsure"] == 1


def test_other_runs_and_other_requests_are_none_of_ours() -> None:
    tally = whole()
    tally.take_delivery(b"s-0", b"0", DUE_MS)
    tally.take_delivery(None, b"0", DUE_MS)
    answer(tally, 0, "duplicate", op="schedule")
    assert tally.report()["verdict"] == "ok"


def test_pauses_between_deliveries_are_told() -> None:
    gaps = list(gaps_of([1_000, 2_000, 0, 2_299, 5_000]))
    assert gaps == [
        {"from_ms": 0, "for_ms": 1_000},
        {"from_ms": 1_000, "for_ms": 1_000},
        {"from_ms": 2_299, "for_ms": 2_701},
    ]


def test_a_plan_is_in_order_and_each_cancel_follows_its_message() -> None:
    sends = list(plan(DUE_MS, 10, 50, random.Random(1)))
    assert [send.at_ms for send in sends] == sorted(send.at_ms for send in sends)
    assert sum(not send.is_cancel for send in sends) == 500
    assert sum(send.is_cancel for send in sends) == 167
    sent = set()
    for send in sends:
        if send.is_cancel:
            assert send.number in sent
        else:
            assert DELAY_MIN_MS <= send.due_ms - send.at_ms < DELAY_MAX_MS
            sent.add(send.number)
    around = {(send.at_ms > send.due_ms) for send in sends if send.is_cancel}
    assert around == {True, False}, "before and after the due time"


def test_a_run_may_have_longer_delays() -> None:
    sends = list(plan(DUE_MS, 10, 50, random.Random(1), 600_000))
    delays = [send.due_ms - send.at_ms for send in sends if not send.is_cancel]
    assert min(delays) >= DELAY_MIN_MS and 500_000 < max(delays) < 600_000


def test_it_gets_in_by_the_configuration_of_a_node(tmp_path: Path) -> None:
    secret, file = tmp_path / "password", tmp_path / "node.toml"
    secret.write_text("hidden\n")
    file.write_text(
        'log_json = true\nkafka_security_protocol = "SASL_SSL"\nkafka_user = "delayd"\n'
        f'kafka_password_file = "{secret}"\nkafka_ca_file = "/ca.crt"\n'
    )
    environ = {"DELAYD_BOOTSTRAP": "a:1,b:2", "DELAYD_CONFIG": str(file)}
    assert kafka_options(environ) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_plain_username": "delayd",
        "sasl_plain_password": "hidden",
        "ssl_cafile": "/ca.crt",
    }
    assert kafka_options({"DELAYD_BOOTSTRAP": "a:1"}) == {"bootstrap_servers": ["a:1"]}


def test_sending_ends_when_it_is_enough_and_what_was_sent_is_flushed() -> None:
    run = object.__new__(Run)
    run.tally, run.is_enough, flushed = Tally("r"), True, []
    run._producer = SimpleNamespace(flush=lambda timeout: flushed.append(timeout))
    assert run.drive(seconds=3_600, rate=500) == 0
    assert len(flushed) == 1 and run.tally.asked == {}


def imports_of(path: Path) -> set[str]:
    """Return the packages that a module imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_who_judges_has_no_code_of_who_is_judged() -> None:
    imported = {path.stem: imports_of(path) for path in (K8S / "components/chaos").glob("*.py")}
    assert set(imported) == {"tally", "traffic"}
    assert not imported["traffic"] & {"delayd", "replication", "confluent_kafka"}
    assert imported["tally"] <= sys.stdlib_module_names
