"""What the tests share; none of them is a test."""
