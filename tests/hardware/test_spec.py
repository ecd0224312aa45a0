import dataclasses
import pickle

import pytest

from anyrig.errors import UnknownHardwareError
from anyrig.hardware import Spec, find_spec, is_key, nearest_keys, spec_of_key, specs


def test_figures_of_one_gpu() -> None:
    a100 = spec_of_key("A100-80GB")
    assert a100.capability == (8, 0)
    assert a100.memory_bytes == int(79.15 * 2**30)
    assert a100.memory_bytes_per_second == 2039e9
    assert a100.flops_per_second == {
        "float64": 19.5e12,
        "float32": 19.5e12,
        "tfloat32": 156e12,
        "bfloat16": 312e12,
        "float16": 312e12,
        "int8": 624e12,
    }
    assert (a100.link, a100.link_bytes_per_second) == ("nvlink", 300e9)


def test_strength_is_the_rate_of_half_precision_or_else_of_single() -> None:
    assert spec_of_key("A100-80GB").strength == 312e12
    assert spec_of_key("T4").strength == 65e12  # float16: it has no bfloat16
    single = dataclasses.replace(spec_of_key("T4"), flops_per_second={"float32": 8.1e12})
    assert single.strength == 8.1e12


def test_what_no_source_gives_is_absent() -> None:
    assert "bfloat16" not in spec_of_key("T4").flops_per_second
    assert "float8" not in spec_of_key("A100-80GB").flops_per_second
    assert spec_of_key("T4").link_bytes_per_second is None
    assert spec_of_key("MI300X").capability is None


@pytest.mark.parametrize("key", specs())
def test_every_gpu_is_plausible_and_has_its_source(key: str) -> None:
    spec = spec_of_key(key)
    assert spec.names
    assert spec.source
    assert 2**33 < spec.memory_bytes < 2**39
    assert 1e11 < spec.memory_bytes_per_second < 1e13
    assert 8e12 < spec.strength < 3e15


# What the sources in the table print: cores, the boost clock in MHz, GB/s, TFLOP/s in float16 on
# matrix units with sums in float32 and without sparsity, watts, GB.
PRINTED = {
    "RTX-2080-Ti": (4352, 1545, 616, 53.8, 250, 11),
    "TITAN-RTX": (4608, 1770, 672, 130.5, 280, 24),
    "RTX-3060": (3584, 1777, 360, 25.5, 170, 12),
    "RTX-3080": (8704, 1710, 760, 59.5, 320, 10),
    "RTX-3080-Ti": (10240, 1665, 912, 68.2, 350, 12),
    "RTX-3090": (10496, 1695, 936, 71, 350, 24),
    "RTX-3090-Ti": (10752, 1860, 1008, 80, 450, 24),
    "RTX-A4000": (6144, 1560, 448, 153.4 / 2, 140, 16),
    "RTX-A5000": (8192, 1695, 768, 222.2 / 2, 230, 24),
    "RTX-A6000": (10752, 1800, 768, 154.8, 300, 48),
    "A10": (9216, 1695, 600, 125, 150, 24),
    "A30": (3584, 1440, 933, 165, 165, 24),
    "A40": (10752, 1740, 696, 149.7, 300, 48),
    "RTX-4060-Ti": (4352, 2535, 288, 44.1, 165, 16),
    "RTX-4070": (5888, 2475, 504, 58.3, 200, 12),
    "RTX-4070-Super": (7168, 2475, 504, 71, 220, 12),
    "RTX-4070-Ti": (7680, 2610, 504, 80.2, 285, 12),
    "RTX-4070-Ti-Super": (8448, 2610, 672, 88.2, 285, 16),
    "RTX-4080": (9728, 2505, 716.8, 97.5, 320, 16),
    "RTX-4080-Super": (10240, 2550, 736, 104.4, 320, 16),
    "RTX-4090": (16384, 2520, 1008, 165, 450, 24),
    "RTX-6000-Ada": (18176, 2505, 960, 1457 / 4, 300, 48),
    "L4": (7424, 2040, 300, 121, 72, 24),
    "L40S": (18176, 2520, 864, 362, 350, 48),
    "RTX-5070": (6144, 2512, 672, 61.7, 250, 12),
    "RTX-5070-Ti": (8960, 2452, 896, 87.9, 300, 16),
    "RTX-5080": (10752, 2617, 960, 112.6, 360, 16),
    "RTX-5090": (21760, 2407, 1792, 209.6, 575, 32),
    "RTX-PRO-6000": (24064, 2617, 1792, 503.8, 600, 96),
    "RTX-PRO-6000-Max-Q": (24064, 2280, 1792, 438.9, 300, 96),
    "GH200": (16896, 1980, 4000, 989, None, 96),
    "B300": (18944, None, 8000, 2250, 1100, 288),
}
CORES = {(7, 5): 64, (8, 0): 64}  # of a multiprocessor; 128 of the others


