"""Nouns of traces, one file each: shapes, enums and pure functions, without input or output."""
