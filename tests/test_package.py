"""The package as others meet it: its public list, what importing it costs, and what its wheel holds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import codesign

ROOT = Path(__file__).parents[1]
SOLVERS = {"ortools", "pandas"}  # ortools brings pandas, half of its import time
SCREENS = {"click", "matplotlib", "rich"}
NUMBERS = {"numpy", "pydantic", "yaml"}


def loaded_after(statement: str) -> set[str]:
    """Top-level packages that a fresh process has loaded once it has run ``statement``."""
    code = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def typed_homes() -> dict[str, str]:
    """Where the block for type checkers says that each public name comes from."""
    tree = ast.parse((ROOT / "codesign" / "__init__.py").read_text(encoding="utf-8"))
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    return {
        name.name: str(line.module) for line in block.body if isinstance(line, ast.ImportFrom) for name in line.names
    }


@pytest.mark.parametrize("name", codesign.__all__)
def test_public_name_resolves_and_is_described(name: str) -> None:
    value = getattr(codesign, name)
    if name != "__version__":
        assert (value.__doc__ or "").strip(), f"{name} has no docstring"


def test_type_checkers_and_python_see_the_same_list() -> None:
    assert typed_homes() == codesign._HOMES
    assert sorted([*codesign._HOMES, "__version__"]) == sorted(codesign.__all__)
    assert dir(codesign) == sorted(codesign.__all__)


def test_the_promised_names_are_public() -> None:
    promised = {"read", "solve", "evaluate", "verify", "explain", "Instance", "Design", "Solution", "Limits"}
    assert promised <= set(codesign.__all__)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match=r"^module 'codesign' has no attribute 'optimise'$"):
        codesign.optimise  # noqa: B018


def test_version_follows_semantic_versioning_and_heads_the_changelog() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", codesign.__version__)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", changelog, flags=re.MULTILINE)
    assert newest is not None
    assert newest.group(1) == codesign.__version__


class TestFreshProcess:
    def test_import_is_light(self) -> None:
        assert loaded_after("import codesign").isdisjoint(SOLVERS | SCREENS | NUMBERS)

    def test_no_name_but_solve_loads_a_solver(self) -> None:
        names = ", ".join(sorted(set(codesign.__all__) - {"solve"}))
        assert loaded_after(f"from codesign import {names}").isdisjoint(SOLVERS | {"matplotlib"})

    @pytest.mark.parametrize(
        "first", ["import codesign.solve.solve", "from codesign.solve import limits", "import codesign"]
    )
    def test_solve_is_the_function_whatever_was_imported_before(self, first: str) -> None:
        loaded_after(f"{first}\nfrom codesign import solve\nassert not hasattr(solve, '__path__'), solve")


def test_the_wheel_holds_the_data_and_the_type_marker(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    run = subprocess.run(build, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    (wheel,) = tmp_path.glob("codesign-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    data = {path.relative_to(ROOT).as_posix() for path in (ROOT / "codesign").rglob("*.yaml")}
    assert data, "the catalogue has no data"
    assert data <= held
    assert "codesign/py.typed" in held
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in held)
    assert not any(name.startswith(("tests/", "instances/")) for name in held)


def test_every_package_has_a_floor() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (floors,) = [each for each in settings["contracts"] if each["id"] == "floors"]
    assert floors["exhaustive"]
    named = set(re.findall(r"\w+", " ".join(floors["layers"])))
    packages = {path.stem for path in (ROOT / "codesign").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert packages - {"__init__", "__pycache__"} <= named
