"""`delayd cancel`, `fire` and `reschedule`: of what is pending under an id, or in a group."""

from functools import partial
from typing import Annotated

import typer

from delayd.client import cancel_record
from delayd.client.asking import ask_fire, ask_reschedule
from delayd.commands.groups.change import Change, Kind
from delayd.commands.groups.command import Where, change_group
from delayd.commands.knowing import Admin
from delayd.commands.messages import WAIT_S_DEFAULT, carry_out, client_of
from delayd.config.cli_options import (
    AsJson,
    At,
    Bootstrap,
    By,
    ClusterName,
    Config,
    DryRun,
    Etcd,
    In,
    JobFile,
    OfGroup,
    Prefix,
    TimeoutS,
    Token,
    Wait,
    Yes,
)
from delayd.errors import ConfigError
from delayd.request.reasons import RefusedError
from delayd.request.times import by_ms_of, delay_ms_of, due_ms_of
from delayd.runtime.clock import SystemClock

Id = Annotated[str | None, typer.Argument(help="The id that the message was scheduled with.")]


def cancel(
    bootstrap: Bootstrap,
    id: Id = None,
    group: OfGroup = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    job: JobFile = None,
    wait: Wait = False,
    timeout_s: TimeoutS = WAIT_S_DEFAULT,
    etcd: Etcd = None,
    admin: Admin = None,
    token: Token = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Cancel what is pending under an id. With --wait, exit 1 if it was not cancelled.

    Example: delayd cancel order-7 --wait

    Example: delayd cancel --group customer-42 --yes
    """
    where = Where(bootstrap, prefix, config, etcd, admin, token, cluster)
    if group is not None:
        _refuse_both(id)
        change_group(where, group, Change("cancel"), job, yes and not dry_run, timeout_s, as_json)
    named = _named(id)
    cancel_record(named)  # refuses what cannot be an id
    client = client_of(bootstrap, prefix, config)
    carry_out(client, partial(client.cancel, named), wait, timeout_s, as_json)


def fire(
    bootstrap: Bootstrap,
    id: Id = None,
    group: OfGroup = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    job: JobFile = None,
    wait: Wait = False,
    timeout_s: TimeoutS = WAIT_S_DEFAULT,
    etcd: Etcd = None,
    admin: Admin = None,
    token: Token = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Deliver what is pending under an id now, once. With --wait, exit 1 if it was too late.

    Of a series, the current occurrence is delivered, and the series goes on.

    Example: delayd fire order-7 --wait
    """
    where = Where(bootstrap, prefix, config, etcd, admin, token, cluster)
    if group is not None:
        _refuse_both(id)
        change_group(where, group, Change("fire"), job, yes and not dry_run, timeout_s, as_json)
    named = _named(id)
    client = client_of(bootstrap, prefix, config, record=ask_fire(named))
    carry_out(client, partial(client.fire, named), wait, timeout_s, as_json)


def reschedule(
    bootstrap: Bootstrap,
    id: Id = None,
    group: OfGroup = None,
    at: At = None,
    in_: In = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    job: JobFile = None,
    wait: Wait = False,
    timeout_s: TimeoutS = WAIT_S_DEFAULT,
    etcd: Etcd = None,
    admin: Admin = None,
    token: Token = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Give what is pending under an id another due time. With --wait, exit 1 if it was too late.

    Example: delayd reschedule order-7 --by +10m --wait

    Example: delayd reschedule --group customer-42 --by +1h --job move.job --yes
    """
    if sum(each is not None for each in (at, in_, by)) != 1:
        raise ConfigError(
            "give exactly one of --at, --in and --by",
            remedy="--at is a time, --in a delay from now on, --by how much later it is due",
        )
    where = Where(bootstrap, prefix, config, etcd, admin, token, cluster)
    if group is not None:
        _refuse_both(id)
        change = _change_of(at, in_, by)
        change_group(where, group, change, job, yes and not dry_run, timeout_s, as_json)
    named = _named(id)
    asked = ask_reschedule(named, at=at, in_=in_, by=by)
    client = client_of(bootstrap, prefix, config, record=asked)
    send = partial(client.reschedule, named, at=at, in_=in_, by=by)
    carry_out(client, send, wait, timeout_s, as_json)


def _refuse_both(id: str | None) -> None:
    if id is not None:
        raise ConfigError("give an id or --group, not both", remedy="leave one of them out")


def _named(id: str | None) -> str:
    if id is None:
        raise ConfigError("give an id, or a group with --group")
    return id


def _change_of(at: str | None, in_: str | None, by: str | None) -> Change:
    """Return what is asked for each message of a group: a delay counts from now."""
    try:
        if by is not None:
            by = by if by[:1] in ("+", "-") else f"+{by}"
            return Change("reschedule", Kind.BY, by_ms_of(by), f"--by {by}")
        if in_ is not None:
            at_ms = SystemClock().wall_ms() + delay_ms_of(in_)
            return Change("reschedule", Kind.AT, at_ms, f"--in {in_}")
        return Change("reschedule", Kind.AT, due_ms_of(at or ""), f"--at {at}")
    except RefusedError as error:
        raise ConfigError(error.detail) from error
