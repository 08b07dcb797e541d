"""The protocol of delayd, pure: no clock, no I/O, no randomness of its own.

Every node stores the whole buffer; one master per shard delivers from it. What makes that exactly
once is a single value, the frontier, which is committed in the same Kafka transaction as the
deliveries that it covers. Read the files in this order:

    rank.py       where a message stands: rank, slot, lane
    settings.py   what all replicas must agree on, fixed when the cluster is made
    ingest.py     what becomes of a record: a pure function of its partition's log
    frontier.py   how far delivery has come, and what Done(K, O) means
    record.py     the frontier as bytes, with what audits need beside it
    agenda.py     what a master has left to do, and the plan of its next step
                  (lane.py: one queue of it; budget.py: how a full step is shared; entry.py: where
                  a stored frame is)
    now.py        the time by which a step may deliver
    election.py   who tries to be master (election_facts.py: the facts it is told and the orders
                  it gives)

Roles. A follower ingests, and reads the frontier to know what it may forget. A master also plans
steps and carries them out. Which of the two a node is, is the election's business; that two nodes
may believe to be master at once is expected, and harmless: Kafka's transactional id lets only the
later one commit.

What may fail, and what holds then:

    the master dies between two steps          the next one resumes at the last frontier
    it dies inside a step, before the commit   the transaction is aborted: nothing of it was visible
    it dies after the commit                   the frontier says that the step is done
    the commit's answer is lost                nobody guesses: takeover reads the frontier
    it freezes and wakes up later              it is fenced, or past its deadline
    etcd is wrong about who is master          two try, the fence decides
    a clock is wrong                           `now` is bounded by the broker's clock, or it resigns

Source: docs/design/frontier.md, docs/design/election.md.
"""
