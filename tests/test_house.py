"""Rules of the house, checked by machines: style by `ast`, imports by import-linter, words by a search.

Every rule and every contract is also shown to detect a violation, since a check that cannot fail checks nothing.
"""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPO = Path(__file__).parents[1]
SRC = REPO / "src"
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

MODULE_NAMES = re.compile(r"_*(utils?|helpers?|commons?|services?|managers?|core|misc)")
VERBS = re.compile(r"_*(handle|process|manage|do|perform)(_[a-z].*)?")
# Docstrings that open with one of these words leave their subject to be guessed.
RIDDLE = re.compile(r"(As|How|Of|The same|Those|What|Where|Whether|Which|Who|Whom|Whose|Why)\b")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
# Text that belongs to one machine or one network: home and work folders, and hosts of package registries.
LOCAL_PATH = re.compile(r"(?<![\w.~-])/(?:work|root|home/[a-z]\w*|Users/\w+)/")
REGISTRY = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|yarnpkg\.com|crates\.io|proxy\.golang\.org|docker\.io)\b"
)
CONFLICT = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)


class Source(NamedTuple):
    path: Path
    text: str

    def at(self, node: ast.AST | int, message: str) -> str:
        return f"{self.path}:{node if isinstance(node, int) else node.lineno}: {message}"

    def nodes(self, *kinds: type) -> Iterator[ast.AST]:
        return (node for node in ast.walk(ast.parse(self.text)) if isinstance(node, kinds))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return self.nodes(ast.FunctionDef, ast.AsyncFunctionDef)

    def comments(self) -> dict[int, str]:
        """Return the reason given on each line: its comment without the part for linters."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        found = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
        return {line: re.sub(r"^(noqa|type: ignore)[\w:, \[\]-]*?(- |$)", "", text) for line, text in found.items()}


def module_name(source: Source) -> Iterator[str]:
    for part in source.path.with_suffix("").parts:
        if MODULE_NAMES.fullmatch(part):
            yield source.at(1, f"`{part}` says nothing: name it after its noun, or move each part to where it is used")


def function_verb(source: Source) -> Iterator[str]:
    advice = (
        "callers create, get, list, update, delete; stores insert, read, page, set, remove; "
        "workers claim, beat, reap, wake; else say what happens, as in `decode` or `is_alive`"
    )
    for function in source.functions():
        if VERBS.fullmatch(function.name):
            yield source.at(function, f"`{function.name}`: {advice}")


def function_length(source: Source) -> Iterator[str]:
    advice = "keep the branching here and move the work into leaves"
    for function in source.functions():
        lines = function.end_lineno - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield source.at(function, f"`{function.name}` has {lines} lines, over {FUNCTION_LINES_MAX}: {advice}")


def file_length(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield source.at(lines, f"{lines} lines, over {FILE_LINES_MAX}: make it a folder with one file per noun")


def swallowed_exception(source: Source) -> Iterator[str]:
    advice = "catch the class that you expect, or log what you caught"
    for caught in source.nodes(ast.ExceptHandler):
        empty = all(isinstance(node, ast.Pass | ast.Continue) or _is_constant(node) for node in caught.body)
        if caught.type is None or (empty and _is_broad(caught.type)):
            yield source.at(caught, f"an exception is swallowed: {advice}")
    for call in source.nodes(ast.Call):
        if ast.unparse(call.func).endswith("suppress") and any(map(_is_broad, call.args)):
            yield source.at(call, f"`suppress` of everything: {advice}")


def _is_broad(kind: ast.expr) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(ast.unparse(each) in {"Exception", "BaseException"} for each in kinds)


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def hidden_import(source: Source) -> Iterator[str]:
    reasons = source.comments()
    inside = (node for function in source.functions() for node in ast.walk(function))
    for line in sorted({node.lineno for node in inside if isinstance(node, ast.Import | ast.ImportFrom)}):
        if reasons.get(line) or reasons.get(line - 1):
            reasons[line] = reasons.get(line) or reasons[line - 1]  # one reason serves a block of imports
        else:
            yield source.at(line, "an import inside a function: move it to the top, or say why in a comment beside it")


def riddle(source: Source) -> Iterator[str]:
    advice = "begin a docstring with a verb or a noun: `Return the page after the cursor.`"
    for node in source.nodes(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef):
        if opening := RIDDLE.match(ast.get_docstring(node) or ""):
            yield source.at(node.body[0], f"a docstring opens with `{opening[0]}`: {advice}")


def unfinished(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield source.at(number, "a note to yourself: do it now, or open an issue")


RULES = [
    module_name,
    function_verb,
    function_length,
    file_length,
    swallowed_exception,
    hidden_import,
    riddle,
    unfinished,
]

VIOLATIONS = [
    (module_name, "", "moorage/agents/utils.py"),
    (module_name, "", "moorage/services/mail.py"),
    (module_name, "", "moorage/kernel/_helpers.py"),
    (function_verb, "def handle_request(): ...", None),
    (function_verb, "class Runs:\n    async def _process(self): ...", None),
    (function_verb, "def do_it(): ...", None),
    (function_length, "def long():\n" + "    pass\n" * FUNCTION_LINES_MAX, None),
    (file_length, "pass\n" * (FILE_LINES_MAX + 1), None),
    (swallowed_exception, "try:\n    f()\nexcept:\n    raise", None),
    (swallowed_exception, "try:\n    f()\nexcept Exception:\n    pass", None),
    (swallowed_exception, "try:\n    f()\nexcept (ValueError, BaseException):\n    ...", None),
    (swallowed_exception, "with contextlib.suppress(Exception):\n    f()", None),
    (hidden_import, "def f():\n    import json", None),
    (hidden_import, "async def f():\n    from json import loads  # noqa: PLC0415", None),
    (hidden_import, "def f():\n    import yaml  # type: ignore[import-untyped]", None),
    (hidden_import, "def f():\n    import yaml  # noqa", None),
    (riddle, '"""What a room supplies."""', None),
    (riddle, 'async def f():\n    """Whether it serves."""', None),
    (unfinished, "x = 1  # TODO: more", None),
]
KEPT = [
    (module_name, "", "moorage/agents/store/runs.py"),
    (function_verb, "def domain(): ...\ndef do_GET(): ...\ndef reprocess(): ...", None),
    (function_length, "def long():\n" + "    pass\n" * (FUNCTION_LINES_MAX - 1), None),
    (file_length, "pass\n" * FILE_LINES_MAX, None),
    (swallowed_exception, "try:\n    f()\nexcept Exception as error:\n    log(error)", None),
    (swallowed_exception, "try:\n    f()\nexcept KeyError:\n    pass", None),
    (hidden_import, "import json", None),
    (hidden_import, "def f():\n    # Only the platform has it.\n    import obstore\n    import pyarrow", None),
    (hidden_import, "def f():\n    import obstore  # noqa: PLC0415 - only the platform has it", None),
    (riddle, '"""Whole pages."""\ndef f():\n    """Return what is left."""', None),
    (unfinished, "todos = [1]", None),
]


def _complaints(rule, text, path):
    return list(rule(Source(Path(path or "moorage/agents/runs.py"), text)))


@pytest.mark.parametrize(("rule", "text", "path"), VIOLATIONS)
def test_a_rule_sees_its_violation(rule, text, path):
    assert _complaints(rule, text, path)


@pytest.mark.parametrize(("rule", "text", "path"), KEPT)
def test_a_rule_lets_good_code_pass(rule, text, path):
    assert not _complaints(rule, text, path)


@pytest.mark.parametrize("rule", RULES)
def test_the_source_keeps_the_rule(rule):
    sources = [Source(path.relative_to(REPO), path.read_text()) for path in sorted(SRC.rglob("*.py"))]
    assert not [complaint for source in sources for complaint in rule(source)]


def test_migrations_and_other_files_of_src_are_finished():
    files = [path for path in SRC.rglob("*") if path.suffix in {".sql", ".html", ".md", ".toml", ".json"}]
    assert not [complaint for path in files for complaint in unfinished(Source(path, path.read_text()))]


# One word, one meaning: the name of a public class is unique in all of `src`.

SHARED_CLASS_NAMES = {
    "Health": "an answer of /ok: the agent server's and the platform's, in two OpenAPI documents",
    "Info": "an answer of /info, as above",
    "Project": "a tracing project and a deployment's project: both names go out in OpenAPI documents",
    "RunStatus": "the status of an agent's run and of a trace's run: both names go out in OpenAPI documents",
}


def _class_names(sources: list[Source]) -> dict[str, list[str]]:
    """Return the modules of each public class, by its name."""
    found: dict[str, list[str]] = {}
    for source in sources:
        for node in source.nodes(ast.ClassDef):
            found.setdefault(node.name, []).append(str(source.path))
    return {name: modules for name, modules in found.items() if not name.startswith("_")}


def test_a_class_has_a_name_of_its_own():
    sources = [Source(path.relative_to(SRC), path.read_text()) for path in sorted(SRC.rglob("*.py"))]
    shared = {name: modules for name, modules in _class_names(sources).items() if len(modules) > 1}
    assert {name: shared[name] for name in shared.keys() - SHARED_CLASS_NAMES.keys()} == {}, (
        "name each after its own noun"
    )
    assert not SHARED_CLASS_NAMES.keys() - shared.keys(), "these are exceptions no more"


def test_two_classes_of_one_name_are_seen():
    sources = [Source(Path(name), "class Place: ...\nclass _Step: ...") for name in ("a.py", "b.py")]
    assert _class_names(sources) == {"Place": ["a.py", "b.py"]}


# Imports. One line each that breaks one contract: where it is written, what it imports, which contract must break.

FLOORS = "Floors: cli > wiring > settings > rooms > http, worker, embedded > kernel"
SETTINGS = "Settings import nothing of moorage"
COMMANDS = "The command line imports wiring, engines, settings and kernel only"
ROOM = "Agents: routes > jobs > verbs > store > records"
NO_STORE = "Routes call verbs, never a store"
STORE = "A store knows records and no verbs"
PSYCOPG = "psycopg: kernel, stores and embedded only"
FASTAPI = "FastAPI and Starlette: http, routes and wiring only"
UVICORN = "uvicorn: cli and wiring only"
LANGGRAPH = "langgraph and langchain-core: agents only"
ACCOUNTS = "Accounts: routes > jobs > verbs > store > records"
AUDIT = "Audit: routes > verbs > store > records"
TRACES = "Traces: routes > jobs > verbs > store > languages > records"
EXPORTS = "Exports: routes > jobs > verbs > store > pure > records"
CONTROL = "Control: routes > jobs > verbs > store > sources and environments > records"
CLICKHOUSE = "clickhouse-connect: kernel only; chDB: embedded only"
VENDORS = "obstore: kernel/buckets only; cryptography: kernel only; joserfc: what signs or reads tokens"
NEVER = "Never: Elastic-licensed servers, ORMs"

ILLEGAL_IMPORTS = [
    ("kernel/a", "moorage.http", FLOORS),
    ("http/a", "moorage.agents", FLOORS),
    ("worker/a", "moorage.http", FLOORS),
    ("worker/a", "moorage.settings", FLOORS),
    ("embedded/a", "moorage.wiring", FLOORS),
    ("agents/live", "moorage.wiring", FLOORS),
    ("agents/live", "moorage.control.places", FLOORS),
    ("agents/live", "moorage.accounts.access", FLOORS),
    ("control/pushes", "moorage.traces.usage", FLOORS),
    ("control/pushes", "moorage.accounts.access", FLOORS),
    ("wiring", "moorage.cli", FLOORS),
    ("another/a", "moorage.kernel.errors", FLOORS),
    ("settings/a", "moorage.kernel.errors", SETTINGS),
    ("cli/a", "moorage.agents.live", COMMANDS),
    ("cli/a", "moorage.http.a", COMMANDS),
    ("agents/records/a", "moorage.agents.store", ROOM),
    ("agents/threads", "moorage.agents.execute", ROOM),
    ("agents/live", "moorage.agents.routes", ROOM),
    ("agents/routes/a", "moorage.agents.store.a", NO_STORE),
    ("exports/store/a", "moorage.exports.parquet", STORE),
    ("agents/live", "psycopg", PSYCOPG),
    ("worker/a", "psycopg_pool", PSYCOPG),
    ("agents/live", "fastapi", FASTAPI),
    ("kernel/a", "starlette.responses", FASTAPI),
    ("agents/routes/a", "uvicorn", UVICORN),
    ("worker/a", "langgraph.types", LANGGRAPH),
    ("http/a", "langchain_core.load", LANGGRAPH),
    # A file that belongs to no floor.
    ("agents/unnamed", "moorage.kernel.ids", ROOM),
    ("accounts/unnamed", "moorage.kernel.ids", ACCOUNTS),
    ("exports/unnamed", "moorage.kernel.ids", EXPORTS),
    ("control/unnamed", "moorage.kernel.ids", CONTROL),
    ("audit/unnamed", "moorage.kernel.ids", AUDIT),
    ("accounts/records", "moorage.accounts.keys", ACCOUNTS),
    ("accounts/keys", "moorage.accounts.access", ACCOUNTS),
    ("audit/records", "moorage.audit.log", AUDIT),
    ("traces/usage", "moorage.traces.ingest", TRACES),
    ("traces/records/a", "moorage.traces.usage", TRACES),
    ("traces/parse_run", "moorage.traces.run_buffer", TRACES),
    ("traces/records/run_texts", "moorage.traces.sent_body", TRACES),
    ("traces/unnamed", "moorage.kernel.ids", TRACES),
    ("exports/records/a", "moorage.exports.partitions", EXPORTS),
    ("exports/exports", "moorage.exports.write_partition", EXPORTS),
    ("control/checkouts", "moorage.control.deployments", CONTROL),
    ("traces/store/a", "clickhouse_connect", CLICKHOUSE),
    ("kernel/a", "chdb", CLICKHOUSE),
    ("exports/notify", "obstore", VENDORS),
    ("control/pushes", "cryptography", VENDORS),
    ("agents/live", "langgraph_api", NEVER),
    ("kernel/a", "sqlalchemy", NEVER),
]
LEGAL_IMPORTS = [
    ("exports/notify", "moorage.traces.exported_runs"),
    ("cli/a", "moorage.wiring"),
    ("wiring", "moorage.agents.routes"),
    ("agents/routes/a", "fastapi"),
    ("agents/store/a", "psycopg"),
    ("agents/store/a", "moorage.agents.records.a"),
]


def _lint_imports(src: Path) -> tuple[set[str], str]:
    """Return the contracts that break for the package in this folder, by the configuration of the repository; and the
    report.
    """
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", REPO / "pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(src), "COLUMNS": "200", "NO_COLOR": "1"}
    report = subprocess.run(command, cwd=src, env=environment, capture_output=True, text=True, check=False)
    assert report.returncode in {0, 1}, report.stderr
    assert re.search(r"^Contracts: \d+ kept", report.stdout, re.MULTILINE), report.stdout + report.stderr
    return set(re.findall(r"^(.+?) BROKEN(?: \(.*\))?$", report.stdout, re.MULTILINE)), report.stdout


def _write_import(src: Path, file: str, module: str) -> None:
    """Add the import to a copy of the source, with the modules of both sides if they are missing."""
    for name in [file, *([module.replace(".", "/").removeprefix("moorage/")] if module.startswith("moorage.") else [])]:
        path = src / "moorage" / name
        for folder in path.relative_to(src).parents[:-1]:
            (src / folder).mkdir(exist_ok=True, parents=True)
            (src / folder / "__init__.py").touch()
        if not path.is_dir():
            path.with_suffix(".py").touch()
    path = src / "moorage" / file
    with (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).open("a") as source:
        source.write(f"\nimport {module}\n")


@pytest.fixture
def copied_src(tmp_path):
    shutil.copytree(SRC / "moorage", tmp_path / "moorage", ignore=shutil.ignore_patterns("__pycache__", "*.sql"))
    return tmp_path


@pytest.fixture(scope="module")
def broken_already():
    """Return the contracts that are broken in the repository: the other ones are still shown to break."""
    return _lint_imports(SRC)[0]


def test_the_source_keeps_the_contracts():
    broken, report = _lint_imports(SRC)
    assert not broken, report


def _rounds() -> list[list[tuple[str, str, str]]]:
    """Group the illegal imports so that each in a group breaks another contract: one check of the whole source takes
    seconds.
    """
    rounds: list[list[tuple[str, str, str]]] = []
    for illegal in ILLEGAL_IMPORTS:
        free = (group for group in rounds if illegal[2] not in {contract for _, _, contract in group})
        group = next(free, None)
        if group is None:
            rounds.append(group := [])
        group.append(illegal)
    return rounds


@pytest.mark.parametrize("illegal", _rounds(), ids=lambda group: f"{len(group)}-contracts")
def test_contracts_break_by_illegal_imports(copied_src, broken_already, illegal):
    for file, module, _ in illegal:
        _write_import(copied_src, file, module)
    broken, report = _lint_imports(copied_src)
    assert broken == broken_already | {contract for _, _, contract in illegal}, report


def test_legal_imports_break_nothing(copied_src, broken_already):
    for file, module in LEGAL_IMPORTS:
        _write_import(copied_src, file, module)
    broken, report = _lint_imports(copied_src)
    assert broken == broken_already, report


def test_every_contract_is_shown_to_break():
    contracts = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == {contract for _, _, contract in ILLEGAL_IMPORTS}


# Fixtures: pytest knows each by its name alone, in the whole suite.


def _fixture_names(source: Source) -> Iterator[str]:
    for function in source.functions():
        decorators = {ast.unparse(decorator).partition("(")[0] for decorator in function.decorator_list}
        if "pytest.fixture" in decorators:
            yield function.name


def _fixtures_of_two_modules(sources: list[Source]) -> set[str]:
    names = [name for source in sources for name in set(_fixture_names(source))]
    return {name for name in names if names.count(name) > 1}


def test_a_fixture_that_modules_share_has_a_name_of_its_own():
    shared = list((REPO / "tests").rglob("*fixtures.py"))
    assert len(shared) > 5
    assert not _fixtures_of_two_modules([Source(file, file.read_text()) for file in shared])


def test_two_fixtures_of_one_name_are_seen():
    sources = [Source(Path(name), "@pytest.fixture(scope='session')\ndef api(): ...") for name in ("a.py", "b.py")]
    assert _fixtures_of_two_modules(sources) == {"api"}


# Words, in every text file of the repository.


def _text_files() -> Iterator[tuple[str, str]]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        data = (REPO / name).read_bytes() if (REPO / name).is_file() else b""
        if b"\0" not in data:
            yield name, data.decode()


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (LOCAL_PATH, "a path of one machine: use a path relative to the repository, or MOORAGE_HOME"),
        (REGISTRY, "the host of a package registry: name the package, the reader's own client knows where it is"),
        (CONFLICT, "what a merge left behind: choose one side"),
    ],
)
def test_the_repository_is_free_of(words, advice):
    assert not [f"{name}: {found[0]!r}: {advice}" for name, text in _text_files() if (found := words.search(text))]


# Written with escapes, so that this file does not contain them.
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (LOCAL_PATH, "cd \x2fwork/main"),
        (LOCAL_PATH, "COPY . \x2froot/app"),
        (LOCAL_PATH, "'\x2fhome/ann/moorage'"),
        (REGISTRY, "https://pypi\x2eorg/simple"),
        (REGISTRY, "registry.npmjs\x2eorg"),
        (CONFLICT, "a\n<<<<<<< HEAD"),
    ],
)
def test_a_forbidden_word_is_seen(words, text):
    assert words.search(text)


def test_ordinary_paths_are_allowed():
    assert not LOCAL_PATH.search("/var/lib/moorage /d/work/ok ./work/x https://example.com/work/ /root")
