"""A cluster seen from outside: its topics, its frontier, its nodes. Connecting is not being a
node."""
