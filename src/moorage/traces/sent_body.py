"""A body of several runs, collected from its parts as they arrive: runs, their attachments, and feedback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from moorage.kernel.errors import BodyTooLargeError, InvalidRequestError
from moorage.traces.attachments import SentAttachment, read_attachment
from moorage.traces.multipart import Part
from moorage.traces.parse_run import PAYLOADS, RUNS_MAX, SentRun, decode_json

# Limit of one JSON text. A string of 32 MiB takes four times the memory if it has a character beyond the basic plane.
JSON_BYTES_MAX = 32 * 2**20
_PARTS_MAX = 100_000
_FEEDBACK_BYTES_MAX = 2**20


@dataclass
class SentBody:
    runs: list[SentRun] = field(default_factory=list)
    attachments: list[SentAttachment] = field(default_factory=list)
    feedback: list[dict[str, Any]] = field(default_factory=list)
    _by_name: dict[str, SentRun] = field(default_factory=dict)
    _sent_feedback: list[tuple[str, bytes]] = field(default_factory=list)
    _parts: int = 0

    def __post_init__(self) -> None:
        self._check_entries()

    def add(self, parts: Iterable[Part]) -> None:
        """Add parts; the parts of a run may come in any order.

        Raises InvalidRequestError for an unknown part, OverloadedError, and BodyTooLargeError for a part that is too
        large or for too many parts.
        """
        for part in parts:
            self._parts += 1
            if self._parts > _PARTS_MAX:
                raise BodyTooLargeError(f"The body has more than {_PARTS_MAX} parts; send them in several requests")
            self._add(part)
        self._check_entries()

    def _check_entries(self) -> None:
        if len(self.runs) + len(self.attachments) + len(self._sent_feedback) > RUNS_MAX:
            raise BodyTooLargeError(
                f"The body has more than {RUNS_MAX} runs, attachments and feedback; send them in several requests"
            )

    def texts(self) -> Iterator[bytes]:
        """Yield all JSON texts of runs and feedback."""
        for run in self.runs:
            if run.main is not None:
                yield run.main
            yield from run.payloads.values()
        for _, data in self._sent_feedback:
            yield data

    def read_feedback(self) -> None:
        """Decode the feedback. Raises InvalidRequestError for parts that are not feedback."""
        self.feedback = [_read_feedback(feedback_id, data) for feedback_id, data in self._sent_feedback]

    def _add(self, part: Part) -> None:
        kind, _, rest = part.name.partition(".")
        run_id, _, name = rest.partition(".")
        if kind in {"post", "patch"}:
            _check_size(part, JSON_BYTES_MAX)
            self._add_to_run(kind, run_id, name, part.data)
        elif kind == "attachment":
            self.attachments.append(read_attachment(run_id, name, part.content_type, part.data))
        elif kind == "feedback" and not name:
            _check_size(part, _FEEDBACK_BYTES_MAX)
            self._sent_feedback.append((run_id, part.data))
        else:
            raise InvalidRequestError(
                f"Unknown part {part.name[:100]!r}; expected post.<run id>, patch.<run id>, one of their fields, "
                "feedback.<id> or attachment.<run id>.<name>"
            )

    def _add_to_run(self, kind: str, run_id: str, field_name: str, data: bytes) -> None:
        name = kind + run_id
        run = self._by_name.get(name)
        # A body may hold several updates of one run; each begins with the run itself.
        if run is None or (not field_name and run.main is not None):
            run = self._by_name[name] = SentRun(run_id, is_patch=kind == "patch")
            self.runs.append(run)
        if not field_name:
            run.main = data
        elif field_name in PAYLOADS:
            run.payloads[field_name] = data
        else:
            raise InvalidRequestError(
                f"Unknown field {field_name[:100]!r} of a run; known are {', '.join(sorted(PAYLOADS))}"
            )


def _check_size(part: Part, bytes_max: int) -> None:
    if len(part.data) > bytes_max:
        raise BodyTooLargeError(f"The part {part.name[:100]!r} is larger than the limit of {bytes_max} bytes")


def _read_feedback(feedback_id: str, data: bytes) -> dict[str, Any]:
    _, item = decode_json(data)
    if not isinstance(item, dict):
        raise InvalidRequestError("Feedback must be a JSON object")
    return {"id": feedback_id, **item}
