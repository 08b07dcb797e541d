"""What is known of targets: whether they exist, refuse or fail."""
