"""A node seen from outside: routes of the admin port, metrics, exports."""
