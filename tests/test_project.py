"""What holds for the project as a whole: its front doors, its weight, its words."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hydra_net", "hydra_allreduce", "hydra_policy")
UPPER = PACKAGES[1:]
"""Those without a test of their own front door."""


@pytest.mark.parametrize("package", UPPER)
def test_every_public_name_is_there_sorted_and_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name
            assert value.__module__.split(".")[0] in PACKAGES, name


@pytest.mark.parametrize("package", UPPER)
def test_the_public_methods_of_public_classes_are_documented(package: str) -> None:
    module = importlib.import_module(package)
    undocumented = [
        f"{name}.{attribute}"
        for name in module.__all__
        if inspect.isclass(cls := getattr(module, name))
        for attribute, value in vars(cls).items()
        if not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
        if not inspect.getdoc(value)
    ]
    assert not undocumented


@pytest.mark.parametrize("package", PACKAGES)
def test_the_types_are_published(package: str) -> None:
    assert (ROOT / "src" / package / "py.typed").exists()


def core_packages() -> set[str]:
    """What installing the core brings along, ours not counted."""
    found: set[str] = set()
    todo = [re.split(r"[^\w.-]", line)[0] for line in metadata.requires("hydra-swarm") or [] if "extra ==" not in line]
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        found.add(name)
        todo += [re.split(r"[^\w.-]", line)[0] for line in requires if "extra ==" not in line]
    return found


def test_the_core_is_small() -> None:
    assert {"anyio", "trio", "numpy", "cryptography", "cbor2"} <= core_packages()
    assert len(core_packages()) <= 13


def test_the_readme_names_the_two_commands_on_its_first_screen() -> None:
    top = (ROOT / "README.md").read_text().splitlines()[:24]
    assert any("make swarm" in line for line in top)
    assert any("make test" in line for line in top)


def test_ci_calls_make_test_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if not line.startswith(("#", "set ", "cd "))] == ["make test"]


def test_no_part_of_the_library_imports_an_event_loop() -> None:
    allowed = {"hydra_net/testing/simulate.py"}
    for path in (ROOT / "src").rglob("*.py"):
        if re.search(r"^\s*(import|from) (asyncio|trio)\b", path.read_text(), re.MULTILINE):
            assert str(path.relative_to(ROOT / "src")) in allowed


def test_library_files_are_small() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert not {name: lines for name, lines in lengths.items() if lines > 500}


def test_the_version_is_the_changelogs() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["name"] == "hydra-swarm"
    assert f"## {metadata.version('hydra-swarm')}" in (ROOT / "CHANGELOG.md").read_text()
