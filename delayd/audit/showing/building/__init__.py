"""What pages are built from: elements, tables, scales, drawings. Knows no report."""
