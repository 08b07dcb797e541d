"""Cancel on event: the master reads topics of events and writes cancels for the ids that they name.

Source: docs/guides/cancel-on-event.md.
"""
