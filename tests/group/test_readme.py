"""The README's example runs as it is printed, on both back ends."""

import re
from pathlib import Path

import anyio
import pytest

README = Path(__file__).parents[2] / "README.md"


def example() -> str:
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return source


@pytest.mark.real
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_example_runs_as_printed(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = example()
    printed = 'anyio.run(main, backend="trio")  # or backend="asyncio"'
    assert printed in source
    exec(compile(source.replace(printed, f"anyio.run(main, backend={backend!r})"), str(README), "exec"), {})
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == [f"peer {p}, round {r}: 1.333 of 3" for p in range(3) for r in range(1, 6)]


@pytest.mark.real
@pytest.mark.parametrize("runner", ["trio.run", "asyncio.run"])
def test_its_main_runs_under_the_back_ends_own_runner(runner: str, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    import trio

    namespace: dict[str, object] = {"anyio": anyio}
    exec(compile(re.sub(r"^anyio\.run.*$", "", example(), flags=re.MULTILINE), str(README), "exec"), namespace)
    main = namespace["main"]
    if runner == "trio.run":
        trio.run(main)
    else:
        asyncio.run(main())  # type: ignore[operator]
    assert len(capsys.readouterr().out.splitlines()) == 15


def test_the_example_is_short() -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 22
