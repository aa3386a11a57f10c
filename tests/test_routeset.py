"""Several routes in one text."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnout.compiling.options import CompileOptions
from turnout.errors import UsageError
from turnout.perf.routeset import Candidate, name_of, parse
from turnout.routing.request import OptionRequest, RouteRequest, StageRequest


def test_routes_stand_between_semicolons_and_are_named_by_their_words() -> None:
    assert parse("config; ep=cpu; ep=openvino; stage lm_head=openvino") == (
        Candidate("config"),
        Candidate("ep=cpu", RouteRequest(ep="cpu")),
        Candidate("ep=openvino", RouteRequest(ep="openvino")),
        Candidate(
            "stage lm_head=openvino",
            RouteRequest(stages=(StageRequest("lm_head", "openvino"),)),
        ),
    )


@pytest.mark.parametrize(
    "text",
    ["ep=cpu device=cpu", "--ep cpu --device cpu", "device=cpu ep cpu", "--ep=cpu device=CPU"],
)
def test_however_a_route_is_spelled_it_has_one_name(text: str) -> None:
    (candidate,) = parse(text)
    assert candidate.name == "ep=cpu device=cpu"
    assert candidate.request == RouteRequest(ep="cpu", device="cpu")


def test_lines_part_routes_and_end_in_comments() -> None:
    text = "# what ships\nconfig\n\nname=fast ep=openvino   # on the laptop\r\n;;\n"
    found = parse(text, comments=True)
    assert [candidate.name for candidate in found] == ["config", "fast"]


def test_a_route_can_say_everything_that_the_command_line_can() -> None:
    (candidate,) = parse(
        "ep=openvino stage lm_head=cpu scope=accelerated reproducible compile share=ep "
        'provider-option "context:device_type=AUTO:GPU,CPU" session-option a=b'
    )
    assert candidate == Candidate(
        "ep=openvino stage lm_head=cpu scope=accelerated "
        "provider-option context:device_type=AUTO:GPU,CPU session-option a=b reproducible compile "
        "share=ep",
        RouteRequest(
            ep="openvino",
            stages=(StageRequest("lm_head", "cpu"),),
            scope="accelerated",
            provider_options=(OptionRequest("context", "device_type", "AUTO:GPU,CPU"),),
            session_options=(OptionRequest(None, "a", "b"),),
            reproducible=True,
        ),
        CompileOptions(compile=True, share="ep"),
    )


def test_what_holds_for_all_is_prepared_by_each_that_says_nothing_else() -> None:
    one, other = parse("config; config share=off name=plain", CompileOptions(compile=True))
    assert one.preparing == CompileOptions(compile=True)
    assert other.preparing == CompileOptions(compile=True, share="off")
    assert one.name == "config compile"


def test_a_saved_route_is_named_by_its_file() -> None:
    (candidate,) = parse(r"route=C:\saved\laptop.json")
    assert candidate.saved == Path(r"C:\saved\laptop.json")
    assert name_of(RouteRequest(), saved=Path("saved") / "laptop.json") == "route=laptop.json"


@pytest.mark.parametrize(
    ("text", "problem", "found"),
    [
        ("", "empty", None),
        (" ; \n", "empty", None),
        ("cpu", "not known", "'cpu'"),
        ("config; ep", "ep without a value", "ep"),
        ("ep=cpu ep=openvino", "says ep twice", "ep=cpu ep=openvino"),
        ("config ep=cpu", "config, and something else", "config ep=cpu"),
        ("route=a.json ep=cpu", "route, and something else", "route=a.json ep=cpu"),
        ("ep=cpu; --ep cpu", "Two routes have the name 'ep=cpu'", None),
        ("stage context", "malformed", "'context'"),
        ('ep="cpu', "malformed", "No closing quotation"),
        ("device=tpu", "device is unknown", "'tpu'"),
        ("share=some", "share weights is unknown", "'some'"),
        ("; ".join(f"name=n{index} ep=cpu" for index in range(33)), "too many", "33"),
    ],
)
def test_what_means_nothing_is_an_error(text: str, problem: str, found: str | None) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        parse(text)
    if found is not None:
        assert caught.value.facts["found"] == found


def test_a_comment_ends_with_its_line(tmp_path: Path) -> None:
    text = "ep=cpu # base\nname=second ep=openvino # other; ep=qnn\nreproducible\n# all\nconfig"
    names = [candidate.name for candidate in parse(text, comments=True)]
    assert names == ["ep=cpu", "second", "reproducible", "config"]


def test_however_an_ep_is_named_a_route_has_one_name() -> None:
    for spelled in ("CPU", "cpu", "CPUExecutionProvider"):
        assert parse(f"ep={spelled}")[0].name == "ep=cpu"
    (candidate,) = parse("stage context=OpenVINOExecutionProvider@npu")
    assert candidate.name == "stage context=openvino@npu"
    assert parse("ep=NobodyKnows")[0].name == "ep=NobodyKnows"
    with pytest.raises(UsageError, match="Two routes have the name 'ep=cpu'"):
        parse("ep=CPU; ep=cpu")


def test_one_route_can_be_left_as_it_is_where_all_are_compiled() -> None:
    base = CompileOptions(compile=True, require_compiled=True)
    compiled, plain = parse("ep=openvino; ep=openvino no-compile", base)
    assert compiled.name == "ep=openvino compile"
    assert (plain.name, plain.preparing) == ("ep=openvino", CompileOptions())


def test_text_that_no_document_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="no Unicode text") as caught:
        parse("name=\udcff config")
    assert caught.value.facts["found"] == "'\\udcff'"


def test_outside_of_a_file_there_are_no_comments_that_could_hide_a_route() -> None:
    with pytest.raises(UsageError, match="not known") as caught:
        parse("config # base; ep=cpu")
    assert caught.value.facts["found"] == "'#'"
