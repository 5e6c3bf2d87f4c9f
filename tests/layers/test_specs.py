import pytest

from layers.attention.softmax import Attention
from layers.errors import SpecError, UsageError, did_you_mean
from layers.specs import P, Specs, show_spec


def test_later_rows_win_and_the_table_stays():
    base = Specs(a_mn=P("x", None), b_m=P(None))
    merged = base | Specs(b_m=P("y"))
    assert merged["b_m"] == P("y")
    assert base["b_m"] == P(None)
    assert hash(merged) != hash(base)
    assert merged == Specs(a_mn=P("x", None), b_m=P("y"))


def test_a_spec_must_have_one_entry_per_letter():
    with pytest.raises(
        SpecError, match=r"'query_mnd' = P\('data'\) must have one entry per dimension of 'mnd' \(got 1\)"
    ):
        Specs(query_mnd=P("data"))
    with pytest.raises(UsageError, match="must be a P"):
        Specs(query_m=("data",))


def test_a_layer_takes_the_rows_it_lists():
    table = Specs(query_mnd=P(None, None, None), ffn_in_mf=P(None, None))
    assert list(table.of(Attention)) == ["query_mnd"]


def test_a_missing_row_names_its_owner_and_the_closest():
    with pytest.raises(SpecError, match=r"Weight 'ffn_in_mf' of FeedForward has no partition spec.*'ffn_inn_mf'"):
        Specs(ffn_inn_mf=P(None, None)).lookup("ffn_in_mf", "FeedForward")


def test_specs_print_as_code():
    assert show_spec(P(("a", "b"), None)) == "P(('a', 'b'), None)"
    assert repr(Specs(a_m=P("x"))) == "Specs(a_m=P('x'))"


@pytest.mark.parametrize(
    ("name", "valid", "message"),
    [
        ("LEARNINGRATE", ["LEARNING_RATE", "SEED"], "Did you mean 'LEARNING_RATE'?"),
        ("zzz", ["a", "b"], "Valid: 'a', 'b'."),
        ("x", [], "No valid names exist."),
    ],
)
def test_did_you_mean(name, valid, message):
    assert did_you_mean(name, valid) == message
