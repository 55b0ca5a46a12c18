"""Answers about traces: their times end in Z, which the clients of both versions read as UTC."""

from __future__ import annotations

from functools import partial

from moorage.http import answers
from moorage.kernel.encoding import encode_with_z

json_answer = partial(answers.json_answer, encode=encode_with_z)
page_answer = partial(answers.page_answer, encode=encode_with_z)
