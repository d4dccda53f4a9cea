"""What is particular to one family of operators."""
