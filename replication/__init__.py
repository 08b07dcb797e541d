"""The protocol of delayd, pure: no clock, no I/O, no randomness of its own.

This is the manual. Every node stores the whole buffer; one master per shard delivers from it. One
value makes that exactly once: the frontier, which the master commits in the same Kafka transaction
as the deliveries that it covers. Of a frontier with cursors K (a rank for each lane) and offsets O
(one for each buffer partition)

    Done(K, O) = { m : rank(m) < K[lane(m)] and offset(m) < O[partition(m)] }

is exactly the set of messages that have been dealt with. A step moves (K, O) forward and delivers
the difference. R, beside them, is the last offset that steps wrote to each buffer partition.

1. Files, in the order of reading

    rank.py            where a message stands: rank, slot, lane
    settings.py        what all replicas must agree on, fixed when the cluster is made
    rules.py           which version of the rules a record is ruled by
    log_time.py        what time it is, as far as a partition's log says
    ids.py             what a partition's log says of one id
    asked.py           what a request asks
    ingest.py          what becomes of a record: a pure function of its partition's log
    debounce.py        of this, what a debounce does to the messages of its id
    frontier.py        how far delivery has come, and what Done(K, O) means
    record.py          the frontier as bytes, with what audits need beside it
    features.py        what a reader of such a record must know
    delivery_queue.py  what a master has left to do, and the plan of its next step (lane.py: one
                       queue of it; budget.py: how lanes share a full step; entry.py: where a stored
                       frame is)
    verdict.py         what came of a cancel or a replace
    shards.py          parts of the buffer with masters of their own, and their joint frontier
    resharding.py      more shards, or fewer: what becomes of their frontiers
    smoothing.py       when a message may go out whose target takes only so many a second, or is
                       paused (holds.py: what orders make of that; drain.py: how a pause ends)
    quotas.py          when a topic has as many pending messages as it may, or gets as many requests
                       a second, and what is refused
    now.py             the time by which a step may deliver
    pause.py           how long a master waits that has nothing to deliver
    election.py        which node tries to be master (election_facts.py: its facts and orders;
                       election_times.py: what a lease is good for; election_turn.py: which
                       node goes first)
    placement.py       which node should lead which shard, and when a leader hands over
    pulse.py           what a follower concludes from its connection to the master's process
    leadership_session.py  what a node does with a grant: when it takes over again, when it lets
                       others try
    takeover.py        what a new master does before it delivers
    trimmed.py         when a log without its beginning is enough to rebuild a replica
    recovered.py       a frontier that was lost, worked out from what steps have left behind

Each rule has a name in docs/design/rules.md, and each name has a test.

2. Roles

    follower      ingests, and reads the frontier to know what it may forget. It never delivers.
    campaigner    saw no leader, and has asked etcd for a lease and for the leader key.
    master        has won: it takes over, plans steps and carries them out. It ingests as before.
    predecessor   the node that was master before, dead or not. It may not know yet.

Two nodes may believe to be master at once. That is expected and harmless: etcd only decides which
node tries; Kafka's transactional id lets only the later one commit.

3. Three machines

Election, leadership session and takeover each have one table of transitions, at the end of their
file: by state (or last order) and fact, what is done and which states may follow. Their diagrams
are drawn from the tables: docs/design/election.md, docs/design/frontier.md ("Takeover"). Whole
stories: tests/scenarios/*.txt.

4. The order of the effects

Facts go in, orders come out. The callers (delayd/node/election/, and delivery_loop.py,
takeover_run.py and mastership.py in delayd/node/delivery/) carry them out in that order.

- The orders of an election are carried out as they stand in the tuple. At most one call to etcd is
  in flight, and it has exactly one answer. StartDelivery, then any ExtendDeadline, then
  StopDelivery, then the fact DeliveryStopped, and only then RevokeLease: a lease never ends under a
  delivery.
- A leadership session gives one order at a time: be master, wait, be master again, rest.
  DeliveryStopped says how it came to rest.
- A takeover gives one order at a time: catch up with the known frontier, fence predecessors,
  compare the ends of the frontier topic, read the last frontier and ask if its topic is still the
  one that it names, let the own wheel reach O, write the first step. That step moves nothing but
  the term, and its delivery report is the first bound of `now`.
- A step is planned on one snapshot and begun under one lock. Then, in one transaction:
  1. deliveries, requeued messages, pending replies;
  2. all of these are acknowledged, so that R is known;
  3. the frontier record, as the last;
  4. it is acknowledged, so that the broker's time is known;
  5. clocks and lease are compared;
  6. commit. Only a committed step is remembered.
- Any error on the way ends queue and producer. Nothing is sent again, aborted or repaired: the next
  takeover reads what became of it.
- Where the guarantee is at-least-once there is neither fence nor transaction. A takeover reads the
  progress in etcd in place of fence, ends and frontier. In a step all is sent and acknowledged;
  etcd takes the frontier, if this master still leads and nobody wrote since it read; the frontier
  record goes to its topic, and brings the broker's time. The next master sends again what was sent
  before a write that failed: that is the difference (docs/design/frontier.md, "At least once").

5. What may be believed, and until when

    keepalive ordered ....... answered         deadline             etcd lets go
        |------- 80 % of the TTL granted --------->|                      |
        |------------------------- TTL granted -------------------------->|
        steps are begun and committed             | nothing is begun any more

    I may begin a step or a commit      until the deadline, whatever etcd says later. The clock is
                                        monotonic, and counts from the order, not from the answer.
    no predecessor can commit           from `init_transactions()` on, for ever. This is the fence,
                                        and the only promise that safety needs.
    the frontier that I read is last    from the fence on, until a successor fences me. I learn it
                                        from Kafka's refusal, or from a higher term.
    nothing later than `now` is due     while B, the broker's time of my last frontier record, is no
                                        older than 60 s; then an empty step renews it first.
    my clock agrees with the broker's   to 500 ms: compared before each commit.
    a cancel marker below O' counts     for that step and all later ones.
    what a committed frontier covers    for ever: every component only grows.
    an answer of etcd                   if it answers the call in flight; otherwise it is ignored.
    an error or a time-out              says nothing about what happened.

6. What may fail, and what holds then

    the master dies between two steps          the next one resumes at the last frontier
    it dies inside a step, before the commit   the transaction is aborted: nothing of it was visible
    it dies after the commit                   the frontier says that the step is done
    the commit's answer is lost                no guess: takeover reads the frontier
    it freezes and wakes up later              it is fenced, or past its deadline
    its delivery loop is stuck                 no keepalive is sent: the lease ends, another leads
    its lease is lost, its disk fails          it stops delivery, then gives the lease back
    the master cannot reach Kafka              it takes over again and again; after 10 s without a
                                               step it rests, and another node tries
    it dies, freezes or is cut off             followers that miss its pulse depose it; if they are
                                               wrong, the fence decides
    etcd is wrong about who is master          two try, the fence decides
    etcd is away                               the master stops at its deadline; nothing is lost
    a clock is wrong                           `now` is bounded by the broker's clock, or it resigns
    a commit marker was lost                   takeover sees that the stable offset lags: it stops
    the frontier topic was lost, made again    takeover stops: to start at "now" loses messages, to
                                               go on from what is remembered doubles some
    the own wheel is far behind                the node lets others campaign, and fences nobody
    a target refuses                           the message is requeued for a retry
    a target takes so many a second            what there is no room for is requeued, for its turn
    a target is paused                         what is due is requeued, and keeps its order

7. Where brokers have no transactions (the guarantee is at-least-once)

No predecessor can be fenced, and a step is two things, in this order: its deliveries are
acknowledged; then etcd takes its frontier, if the leader key is still this master's and nobody
wrote there since it read or wrote it last. All above holds but this:

    no predecessor can commit           it can still deliver the step that it is in, but not write
                                        it down: that step is delivered again
    the master dies inside a step       what it had sent of it is delivered again
    a message is requeued twice         the first record in the log counts, the others are ignored
    a verdict                           is judged by the frontier that is written, and given again
                                        with the step that is
    etcd is away                        no step is written, and none is begun after it

Source: docs/design/frontier.md, docs/design/election.md, docs/design/rules.md.
"""
