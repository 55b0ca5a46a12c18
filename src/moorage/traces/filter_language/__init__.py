"""The filter language: parses text into a checked tree, which `store/filters.py` translates to SQL.

    expression := and(expression, ...) | or(expression, ...) | not(expression)
                | eq|neq|gt|gte|lt|lte(field, value) | like|notlike(field, text) | in(field, [value, ...])
                | has(tags, text) | has(metadata|inputs|outputs|extra, json object as text)
                | exists(field) | exists(metadata|inputs|outputs|extra, key) | search(text) | search(field, text)
    value      := "text" | 'text' | number | true | false | null

Rules for all expressions:

- Every condition is either true or false, never unknown. A missing value equals only null, and every other comparison
  with it is false; `neq(f, x)` is `not(eq(f, x))`, `notlike` is `not(like)`.
- Conditions on the parts of a pair (metadata_key and metadata_value, input_*, output_*, feedback_*) side by side in one
  `and(...)` apply to the same pair. See `PairGroup`.
- Depth, size and length are limited. An error names the position and the expected symbol.
"""
