"""The pytest plugin: ``@pytest.mark.gpus(2)``, ``same_as_one_device``, and ``--rig``.

pytest loads this plugin at every start, even in projects that never use it, so the plugin imports
nothing slow, above all not torch.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext

import pytest

from ..units import format_count
from .same_as_one_device import MARKER, verify_item
from .supply import DEFAULT_RIG, GpuSupply

_SUPPLY = pytest.StashKey[GpuSupply]()
_FOR_CHILDREN = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--rig`` and ``--without-kernels``."""
    group = parser.getgroup("anyrig")
    group.addoption(
        "--rig",
        metavar="RIG",
        help="virtual GPUs for a machine without one, such as 4xA100-80GB, A100-40GB+2xT4 or "
        "2x16GiB. With --rig, every test has them as soon as torch is imported; without it, the "
        f"first test marked gpus installs {DEFAULT_RIG}",
    )
    group.addoption(
        "--without-kernels",
        action="store_true",
        help="accept a --rig with GPUs for which this PyTorch has no kernels",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """With ``--rig``, provide the GPUs before a conftest imports torch and counts them."""
    options = early_config.known_args_namespace
    _prepare(early_config, options.rig, options.without_kernels)


def _prepare(config: pytest.Config, rig: str | None, without_kernels: bool) -> None:
    capture = config.pluginmanager.get_plugin("capturemanager")
    supply = config.stash[_SUPPLY] = GpuSupply(
        rig or DEFAULT_RIG,
        without_kernels,
        for_children=rig is not None,
        shown=nullcontext if capture is None else capture.global_and_fixture_disabled,
    )
    if rig is None:
        return
    from ..errors import AnyrigError
    from ..virtual.rig import VirtualRig
    from ..virtual.torch_import import when_torch_is_imported

    try:
        VirtualRig.parse(rig)
    except AnyrigError as error:
        raise pytest.UsageError(f"--rig {rig}: {error}") from None
    # Many suites call torch.cuda.device_count() during collection.
    when_torch_is_imported(supply.find)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    if _SUPPLY not in config.stash:  # loaded by a conftest, after the initial hook
        _prepare(config, config.getoption("--rig"), config.getoption("--without-kernels"))
    config.addinivalue_line(
        "markers",
        "gpus(count): needs `count` CUDA devices: the machine's own if it has any, else virtual "
        "ones; skipped where there are too few",
    )
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> object:
    """The accelerators of the process, or the CPU; as many as the marker ``gpus`` names."""
    from ..devices.rig import Rig

    found = Rig.parse("auto")
    marker = request.node.get_closest_marker("gpus")
    count = len(found) if marker is None else marker.args[0]
    return Rig(found.devices[:count], found.reason)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked ``same_as_one_device`` on a rig and on one device."""
    marker = pyfuncitem.get_closest_marker("same_as_one_device")
    if marker is None:
        return None
    verify_item(pyfuncitem, marker)
    return True


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Report which devices the tests have, or why they have none."""
    supply = config.stash[_SUPPLY]
    if supply.found is None:
        return None
    count, where = supply.found
    return f"anyrig: {format_count(count, 'CUDA device')}, {where}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a marked test its devices, or skip it with the reason."""
    marker = item.get_closest_marker("gpus")
    if marker is None:
        return
    if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], int):
        named = [f"{name}={value!r}" for name, value in marker.kwargs.items()]
        written = ", ".join([*map(repr, marker.args), *named])
        raise pytest.UsageError(
            f"{item.nodeid} is marked gpus({written}); write how many CUDA devices it needs: "
            "@pytest.mark.gpus(2)"
        )
    supply = item.config.stash[_SUPPLY]
    lack = supply.lack(marker.args[0])
    if lack is not None:
        pytest.skip(lack)
    given = item.stash[_FOR_CHILDREN] = ExitStack()
    given.enter_context(supply.given_to_children())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Stop passing the devices to new processes."""
    if _FOR_CHILDREN in item.stash:
        item.stash[_FOR_CHILDREN].close()
