"""Programs whose time is real refuse virtual clusters, and the other way round."""

import dataclasses
from pathlib import Path

import pytest
from cluster_settings import SETTINGS

from delayd.audit.errors import AuditError, refuse_virtual
from delayd.cluster.time_kind import refuse_other_time
from delayd.errors import VirtualClusterError
from delayd.runtime.virtual_time import VARIABLE, VirtualTime

VIRTUAL = dataclasses.replace(SETTINGS, virtual=True)


def test_a_real_program_refuses_a_virtual_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    refuse_other_time(SETTINGS)
    with pytest.raises(VirtualClusterError, match="delayd dev env"):
        refuse_other_time(VIRTUAL)


def test_a_program_in_virtual_time_refuses_a_real_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    time = VirtualTime.create(tmp_path / "time")
    monkeypatch.setenv(VARIABLE, str(time.file))
    refuse_other_time(VIRTUAL)
    with pytest.raises(VirtualClusterError, match=f"unset {VARIABLE}"):
        refuse_other_time(SETTINGS)


def test_a_program_refuses_a_virtual_cluster_whose_time_it_has_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    time = VirtualTime.create(tmp_path / "time")
    monkeypatch.setenv(VARIABLE, str(time.file))
    time.belong_to(VIRTUAL.frontier.topic_id)
    refuse_other_time(VIRTUAL)
    time.advance_to(time.now_ms() + 60_000)
    refuse_other_time(VIRTUAL)
    time.belong_to("another")
    with pytest.raises(VirtualClusterError, match="another virtual cluster"):
        refuse_other_time(VIRTUAL)


def test_an_audit_judges_no_virtual_cluster() -> None:
    refuse_virtual(SETTINGS)
    with pytest.raises(AuditError, match="virtual"):
        refuse_virtual(VIRTUAL)
