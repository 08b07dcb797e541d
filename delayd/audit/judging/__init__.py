"""The judgements: findings and figures. Pure: DataFrames in, DataFrames out."""
