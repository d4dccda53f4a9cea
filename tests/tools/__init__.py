"""Build, wheel, benchmark, soak, types, examples and the documents."""
