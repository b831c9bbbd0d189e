"""The rule by which the log records of libraries are shown: one level less than those of the platform and of agents."""

from __future__ import annotations

import logging
import sys

from ..texts.error_chain import find_package

_PACKAGE = logging.getLogger("spade_coreason")
_own_packages: set[str] = set()


def except_package(module: str) -> None:
    """Except the top-level package of a module from the rule: an agent or an interceptor is no library."""
    _own_packages.add(module.partition(".")[0])


def is_worth_showing(record: logging.LogRecord) -> bool:
    """Return False for a record of a library that is too minor for the level of the platform's own log.

    With WARNING there, libraries show CRITICAL; with INFO they show WARNING; with DEBUG they show everything.
    """
    level = _PACKAGE.getEffectiveLevel()
    least = logging.NOTSET if level <= logging.DEBUG else logging.WARNING if level <= logging.INFO else logging.CRITICAL
    return record.levelno >= least or not _is_of_library(record)


def _is_of_library(record: logging.LogRecord) -> bool:
    logger, package = record.name.partition(".")[0], find_package(record.pathname)
    return not {logger, package} & _own_packages and (bool(package) or logger in sys.stdlib_module_names)
