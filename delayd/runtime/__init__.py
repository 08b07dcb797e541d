"""The process: clock, threads, log lines, memory, temporary directories, files that survive
a loss of power whole, Java."""
