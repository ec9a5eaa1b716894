import pytest

from broker.routing.carbon_copy import UnacceptableHeader, copy_keys


def test_copy_keys() -> None:
    headers: dict[str, object] = {"CC": ["a", "b", 3, None, "a"], "BCC": []}
    assert copy_keys(headers, "CC") == ("a", "b", "a")
    assert copy_keys(headers, "BCC") == ()
    assert copy_keys({}, "CC") == ()
    assert copy_keys(None, "CC") == ()


@pytest.mark.parametrize("value", ["a", None, 1, {"a": 1}])
def test_anything_but_an_array_is_refused(value: object) -> None:
    with pytest.raises(UnacceptableHeader, match="'BCC'"):
        copy_keys({"BCC": value}, "BCC")
