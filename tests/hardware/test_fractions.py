import pytest

from anyrig.hardware import Fraction, fraction_of, fractions, specs

KINDS = ("product", "convolution", "attention", "memory", "link", "pcie", "network")


def test_every_kind_is_known_for_every_card_and_has_its_source() -> None:
    assert set(fractions()) == set(KINDS)
    for kind in KINDS:
        for spec in specs().values():
            fraction = fraction_of(kind, spec.architecture)
            assert 0.3 < fraction.fraction <= 1
            assert fraction.source


def test_an_architecture_has_its_own_where_a_source_gives_one() -> None:
    assert fraction_of("product", "ampere").fraction == 0.869
    assert fraction_of("product", "hopper").fraction == 0.803
    assert fraction_of("product", "turing") == fractions()["product"]["otherwise"]


def test_every_architecture_named_is_one_of_a_card() -> None:
    named = {name for table in fractions().values() for name in table} - {"otherwise"}
    assert named <= {spec.architecture for spec in specs().values()}


def test_what_is_no_part_is_refused() -> None:
    for fraction in (80, 1.01, 0, -0.5):
        with pytest.raises(ValueError, match=f"between 0 and 1, and this is {fraction}"):
            Fraction(fraction, "percent")
    assert Fraction(1, "all of it").fraction == 1


def test_a_kind_that_is_not_known_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="attenton"):
        fraction_of("attenton", "ampere")


def test_what_is_known_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        fractions()["product"] = {}
    with pytest.raises(TypeError):
        fractions()["product"]["ampere"] = Fraction(1, "")
