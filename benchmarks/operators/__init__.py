"""What the benchmark knows of each operator."""
