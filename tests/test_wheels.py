"""What a user gets: the wheels, installed without the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MEMBERS = {
    "perdure": "core",
    "perdure_file": "plugins/file",
    "perdure_memory": "plugins/memory",
    "perdure_redis": "plugins/redis",
    "perdure_sqlite": "plugins/sqlite",
    "perdure_otel": "integrations/otel",
    "perdure_conformance": "conformance",
}
SCHEMES = ["file", "memory", "redis", "redis+cluster", "redis+sentinel", "redis+unix", "rediss", "sqlite"]

SCRIPT = """
import asyncio
import perdure

async def main():
    for url in ("memory:", "file:agent", "sqlite:agent.db"):
        async with perdure.open_store(url) as store:
            await store.sessions.append("s", [{"text": "kept"}])
            print((await store.sessions.load("s")).records[0]["text"], url, flush=True)
    async with perdure.open_store("sqlite:agent.db") as store:
        print((await store.sessions.load("s")).count, "again")

asyncio.run(main())
print(perdure.__file__)
"""


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run a command that knows nothing of this checkout or environment but its own arguments."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def uv() -> Path:
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.exists() else shutil.which("uv")
    assert found is not None, "uv is needed to build wheels: pip install -r requirements/uv.txt"
    return Path(found)


@pytest.fixture(scope="module")
def wheels(uv: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    built = {}
    for package, member in MEMBERS.items():
        out = folder / package
        run(uv, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "-o", out, member)
        (built[package],) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def scripts(uv: Path, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheels, and their dependencies at the pinned releases."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    run(uv, "venv", "--quiet", "--python", sys.executable, folder)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    named = [f"{package.replace('_', '-')} @ {wheel.as_uri()}" for package, wheel in wheels.items()]
    named[0] = named[0].replace("perdure @", "perdure[cli] @")
    pins = ROOT / "requirements" / "dev.txt"
    run(uv, "pip", "install", "--quiet", "--python", scripts / "python", "--constraint", pins, *named)
    return scripts


@pytest.mark.parametrize("package", MEMBERS)
def test_a_wheel_has_what_the_package_needs_and_no_tests(package: str, wheels: dict[str, Path]) -> None:
    names = set(zipfile.ZipFile(wheels[package]).namelist())
    source = ROOT / MEMBERS[package] / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
    assert f"{package}/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {package, f"{wheels[package].stem.split('-py3')[0]}.dist-info"}
    assert not [name for name in names if name.rpartition("/")[2].startswith("test_") or "/tests/" in name]


def test_the_sql_of_sqlite_is_in_its_wheel(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["perdure_sqlite"]).namelist()
    assert [name for name in names if name.endswith(".sql")]


def test_the_scripts_of_redis_are_in_its_wheel(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["perdure_redis"]).namelist()
    assert [name for name in names if name.endswith(".lua")]


def test_the_installed_wheels_keep_a_conversation(scripts: Path, tmp_path: Path) -> None:
    tmp_path.joinpath("script.py").write_text(SCRIPT, encoding="utf-8")
    printed = run(scripts / "python", "-W", "error", "-X", "dev", "script.py", folder=tmp_path).splitlines()
    assert printed[:4] == ["kept memory:", "kept file:agent", "kept sqlite:agent.db", "1 again"]
    assert Path(printed[4]).is_relative_to(scripts.parent)


def test_the_installed_command_lists_the_stores(scripts: Path, tmp_path: Path) -> None:
    table, _, _ = run(scripts / "perdure", "stores", folder=tmp_path).partition("\n\n")
    assert [line.split()[0] for line in table.splitlines()] == ["scheme", *SCHEMES]
    assert [line.split()[3] for line in table.splitlines()[1:]] == ["ok"] * len(SCHEMES)
