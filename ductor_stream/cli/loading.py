"""Finding an app: ``shop:app`` is the attribute ``app`` of the module ``shop`` in the working directory."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ductor_stream.app import App
from ductor_stream.errors import DuctorError, InvalidDefinition


def load_app(spec: str) -> App:
    """The app that ``MODULE:ATTRIBUTE`` names (``shop:app``, ``shop`` alone means ``shop:app``, or a file's path).

    The working directory is put in front of the import path. Raises InvalidDefinition with the user's file and line.
    """
    module_name, _, attribute = spec.partition(":")
    module = _import(_module_name(module_name), spec)
    found: object = module
    for part in (attribute or "app").split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    if found is not None and attribute:
        raise InvalidDefinition(f"{spec} is of type {type(found).__name__}, not an App{_offer(module_name, apps)}")
    raise InvalidDefinition(
        f"module {module.__name__} has no App named {attribute or 'app'}{_offer(module_name, apps)}"
    )


def _offer(module_name: str, apps: list[str]) -> str:
    return f"; it has {', '.join(f'{module_name}:{name}' for name in apps)}" if apps else "; it declares no App at all"


def _module_name(name: str) -> str:
    """Make the module importable; a path such as ``examples/shop.py`` stands for its folder and its name."""
    if not name:
        raise InvalidDefinition("name the app as MODULE:ATTRIBUTE, such as shop:app")
    folder = Path.cwd()
    if name.endswith(".py") or "/" in name:
        path = Path(name if name.endswith(".py") else f"{name}.py")
        folder, name = path.parent.resolve(), path.stem
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return name


def _import(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidDefinition(f"there is no module {name} in {Path.cwd()}{_nearest(name)}") from error
        raise InvalidDefinition(f"{spec} cannot be loaded: {_where(error)}: {error}") from error
    except DuctorError as error:
        raise InvalidDefinition(f"{_where(error)}: {error}") from error
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
        raise InvalidDefinition(f"{spec} cannot be loaded: {_where(error)}: {told}") from error


def _nearest(name: str) -> str:
    here = [path.stem for path in Path.cwd().glob("*.py")]
    near = difflib.get_close_matches(name, here, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _where(error: BaseException) -> str:
    """The user's file and line: the innermost frame that is neither Python's importer nor ours."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    ours = str(Path(__file__).parents[1])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, "<")) and "importlib" not in frame.filename
    ]
    own = [frame for frame in frames if "site-packages" not in frame.filename and not _is_stdlib(frame.filename)]
    chosen = (own or frames)[-1:]
    return f"{_shown(chosen[0].filename)}:{chosen[0].lineno}" if chosen else "at import"


def _is_stdlib(filename: str) -> bool:
    return Path(filename).is_relative_to(Path(traceback.__file__).parent) and "site-packages" not in filename


def _shown(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
