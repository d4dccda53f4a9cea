"""The version, for what the package itself imports as well."""

VERSION = "0.1.0"