@pytest.mark.parametrize("key", PRINTED)
def test_figures_are_those_that_the_source_prints(key: str) -> None:
    cores, mhz, bandwidth, half, watts, gigabytes = PRINTED[key]
    spec = spec_of_key(key)
    assert spec.multiprocessors * CORES.get(spec.capability, 128) == cores
    assert spec.clock_hertz == (mhz and mhz * 1e6)
    assert spec.memory_bytes_per_second == bandwidth * 1e9
    assert spec.flops_per_second["float16"] == pytest.approx(half * 1e12, rel=2e-3)
    assert spec.watts == watts
    assert 0.9 < spec.memory_bytes / (gigabytes * 2**30) < 1


@pytest.mark.parametrize("key", [key for key in PRINTED if PRINTED[key][1]])
def test_rates_follow_from_cores_and_clock(key: str) -> None:
    spec = spec_of_key(key)
    cores, mhz, *_ = PRINTED[key]
    assert spec.flops_per_second["float32"] == pytest.approx(2e6 * cores * mhz, rel=1e-2)
    if spec.names[0].startswith("NVIDIA GeForce"):  # half the rate of workstations
        assert spec.flops_per_second["float16"] == pytest.approx(
            512e6 * spec.multiprocessors * mhz, rel=1e-2
        )


def test_gpus_can_stand_in_a_set() -> None:
    assert len({*specs().values(), spec_of_key("T4")}) == len(specs())


def test_names_are_unambiguous() -> None:
    names = [name for spec in specs().values() for name in spec.names]
    assert len(names) == len(set(names))


def test_a_name_must_match_exactly() -> None:
    assert find_spec("NVIDIA L4") is spec_of_key("L4")
    assert find_spec("NVIDIA L40") is None
    assert find_spec("NVIDIA A100-PCIE") is None


def test_an_unknown_key_names_the_nearest() -> None:
    assert nearest_keys("a100") == ["A100-40GB", "A100-80GB", "A100-PCIe-40GB"]
    with pytest.raises(UnknownHardwareError, match="no GPU is called 'H1000'; the nearest are"):
        spec_of_key("H1000")


@pytest.mark.parametrize("written", ["rtx-4090", "RTX4090", "rtx_4090", "Rtx 4090"])
def test_case_and_hyphens_of_a_key_do_not_count(written: str) -> None:
    assert spec_of_key(written) is spec_of_key("RTX-4090")
    assert is_key(written)


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("3090", "RTX-3090"),
        ("4070ti", "RTX-4070-Ti"),
        ("4070", "RTX-4070"),
        ("geforce 3080 Ti", "RTX-3080-Ti"),
        ("A6000", "RTX-A6000"),
        ("6000 ada", "RTX-6000-Ada"),
        ("pro 6000", "RTX-PRO-6000"),
        ("Titan RTX", "TITAN-RTX"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("h200", "H200-SXM"),
    ],
)
def test_names_that_people_type_are_those_of_the_model(written: str, key: str) -> None:
    assert is_key(written)
    assert spec_of_key(written).key == key


