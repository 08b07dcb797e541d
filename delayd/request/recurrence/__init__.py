"""When a recurring message is due: cron expressions in time zones. Pure, but for two libraries.

| file | what it holds |
|---|---|
| `zones.py` | time zones by the tzdata package, never by what the host has |
| `expressions.py` | the next and the latest occurrence of an expression |
| `series.py` | which occurrence of a series comes next, after an outage too |

What is computed here depends on the versions of cronsim and tzdata, so no replica decides by it:
the master writes what it found into the log, and all follow that (docs/design/series.md). Clients
and the API ask here, too, before they send anything.
"""
