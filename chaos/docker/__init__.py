"""The backend of containers: three brokers, three etcd members and the nodes, one container each.

    kafka  ---- broker-1  broker-2  broker-3 ----+
                                                 +---- node-1  node-2  node-3 ---- admin
    etcd   ---- etcd-1    etcd-2    etcd-3   ----+

Three networks: a node is cut from Kafka or etcd by taking it off that one, and can still be asked
how it is. They are internal, so that there is no way around a cut, and the harness, on the same
machine, reaches all of them. Every container keeps an address of its own.
"""
