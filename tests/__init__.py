"""The tests, in folders by what they test; what they share is in `helpers`."""
