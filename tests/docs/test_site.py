"""The documentation: every public name has an entry, and formulas become MathML or an error."""

import re
from pathlib import Path

import pytest
from hooks import mathml

import dufl

DOCS = Path(__file__).parents[2] / "docs"


def test_the_api_reference_has_every_public_name() -> None:
    """Each once, at the module that defines it; an entry for nothing fails the strict build."""
    homes = {name: dufl._HOMES[name].partition(":") for name in dufl.__all__}
    expected = [f"{home}.{inside or name}" for name, (home, _, inside) in homes.items()]
    entries = re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(entries) == sorted(expected)


def test_a_formula_becomes_mathml() -> None:
    inline = mathml(r"\theta D_k(t)")
    assert inline.startswith("<math")
    assert 'display="inline"' in inline
    block = mathml(r"\begin{aligned} a &= 1 \\ b &= \frac{1}{2} \end{aligned}", block=True)
    assert block.count("<mtr>") == 2
    assert "<mfrac>" in block


@pytest.mark.parametrize("latex", [r"\nonsense{x}", r"a & b"])
def test_a_formula_that_cannot_be_converted_is_an_error(latex: str) -> None:
    with pytest.raises(ValueError, match="cannot convert"):
        mathml(latex)
