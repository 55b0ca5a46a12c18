"""Nouns of bulk export, one file each: rows as they are answered, requests as they come in, states and their moves."""
