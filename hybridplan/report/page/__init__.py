"""Self-contained HTML pages: one file each, no network, the same bytes for the same input."""
