"""One running node: the only place where adapters meet."""
