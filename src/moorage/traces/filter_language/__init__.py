"""The filter language: text in, a checked tree out. What a tree means in SQL is for `store/filters.py` to say.

    expression := and(expression, ...) | or(expression, ...) | not(expression)
                | eq|neq|gt|gte|lt|lte(field, value) | like|notlike(field, text) | in(field, [value, ...])
                | has(tags, text) | has(metadata|inputs|outputs|extra, json object as text)
                | exists(field) | exists(metadata|inputs|outputs|extra, key) | search(text) | search(field, text)
    value      := "text" | 'text' | number | true | false | null

What holds for all of it:

- Every condition is either true or false, never unknown. A missing value equals only null, and compares with nothing
  else; `neq(f, x)` is `not(eq(f, x))`, `notlike` is `not(like)`.
- Parts of a pair (metadata_key and metadata_value, input_*, output_*, feedback_*) that stand side by side in one
  `and(...)` speak of the same pair. See `PairGroup`.
- Depth, size and length are limited, and an error names the character and what was expected there.
"""
