"""Numbers and names as people read them."""

from __future__ import annotations

from vitrail.text import large, listing, percent, plural, scientific, whole


def test_numbers_read_well():
    assert [percent(share) for share in (0.98765, 0.99999, 1e-6, 1, 0)] == [
        "98.8\u202f%",
        "99.9\u202f%",
        "0.1\u202f%",
        "100\u202f%",
        "0\u202f%",
    ]
    assert percent(float("nan")) == "–"
    assert [large(value) for value in (999, 5_717_416, 1.26e9)] == ["999", "5.72\u202fM", "1.26\u202fG"]
    assert [whole(value) for value in (1200, 50_000)] == ["1,200", "50\u202fk"]
    assert [scientific(value) for value in (0, 1e-3, 2.5e-4, 3)] == ["0", "1e-3", "2.5e-4", "3e0"]
    assert [plural(1, "class", "classes"), plural(1797, "image")] == ["1 class", "1,797 images"]
    assert listing(list("abcd"), most=2) == "a, b … and 2 more"
