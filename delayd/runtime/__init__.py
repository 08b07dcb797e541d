"""The process: clock, threads, log lines, memory, temporary directories, Java."""
