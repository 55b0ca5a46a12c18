"""Services of the traces' room that its routes need; `wiring` assembles them."""

from __future__ import annotations

from dataclasses import dataclass

from moorage.traces.attachments import Attachments
from moorage.traces.deletion import Deletion, Retention
from moorage.traces.feedback import Feedback, FeedbackKeys, FeedbackTokens
from moorage.traces.ingest import Ingest
from moorage.traces.prices import Prices
from moorage.traces.projects import Projects
from moorage.traces.reading import Reading
from moorage.traces.statistics import Statistics
from moorage.traces.tailing import Tailing
from moorage.traces.threads import TraceThreads


@dataclass(frozen=True)
class Traces:
    reading: Reading
    statistics: Statistics
    tailing: Tailing
    threads: TraceThreads
    ingest: Ingest
    prices: Prices
    attachments: Attachments
    projects: Projects
    feedback: Feedback
    feedback_keys: FeedbackKeys
    feedback_tokens: FeedbackTokens
    deletion: Deletion
    retention: Retention
