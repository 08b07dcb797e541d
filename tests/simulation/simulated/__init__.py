"""A whole cluster in one OS thread: real nodes over twins of Kafka, etcd, disks and clocks.

    world = World(seed, directory)     users, brokers, etcd, three machines with a node each
    world.run()                        faults, then quiet, then every node is told to end
    world.faults, world.trace          what was done to it, and in which order

The nodes are `delayd.node.node.run_node_in`, unmodified: the event loop with ControlLoop and
Election, the delivery thread, the ingest thread, the wheel on real files, start and stop in the
real order.

Not here: who goes on (`kernel`), what must hold (`simulation_checker.py`). Not simulated: LevelDB,
which has no port (what it was told to sync is there after every crash), the admin port, exports.
"""
