import pytest

from clusterbroker.broker.routing.carbon_copy import COPIES_MAX, UnacceptableHeader, accepted_keys, copy_keys


def test_copy_keys() -> None:
    headers: dict[str, object] = {"CC": ["a", "b", 3, None, "a"], "BCC": []}
    assert copy_keys(headers, "CC") == ("a", "b", "a")
    assert copy_keys(headers, "BCC") == ()
    assert copy_keys({}, "CC") == ()
    assert copy_keys(None, "CC") == ()


@pytest.mark.parametrize("value", ["a", None, 1, {"a": 1}])
def test_anything_but_an_array_is_refused(value: object) -> None:
    with pytest.raises(UnacceptableHeader, match="'BCC'"):
        accepted_keys({"BCC": value})
    assert copy_keys({"BCC": value}, "BCC") == ()


@pytest.mark.parametrize(
    "headers",
    [
        {"CC": ["k"] * (COPIES_MAX + 1)},
        {"CC": ["k"] * 60, "BCC": ["k"] * 60},
        {"BCC": ["k" * 256]},
        {"CC": ["\u00e9" * 128]},
    ],
)
def test_more_keys_than_are_taken_and_longer_ones(headers: dict[str, object]) -> None:
    with pytest.raises(UnacceptableHeader, match=r"at most (100|255)"):
        accepted_keys(headers)
    assert len(copy_keys(headers, "CC")) <= COPIES_MAX, "nothing is asked of what is stored"
    assert all(len(key.encode()) <= 255 for key in copy_keys(headers, "BCC"))


def test_as_many_as_are_taken() -> None:
    most = ["k" * 255] * COPIES_MAX
    assert accepted_keys({"CC": most}) == (tuple(most), ())
    assert accepted_keys({"CC": most[:50], "BCC": most[:50]}) == (tuple(most[:50]), tuple(most[:50]))
    assert accepted_keys(None) == accepted_keys({}) == ((), ())
