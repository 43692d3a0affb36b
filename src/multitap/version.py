"""The version of this release; the build reads it from here."""

VERSION = "0.1.0.dev0"
