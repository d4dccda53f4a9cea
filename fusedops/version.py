"""The version of the package, read by pyproject.toml, too."""

VERSION = "0.2.0"
