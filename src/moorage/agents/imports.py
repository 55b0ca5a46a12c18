"""Import of the project's own variables that langgraph.json names: graphs, authentication and applications."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any


def import_variable(path: str, folder: Path) -> Any:
    """Import the variable that `file.py:variable` or `package.module:variable` names."""
    module_path, _, variable = path.rpartition(":")
    if not module_path:
        raise ValueError("expected the form file.py:variable or package.module:variable")
    module = (
        _imported_file(folder / module_path) if module_path.endswith(".py") else importlib.import_module(module_path)
    )
    if not hasattr(module, variable):
        raise AttributeError(f"the module has no '{variable}'")
    return getattr(module, variable)


def _imported_file(file: Path) -> Any:
    """Import a file. A file in a package is imported as part of it, so that relative imports work."""
    if not file.is_file():
        raise FileNotFoundError("the file does not exist")
    root, parts = file.resolve().parent, [file.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if len(parts) > 1:
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        return importlib.import_module(".".join(parts))
    # Files of the same name in different folders need different module names.
    name = f"{file.stem}_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("the file is not a Python module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def cause_of(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    path = getattr(error, "path", None)  # of an ImportError: callers must not see this host's paths
    return text.replace(path, Path(path).name) if path else text


def own_line(error: BaseException, folder: Path) -> str | None:
    """Return the last line of the project's code in the traceback, such as `agent.py, line 3: import nowhere`."""
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename, folder):
        return _shown_line(error.filename, error.lineno or 1, error.text, folder)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename, folder)]
    return _shown_line(frames[-1].filename, frames[-1].lineno or 1, frames[-1].line, folder) if frames else None


def _is_own(file: str, folder: Path) -> bool:
    """Return True if a file belongs to the project, and not to a virtual environment in its folder."""
    path = Path(file).resolve()
    return path.is_relative_to(folder.resolve()) and not {"site-packages", "dist-packages"} & set(path.parts)


def _shown_line(file: str, number: int, text: str | None, folder: Path) -> str:
    return f"{Path(file).resolve().relative_to(folder.resolve())}, line {number}: {(text or '').strip()}"
