"""Code shared by the examples: one interface to both frameworks, a stopwatch, and the display of results."""
