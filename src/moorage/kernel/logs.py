"""Structured logs: readable lines for people, or one JSON object per line for machines."""

from __future__ import annotations

import logging
import sys

import structlog


def _console() -> structlog.dev.ConsoleRenderer:
    # Plain tracebacks: the default ones print local variables, whose values must not be in a log.
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)


def configure_logs(level: str, *, as_json: bool) -> None:
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()] if as_json else [_console()]
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,  # ids of the request, run and thread
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # Libraries and agents log through the standard module: same form, warnings and errors only.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler])
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # it logs each attempt to connect; we log the outcome
