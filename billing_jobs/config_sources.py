"""
Where settings come from: options, the environment, secret files, a configuration file.

Everything is read as it was written, with a note of the place, so that `config show --sources` and
each error can name it. What a value means, and whether it is allowed, is for `config.py` to say.
The environment and the working directory are parameters: this module reads neither by itself.
"""

from __future__ import annotations

import os
import pwd
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

PREFIX: Final = "BILLING_JOBS_"
#: Names the configuration file; not a setting itself.
CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"
#: Variables with our prefix that are no settings: the file's name, and the command's --debug.
_OTHER_VARIABLES: Final = (CONFIG_VARIABLE, f"{PREFIX}DEBUG")
#: Names that platforms set; used where none of ours says anything.
_COMMON_VARIABLES: Final = {"database_url": "DATABASE_URL", "broker_url": "REDIS_URL"}
_FILE_SUFFIX: Final = "_FILE"

SYSTEM_DIRECTORY: Final = Path("/etc/billing-jobs")
_SUFFIXES: Final = (".toml", ".yaml", ".yml")
#: Files that somebody meant as configuration; passing over them in silence would be a trap.
_REFUSED_SUFFIXES: Final = (".json", ".ini", ".cfg", ".conf")
_SUFFIX_RULE: Final = "a configuration file ends in .toml, .yaml or .yml"
#: A settings file is a page or two; a larger one is some other file.
_FILE_LIMIT_BYTES: Final = 1_048_576
#: What a parser quotes is text of the file: an unquoted password that begins with * or !.
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")


class _UnreadableError(Exception):
    """A source that gives nothing, and why; never leaves this module."""


class Found(NamedTuple):
    """A value as it was written, and where."""

    raw: object
    source: str


@dataclass
class Layers:
    """What was found, strongest source first come, and what is wrong with the sources."""

    found: dict[str, Found] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    #: A configuration file or a secret could not be read: what is missing may stand in there.
    incomplete: bool = False

    def add(self, name: str, raw: object, source: str) -> None:
        """Take a value unless a stronger source gave one."""
        self.found.setdefault(name, Found(raw, source))

    def unreadable(self, problem: str) -> None:
        """Note a source that gave nothing because it could not be read."""
        self.problems.append(problem)
        self.incomplete = True


class Known(NamedTuple):
    """The names of the settings, and which of them hold secrets."""

    names: Sequence[str]
    secrets: Sequence[str]


def variable(name: str) -> str:
    """
    Return the environment variable of a setting.

    >>> variable("max_attempts")
    'BILLING_JOBS_MAX_ATTEMPTS'
    """
    return PREFIX + name.upper()


def read_layers(
    known: Known,
    *,
    overrides: Mapping[str, object],
    environ: Mapping[str, str],
    cwd: Path,
    system_directory: Path = SYSTEM_DIRECTORY,
) -> Layers:
    """Collect every value from the strongest source that has one."""
    layers = Layers()
    _read_overrides(layers, known, overrides)
    _read_environment(layers, known, environ)
    _read_secret_files(layers, known, environ, cwd)
    _read_file(layers, known, environ, (cwd, system_directory))
    for name, common in _COMMON_VARIABLES.items():
        if environ.get(common, "").strip():
            layers.add(name, environ[common].strip(), f"env {common}")
    layers.add("data_dir", default_data_dir(environ, cwd), "default")
    directory, source = layers.found["data_dir"]
    if isinstance(directory, str | Path):
        resolved = in_directory(str(directory), environ=environ, cwd=cwd)
        layers.found["data_dir"] = Found(resolved, source)
    return layers


def in_directory(path: str, *, environ: Mapping[str, str], cwd: Path) -> Path:
    """Resolve `~` and a relative path, without asking the process for either."""
    if path == "~" or path.startswith("~/"):
        path = f"{_home(environ) or cwd}{path[1:]}"
    return cwd / path


def _read_overrides(layers: Layers, known: Known, overrides: Mapping[str, object]) -> None:
    for name, raw in overrides.items():
        if name not in known.names:
            layers.problems.append(_unknown(name, "option", known.names))
        elif raw is not None:
            layers.add(name, raw, "option")


def _read_environment(layers: Layers, known: Known, environ: Mapping[str, str]) -> None:
    settings = {variable(name): name for name in known.names}
    secret_files = [variable(name) + _FILE_SUFFIX for name in known.secrets]
    others = {*secret_files, *_OTHER_VARIABLES}
    for written in sorted(environ):
        raw = environ[written].strip()
        if written in settings:
            # Set to nothing is what compose files and shells make of an unset variable.
            if raw:
                layers.add(settings[written], raw, f"env {written}")
        elif written.upper().startswith(PREFIX) and written not in others:
            names = [*settings, *secret_files, *_OTHER_VARIABLES]
            layers.problems.append(_unknown(written, "environment", names))


