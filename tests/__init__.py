"""The tests, grouped in folders by subject; shared code is in `helpers`."""
