"""Scenarios that run on containers, and those that cannot. Pure, and without Docker's SDK."""

from typing import Final

from chaos.scenario import Scenario

MATRIX: Final = (
    *("kill-master", "terminate-master", "freeze-master", "kill-all-nodes", "roll"),
    *("kill-coordinator", "bounce-brokers", "kill-etcd-leader", "etcd-minority", "wipe-etcd"),
    *("cut-kafka", "cut-etcd", "cut-both", "mute-to-kafka"),
)
"""Those that `make chaos-docker` runs: what three brokers, three members of etcd and networks of
their own add, and the deaths of nodes. Processes run the others sooner."""


def lacking(scenario: Scenario) -> str | None:
    """Return why containers cannot run it; None if they can."""
    weathers = [strike.fault.weather for strike in scenario.strikes]
    if any(weather.delay_ms or weather.stall_chance for weather in weathers):
        return "containers' networks are cut, not slow or lossy"
    return None
