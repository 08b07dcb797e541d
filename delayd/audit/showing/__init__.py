"""A report as text, as JSON, as a page."""
