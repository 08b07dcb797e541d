"""The settings of a node and of its connections, and the secrets among them."""
