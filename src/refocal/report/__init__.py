"""Reports: what was measured, and its table, figures and page."""
