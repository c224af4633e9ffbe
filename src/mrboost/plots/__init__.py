"""Figures and the HTML page around them; they know nothing of the library but errors and types."""