def _read_secret_files(layers: Layers, known: Known, environ: Mapping[str, str], cwd: Path) -> None:
    for name in known.secrets:
        file_variable = variable(name) + _FILE_SUFFIX
        written = environ.get(file_variable, "").strip()
        if not written:
            continue
        if environ.get(variable(name), "").strip():
            layers.problems.append(
                f"{variable(name)} and {file_variable} (environment): both are set; keep one"
            )
        path = in_directory(written, environ=environ, cwd=cwd)
        try:
            layers.add(name, _secret(path), f"secret file {path}")
        except _UnreadableError as error:
            layers.unreadable(f"{file_variable} = {written} (environment): {error}")


def _secret(path: Path) -> str:
    secret = _text(path).strip()
    if not secret:
        raise _UnreadableError("the file is empty")
    return secret


def _read_file(
    layers: Layers, known: Known, environ: Mapping[str, str], directories: tuple[Path, Path]
) -> None:
    try:
        path = _chosen_file(environ, *directories)
        content = {} if path is None else _parsed(path)
    except _UnreadableError as error:
        layers.unreadable(str(error))
        return
    for name, raw in content.items():
        if name in known.names:
            layers.add(name, raw.strip() if isinstance(raw, str) else raw, f"file {path}")
        else:
            layers.problems.append(_unknown(name, f"file {path}", known.names))


def _chosen_file(environ: Mapping[str, str], cwd: Path, system_directory: Path) -> Path | None:
    written = environ.get(CONFIG_VARIABLE, "").strip()
    if written:
        path = in_directory(written, environ=environ, cwd=cwd)
        if path.suffix.lower() not in _SUFFIXES:
            raise _UnreadableError(f"{CONFIG_VARIABLE} = {written} (environment): {_SUFFIX_RULE}")
        return path
    for stem in (cwd / "billing-jobs", system_directory / "config"):
        here = [
            path
            for suffix in (*_SUFFIXES, *_REFUSED_SUFFIXES)
            if (path := stem.with_name(stem.name + suffix)).is_file()
        ]
        if here:
            return _only(here)
    return None


def _only(paths: Sequence[Path]) -> Path:
    names = " and ".join(path.name for path in paths)
    place = f"{names} (in {paths[0].parent})"
    if len(paths) > 1:
        raise _UnreadableError(f"{place}: several configuration files in one place; keep one")
    if paths[0].suffix in _REFUSED_SUFFIXES:
        raise _UnreadableError(f"{place}: {_SUFFIX_RULE}")
    return paths[0]


def _parsed(path: Path) -> dict[str, object]:
    try:
        text = _text(path)
        content = _toml(text) if path.suffix.lower() == ".toml" else _yaml(text)
    except _UnreadableError as error:
        raise _UnreadableError(f"file {path}: {error}") from None
    if not isinstance(content, dict):
        raise _UnreadableError(f"file {path}: expected lines of the form `name: value`")
    return {str(name): raw for name, raw in content.items()}


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _FILE_LIMIT_BYTES:
            raise _UnreadableError(f"larger than {_FILE_LIMIT_BYTES} bytes; not read")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _UnreadableError(f"cannot be read: {reason.lower()}") from None
    except UnicodeDecodeError:
        raise _UnreadableError("cannot be read: it is not UTF-8 text") from None


def _toml(text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _UnreadableError(f"not TOML: {error}") from None


def _yaml(text: str) -> object:
    """Name the place of a mistake and never the text that stands there: it may be a password."""
    import yaml  # noqa: PLC0415 - most sites have no YAML file

    try:
        content: object = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" (at line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = _QUOTED.sub("'...'", error.problem or type(error).__name__)
        raise _UnreadableError(f"not YAML: {problem}{place}") from None
    except (yaml.YAMLError, ValueError):
        # ValueError: a date such as 2026-99-99.
        raise _UnreadableError("not YAML: a character or a value that YAML does not know") from None
    return {} if content is None else content


def _unknown(name: str, source: str, names: Iterable[str]) -> str:
    bare = {_bare(known): known for known in names}
    close = get_close_matches(_bare(name), bare, n=1)
    hint = (
        f"did you mean {bare[close[0]]}?" if close else "`billing-jobs config env` lists all names"
    )
    return f"{name} ({source}): there is no setting of this name; {hint}"


def _bare(name: str) -> str:
    """Reduce a name to what people mistype: the common prefix would make all names alike."""
    return name.lower().replace("-", "_").removeprefix(PREFIX.lower())


def default_data_dir(environ: Mapping[str, str], cwd: Path) -> Path:
    """Follow the XDG base directory rules, which ignore a relative XDG_DATA_HOME."""
    data_home = Path(environ.get("XDG_DATA_HOME", ""))
    home = _home(environ)
    if data_home.is_absolute():
        return data_home / "billing-jobs" / "dev"
    if home is not None:
        return home / ".local" / "share" / "billing-jobs" / "dev"
    return cwd / ".billing-jobs" / "dev"


def _home(environ: Mapping[str, str]) -> Path | None:
    if Path(environ.get("HOME", "")).is_absolute():
        return Path(environ["HOME"])
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        # A container may run as a number that no user database knows.
        return None
