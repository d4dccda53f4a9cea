"""The version, for what the package itself imports as well."""

VERSION = "0.2.0"
