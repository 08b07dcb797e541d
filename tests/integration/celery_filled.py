"""A queue of the real Celery on Redis: tasks with an ETA, some of them fetched by dead workers."""

from collections.abc import Mapping
from contextlib import closing
from datetime import datetime

from celery import Celery


def celery_on(url: str) -> Celery:
    """An application whose broker is the Redis of a socket."""
    broker = url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")
    return Celery("app", broker=broker)


def fill_celery(url: str, due: Mapping[str, datetime], fetched: int) -> None:
    """Send a task for each id."""
    with closing(celery_on(url)) as app:
        for n, (task_id, at) in enumerate(due.items()):
            app.send_task("mail.send", (n,), {"to": "Ann"}, task_id=task_id, eta=at)
        fetch_and_die(app, fetched)


def fetch_and_die(app: Celery, many: int) -> None:
    """Fetch tasks as a worker does that is killed then: they stay `unacked`."""
    with app.connection() as connection, connection.channel() as channel:
        for _ in range(many):
            assert channel.basic_get("celery") is not None
        channel.qos.restore_at_shutdown = False
        channel.qos._delivered.clear()
