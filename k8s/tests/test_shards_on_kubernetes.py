"""A cluster gets more shards while it runs, and fewer again; meanwhile nodes go and come.

Whatever the number of shards that the other tests begin with (K8S_SHARDS): with 4 of them the
rolls, drains, cuts and volumes of the other files are those of a cluster with several masters.
"""

from k8s_cluster import SHARDS, Cluster, Run, Traffic, wait_for
from test_on_kubernetes import restarts

MANY = 4
SPREAD_S = 180
"""A node counts once it has been ready for 30 s, and is given its shards 10 s later."""


def test_shards_are_made_spread_taken_over_and_merged(
    cluster: Cluster, traffic: Traffic, note: list[str]
) -> None:
    cluster.wait_ready()
    with traffic("shards") as run:
        began = restarts(cluster)
        change(cluster, run, MANY)
        assert restarts(cluster) == began, "nodes begin anew in their containers"
        with run.mark(f"{MANY} shards spread over 3 nodes"):
            spread = wait_for(
                f"{MANY} shards on 3 nodes", lambda: cluster.are_spread(MANY, 3), SPREAD_S
            )
        note.append(f"{MANY} shards: {spread}")
        most = max(spread, key=lambda pod: len(spread[pod]))
        with (
            run.mark(f"master of {len(spread[most])} shards deleted by force"),
            cluster.replacing(most),
        ):
            cluster.inside("delete", "pod", most, "--force", "--grace-period=0")
        cluster.wait_ready()
        with run.mark("its shards are given back"):
            wait_for("them", lambda: cluster.are_spread(MANY, 3), SPREAD_S)
        change(cluster, run, SHARDS)


def change(cluster: Cluster, run: Run, shards: int) -> None:
    """Have so many, by a command in a node's container: that stays, though its node begins anew."""
    with run.mark(f"delayd shards set {shards}"):
        cluster.run_in("delayd-0", "delayd", "shards", "set", str(shards))
        wait_for(f"{shards} shards that are delivered", lambda: cluster.are_led(shards), 120)
        cluster.wait_ready()
