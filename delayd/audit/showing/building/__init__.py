"""The parts of pages: elements, tables, scales, drawings. Knows no report."""
