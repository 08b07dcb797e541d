"""The figures of the page, as inline SVG: pure functions of what they show."""
