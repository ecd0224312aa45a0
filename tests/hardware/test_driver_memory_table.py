from anyrig.hardware import driver_memory_of, spec_of_key, specs

MIB = 2**20


def test_every_gpu_takes_something_and_has_its_sources() -> None:
    for spec in specs().values():
        taken = driver_memory_of(spec)
        assert 200 * MIB < taken.context_bytes < 1500 * MIB
        assert taken.connection_bytes == 14 * MIB
        assert 2 <= taken.ring_channels <= taken.message_channels <= 32
        assert len(taken.sources) == 5
        assert all(taken.sources)


def test_a_gpu_has_its_own_figure_then_its_architecture_then_the_others() -> None:
    assert driver_memory_of(spec_of_key("V100-16GB")).context_bytes == 1341 * MIB
    assert driver_memory_of(spec_of_key("V100-32GB")).context_bytes == 1341 * MIB
    assert driver_memory_of(spec_of_key("RTX-3090")).context_bytes == 256 * MIB
    assert driver_memory_of(spec_of_key("T4")).context_bytes == 400 * MIB
    hopper = driver_memory_of(spec_of_key("H100-SXM"))
    assert (hopper.context_bytes, hopper.cublas_handle_bytes) == (619 * MIB, 64 * MIB)


def test_channels_follow_the_link() -> None:
    assert driver_memory_of(spec_of_key("T4")).ring_channels == 2
    assert driver_memory_of(spec_of_key("T4")).message_channels == 2
    assert driver_memory_of(spec_of_key("V100-16GB")).ring_channels == 12
    assert driver_memory_of(spec_of_key("H100-SXM")).message_channels == 32
