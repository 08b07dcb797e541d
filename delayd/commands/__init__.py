"""What people do from a shell: messages, dead letters, files of a stopped node."""
