"""The public face of hydra_net: complete, documented, and cheap to import."""

import dataclasses
import inspect
import subprocess
import sys
import types

import pytest

import hydra_net
from hydra_net import HydraError, Limits

# Aliases of types: they cannot carry a docstring of their own.
ALIASES = {"Cbor", "NodeEvent", "Buffer", "STREAM_ERRORS", "WIRE_VERSIONS", "__version__"}


def test_all_is_sorted_and_complete():
    public = {
        name
        for name, value in vars(hydra_net).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert set(hydra_net.__all__) == public | {"__version__"}
    assert len(hydra_net.__all__) == len(set(hydra_net.__all__))


@pytest.mark.parametrize("name", sorted(set(hydra_net.__all__) - ALIASES))
def test_every_public_name_is_documented(name):
    value = getattr(hydra_net, name)
    assert inspect.getdoc(value), name
    if inspect.isclass(value):
        assert value.__doc__, name
        for member, function in vars(value).items():
            if member.startswith("_") or not (inspect.isfunction(function) or isinstance(function, property)):
                continue
            assert inspect.getdoc(function), f"{name}.{member}"


def test_every_error_is_public():
    from hydra_net import errors

    assert set(errors.__all__) <= set(hydra_net.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), HydraError)


def test_every_limit_says_what_it_limits():
    source = inspect.getsource(Limits)
    for field in dataclasses.fields(Limits):
        after = source.split(f"    {field.name}: ", 1)[1].splitlines()[1]
        assert after.strip().startswith('"""'), field.name


@pytest.mark.real
def test_importing_brings_in_neither_trio_nor_numpy_nor_an_event_loop():
    code = (
        "import sys, time; begin = time.process_time(); import hydra_net; seconds = time.process_time() - begin\n"
        "print(sorted({'trio', 'numpy', 'asyncio', 'hypothesis', 'pytest'} & set(sys.modules)), seconds < 0.3)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] True"
