"""From tables to tables: what is wrong, and the figures. Pure: DataFrames in, DataFrames out."""
