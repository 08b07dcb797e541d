"""Kafka topics and exports into Spark, one way in."""
