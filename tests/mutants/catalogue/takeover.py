"""Who may deliver, from where, and by which clock."""

from mutants.mutant import Edit, Mutant, one_edit

FRONTIER_LOG = "delayd/cluster/frontier_log.py"
MASTERSHIP = "delayd/node/delivery/mastership.py"
STANDBY = "delayd/node/delivery/standby.py"
TAKING_OVER = "replication/takeover.py"
PLANNING = "delayd/node/delivery/planner.py"
OPENING = "delayd/node/delivery/slot_opener.py"
ONE_MASTER = "tests/unit/node/delivery/test_one_master.py"

TAKEOVER = (
    one_edit(
        "no-fencing",
        "all masters of a shard share one transactional id, so that each fences the last",
        "frontier.md#fence",
        STANDBY,
        "transactional_id(settings.realm, shard)",
        "transactional_id(settings.realm, shard) + str(id(self))",
    ),
    Mutant(
        "frontier-read-before-init",
        "the last frontier is read after the predecessors have been fenced",
        "frontier.md#takeover",
        (
            Edit(TAKING_OVER, "return FencePredecessors() if", "return ReadEnds() if"),
            Edit(
                TAKING_OVER,
                "return BeginTerm(last, begin_term(last), self._order.end)",
                "self._last, self._end = last, self._order.end\n        return FencePredecessors()",
            ),
            Edit(
                TAKING_OVER,
                "PredecessorsFenced) -> Order:\n        return ReadEnds()\n",
                "PredecessorsFenced) -> Order:\n"
                "        return BeginTerm(self._last, begin_term(self._last), self._end)\n",
            ),
            Edit(TAKING_OVER, "(Takeover._begin, CatchUp,", "(Takeover._begin, CatchUp, ReadEnds,"),
            Edit(TAKING_OVER, "(Takeover._fence,", "(Takeover._fence, ReadEnds,"),
            Edit(
                TAKING_OVER, "(Takeover._begin_term,", "(Takeover._begin_term, FencePredecessors,"
            ),
            Edit(TAKING_OVER, "(Takeover._read_ends,", "(Takeover._read_ends, BeginTerm,"),
            # The place of the first record would show that the read was too early.
            Edit(TAKING_OVER, "offset == self._order.end:", "offset >= self._order.end:"),
        ),
    ),
    one_edit(
        "namesakes-share-a-realm",
        "the transactional id and the keys of a cluster are its own, whatever its name is",
        "election.md#realm",
        "replication/settings.py",
        "if self.naming == NAMED_BY_CLUSTER:\n            return",
        "if self.naming in (NAMED_BY_CLUSTER, NAMED_BY_TOPIC):\n            return",
        "tests/unit/cluster/test_realm.py::test_clusters_of_one_name_do_not_meet",
    ),
    one_edit(
        "another-clusters-keys-used",
        "a node whose keys in etcd are another cluster's fences nobody",
        "election.md#realm",
        "delayd/node/startup_checks.py",
        "if topic_id != settings.frontier.topic_id:",
        "if name == settings.frontier.name and topic_id != settings.frontier.topic_id:",
        "tests/unit/cluster/test_realm.py"
        "::test_old_clusters_that_share_their_keys_are_told_before_anyone_is_fenced",
    ),
    one_edit(
        "stray-believed",
        "a record of the frontier topic under another key is no frontier",
        "frontier.md#strays",
        FRONTIER_LOG,
        "            if record.key != key:\n                continue\n",
        "",
        "tests/unit/cluster/test_frontier_log.py::test_a_stray_is_no_frontier_whatever_its_value",
    ),
    one_edit(
        "strays-hide-the-frontier",
        "a read of the frontier topic is bounded by its waits, not by the strays that it skips",
        "frontier.md#strays",
        FRONTIER_LOG,
        "waits -= self.read_to == read_to",
        "waits -= 1",
        "tests/unit/cluster/test_frontier_log.py::test_no_number_of_strays_hides_the_last_frontier",
    ),
    one_edit(
        "lost-marker-overlooked",
        "the frontier's last stable offset must reach its high watermark before it is read",
        "frontier.md#takeover",
        TAKING_OVER,
        "if fact.read <= fact.stable == fact.written:",
        "if fact.read <= fact.stable <= fact.written:",
        f"{ONE_MASTER}::test_a_lost_commit_marker_on_the_frontier_stops_a_takeover",
        is_simulated=True,
    ),
    one_edit(
        "another-topic-overlooked",
        "a frontier counts only if its topic is still the one that it names",
        "frontier.md#takeover",
        TAKING_OVER,
        "if not fact.is_of_topic:",
        "if False:",
        "tests/unit/replication/test_takeover.py::"
        "test_a_topic_that_was_made_again_stops_the_takeover_though_it_ends_where_it_did",
    ),
    one_edit(
        "stale-read-believed",
        "the first record of a term lands where the read of the last frontier ended",
        "frontier.md#stale-reads",
        TAKING_OVER,
        "if fact.offset == self._order.end:",
        "if fact.offset >= self._order.end:",
        "tests/simulation/test_zombies.py::test_a_stale_read_of_the_frontier_doubles_nothing",
        is_simulated=False,
    ),
    one_edit(
        "stale-connections-kept",
        "after a stale read the frontier is read over new connections",
        "frontier.md#stale-reads",
        "delayd/node/delivery/delivery_loop.py",
        "        self._log.renew()\n",
        "",
        "tests/unit/node/delivery/test_delivery_loop.py::"
        "test_a_stale_read_is_repeated_over_new_connections",
        is_simulated=False,
    ),
    one_edit(
        "cluster-made-twice-after-a-stale-read",
        "the first record of a cluster lands where the empty frontier topic ended",
        "frontier.md#stale-reads",
        "delayd/cluster/topics.py",
        "        if landed != (wanted := dict(enumerate(ends))):\n",
        "        if landed.keys() != (wanted := dict(enumerate(ends))).keys():\n",
        "tests/unit/cluster/test_topics.py::test_a_stale_read_of_the_frontier_initialises_nothing",
        is_simulated=False,
    ),
    one_edit(
        "offsets-not-in-the-frontier",
        "a successor goes on from the O of the frontier, not from how far it has read itself",
        "frontier.md#takeover",
        MASTERSHIP,
        "Planner.of(self._replica, last)",
        "Planner.of(self._replica, replace(last, offsets=self._replica.ingested))",
    ),
    one_edit(
        "start-at-now",
        "a successor goes on from the K of the frontier, never from now",
        "frontier.md#takeover",
        MASTERSHIP,
        "self._plans = Planner.of(self._replica, last)",
        "now_ms = self._clock.wall_ms()\n"
        "        now = last.highest_cursor._replace(due_ms=now_ms)\n"
        "        cursors = tuple(max(k, now) for k in last.cursors)\n"
        "        begun = replace(last, cursors=cursors)\n"
        "        self._plans = Planner.of(self._replica, begun)",
    ),
    Mutant(
        "takeover-before-o-is-reached",
        "a successor waits until its own wheel has reached O",
        "frontier.md#takeover",
        (
            Edit(
                TAKING_OVER,
                "return ReachFrontier(fact.frontier, fact.end)",
                "return BeginTerm(fact.frontier, begin_term(fact.frontier), fact.end)",
            ),
            Edit(
                TAKING_OVER,
                "ReadFrontier: {FrontierRead: (Takeover._judge_frontier, ReachFrontier",
                "ReadFrontier: {FrontierRead: (Takeover._judge_frontier, BeginTerm",
            ),
        ),
        (
            "tests/unit/replication/test_takeover.py::"
            "test_a_takeover_fences_then_reads_then_waits_then_begins_its_term",
        ),
        is_simulated=False,
    ),
    one_edit(
        "late-arrivals-not-searched-for",
        "a successor searches its wheel for late arrivals that O has not passed",
        "frontier.md#takeover",
        OPENING,
        "            if not is_passed(info, queue.frontier):\n",
        "            if False:\n",
        "tests/unit/node/replica/test_replica.py::test_a_successor_finds_late_arrivals_in_the_wheel",
        is_simulated=True,
    ),
    one_edit(
        "late-arrivals-found-twice",
        "a message that arrives during the search for late arrivals is late once, not found again",
        "frontier.md#takeover",
        OPENING,
        "(entry.position < search.end or",
        "(entry.position >= 0 or",
        "tests/unit/node/delivery/test_slot_opener.py::"
        "test_what_arrives_while_late_arrivals_are_looked_for_is_delivered_once",
    ),
    one_edit(
        "replies-not-searched-for",
        "a successor searches its wheel for pending replies that O has not passed",
        "frontier.md#takeover",
        PLANNING,
        "DeliveryQueue(frontier, replies, limits",
        "DeliveryQueue(frontier, (), limits",
    ),
    Mutant(
        "term-from-etcd",
        "a master's term is 1 + the last one in the frontier, not a number of etcd's",
        "frontier.md#term",
        (
            Edit(
                MASTERSHIP,
                "        self.term = first.term\n",
                "        leadership = self._grant.leadership\n"
                "        assert leadership is not None\n"
                "        first = replace(first, term=leadership.create_revision)\n"
                "        self.term = first.term\n",
            ),
        ),
    ),
    one_edit(
        "higher-term-ignored",
        "a master that reads a term above its own stops being master",
        "frontier.md#term",
        MASTERSHIP,
        "newest.record.frontier.term > self.term:",
        "False:",
        f"{ONE_MASTER}::test_a_master_that_reads_a_later_term_stops",
    ),
    one_edit(
        "producer-used-again-after-an-error",
        "after any error in a step the producer is discarded and takeover begins again",
        "frontier.md#step",
        MASTERSHIP,
        "        self._step()\n        return True\n",
        "        try:\n"
        "            self._step()\n"
        "        except ProducerError as error:\n"
        '            log.warning("step_failed", error=str(error))\n'
        "        return True\n",
    ),
    one_edit(
        "frontier-believed-before-its-commit",
        "a frontier counts when its transaction is committed, not when it is written",
        "frontier.md#why-exactly-once",
        MASTERSHIP,
        "        written = self._commit.commit(record, self._check)\n",
        "        def believe(seen: Written) -> None:\n"
        "            self._check(seen)\n"
        "            at = seen.ack\n"
        "            self._replica.observe(SeenFrontier(record, at.offset, at.append_ms))\n"
        "\n"
        "        written = self._commit.commit(record, believe)\n",
    ),
    one_edit(
        "commit-after-the-lease",
        "a master whose lease ran out during a step does not commit it",
        "frontier.md#step",
        MASTERSHIP,
        "if not self._grant.is_live(self._clock.monotonic_ms()):",
        "if False:",
        f"{ONE_MASTER}::test_a_lease_that_runs_out_during_a_step_ends_it_before_the_commit",
    ),
    one_edit(
        "now-without-the-brokers-bound",
        "now is never ahead of the broker's clock",
        "frontier.md#now",
        "replication/now.py",
        "return min(wall_ms, bound.append_ms + surely_ns // MS_NS)",
        "return wall_ms",
    ),
    one_edit(
        "now-in-whole-milliseconds",
        "the time since B is cut to whole milliseconds once, at the end",
        "frontier.md#now",
        "replication/now.py",
        "    surely_ns = (monotonic_ns - bound.arrived_ns) * (1_000_000 - RATES_PPM_MAX)"
        " // 1_000_000\n",
        "    surely_ns = (monotonic_ns // MS_NS - bound.arrived_ns // MS_NS) * MS_NS\n",
        "tests/unit/replication/test_now.py::test_now_is_beyond_neither_clock",
        is_simulated=True,
    ),
    one_edit(
        "now-without-the-own-clock",
        "now is never ahead of the master's own clock",
        "frontier.md#now",
        "replication/now.py",
        "return min(wall_ms, bound.append_ms + surely_ns // MS_NS)",
        "return bound.append_ms + surely_ns // MS_NS",
        "tests/unit/replication/test_now.py::test_now_is_beyond_neither_clock",
        is_simulated=True,
    ),
    one_edit(
        "old-bound-believed",
        "a bound older than 60 s is renewed before anything is delivered",
        "frontier.md#now",
        MASTERSHIP,
        "if self._bound.is_stale(monotonic_ns):",
        "if False:",
        f"{ONE_MASTER}::test_an_old_bound_is_renewed_before_anything_is_delivered",
    ),
    one_edit(
        "drift-not-looked-at",
        "a master whose clock is far from the broker's commits nothing and resigns",
        "frontier.md#now",
        MASTERSHIP,
        "        self._check_clock(written)\n",
        "",
        f"{ONE_MASTER}::test_a_clock_that_drifted_ends_the_step_before_its_commit",
    ),
)