def test_no_two_models_read_the_same() -> None:
    for key, spec in specs().items():
        for name in (key, *spec.names):
            assert spec_of_key(name.lower().replace("-", "")).key == key


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        (
            "A100",
            "'A100' names 4 GPUs; write A100-40GB or A100-80GB or A100-PCIe-40GB or A100-PCIe-80GB",
        ),
        ("h100", "'h100' names 2 GPUs; write H100-PCIe or H100-SXM"),
        ("V100", "'V100' names 3 GPUs; write V100-16GB or V100-32GB or V100-PCIe-32GB"),
        ("a100 pcie", "'a100 pcie' names 2 GPUs; write A100-PCIe-40GB or A100-PCIe-80GB"),
        ("6000", "'6000' names 3 GPUs; write RTX-6000-Ada or RTX-PRO-6000 or RTX-PRO-6000-Max-Q"),
    ],
)
def test_a_name_that_several_gpus_share_lists_them(shared: str, message: str) -> None:
    assert not is_key(shared)
    with pytest.raises(UnknownHardwareError) as refusal:
        spec_of_key(shared)
    assert str(refusal.value) == message


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="T4: every rate must be positive"):
        dataclasses.replace(spec_of_key("T4"), flops_per_second={"float32": 0.0})
    with pytest.raises(ValueError, match="T4: memory size and bandwidth must be positive"):
        dataclasses.replace(spec_of_key("T4"), memory_bytes=0)
    assert isinstance(spec_of_key("T4"), Spec)


def test_a_gpu_goes_to_another_process_and_back() -> None:
    spec = spec_of_key("A100-80GB")
    copied = pickle.loads(pickle.dumps(spec))
    assert copied == spec
    assert hash(copied) == hash(spec)


def test_facts_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        spec_of_key("T4").flops_per_second["float32"] = 1.0
    with pytest.raises(TypeError):
        specs()["T4"] = spec_of_key("L4")


def test_units_of_every_figure() -> None:
    t4 = spec_of_key("T4")
    assert (t4.architecture, t4.capability, t4.multiprocessors) == ("turing", (7, 5), 40)
    assert (t4.link, t4.link_bytes_per_second) == ("pcie", None)
    assert t4.memory_bytes_per_second == 320e9
    assert 10e9 < t4.pcie_bytes_per_second < 20e9
    assert t4.watts == 70
    for spec in specs().values():
        assert spec.watts is None or 30 < spec.watts < 3000
        assert 1e10 < spec.pcie_bytes_per_second < 5e11  # Grace's link
        assert spec.link_bytes_per_second is None or 1e10 < spec.link_bytes_per_second < 2e12


def test_the_nearest_start_with_what_was_written() -> None:
    assert nearest_keys("H", 2)[0].startswith("H")
    assert nearest_keys("MI", 1) == nearest_keys("mi300x", 1) == ["MI300X"]
    assert nearest_keys("RTX-6", 1) == ["RTX-6000-Ada"]
    assert nearest_keys("4009", 1) == ["RTX-4090"]  # two digits in the wrong order
    assert nearest_keys("409", 1) == ["RTX-4090"]
    assert nearest_keys("A1000", 2) == ["A100-40GB", "A100-80GB"]
    assert "MI300X" not in nearest_keys("mi300x", 99, only_cuda=True)
    assert len(nearest_keys("x", 99)) == len(specs())
    with pytest.raises(UnknownHardwareError) as refusal:
        spec_of_key("MI300Y", only_cuda=True)
    assert "MI300X" not in str(refusal.value)
    with pytest.raises(UnknownHardwareError, match=r"nearest are MI300X.* All of them: .*MI300X"):
        spec_of_key("MI300Y")


@pytest.mark.parametrize(("length", "shown"), [(60, f"{'y' * 60!r};"), (61, f"{'y' * 60!r}…;")])
def test_a_long_name_is_cut(length: int, shown: str) -> None:
    with pytest.raises(UnknownHardwareError, match=f"no GPU is called {shown}"):
        spec_of_key("y" * length)
