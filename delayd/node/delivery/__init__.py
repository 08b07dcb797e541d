"""From the wheel to the targets: what a master does, one step after another."""
