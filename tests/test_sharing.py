"""What stages share: proven by content, chosen by rules, and never at the cost of an answer."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bundle_fixtures import DATA_FILE, build_flat, build_pipeline, read_config, write_config
from session_fixtures import Bundles
from turnout.bundle import Bundle, GenaiConfig
from turnout.bundle.comparing import Amount, NamePair, compare_contents
from turnout.bundle.contents import equal_graphs, sha256_range
from turnout.compiling import derive, sessions, sharing
from turnout.compiling.sharing import choose
from turnout.errors import CompileError, GraphError, UsageError

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_pipeline(tmp_path / "bundle", two_sessions=True)


def equal(folder: Path, hash_range: Any = sha256_range) -> bool:
    bundle = Bundle.open(folder)
    return equal_graphs(bundle, bundle.stage("context"), bundle.stage("iterator"), hash_range)


def edit_graph(path: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> GenaiConfig:
    config = read_config(folder)
    change(config)
    write_config(folder, config)
    return GenaiConfig.load(folder / "genai_config.json")


def rename_everything(model: onnx.ModelProto) -> None:
    """Other names for the graph, nodes, initializers and inner values, and nodes moved."""
    graph = model.graph
    kept = {value.name for value in (*graph.input, *graph.output)}
    graph.name, graph.doc_string, model.producer_name = "another", "words", "somebody"
    for item in graph.initializer:
        item.name = f"renamed {item.name}"
    for node in graph.node:
        node.name, node.doc_string = f"n {node.name}", "more words"
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name and name not in kept:
                    names[index] = f"renamed {name}"
    # Nodes 0, 3 and 6 make q, k and v of the same input: their order says nothing.
    first, second = onnx.NodeProto(), onnx.NodeProto()
    first.CopyFrom(graph.node[0])
    second.CopyFrom(graph.node[3])
    graph.node[0].CopyFrom(second)
    graph.node[3].CopyFrom(first)
    graph.node.insert(1, first)
    del graph.node[4]


def test_names_and_the_order_of_nodes_make_no_difference(folder: Path) -> None:
    """B1: what may be shared is proven by content, whatever it is called."""
    edit_graph(folder / "iterator.onnx", rename_everything)
    onnx.checker.check_model(onnx.load(folder / "iterator.onnx"))
    assert equal(folder)


def change_attribute(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Softmax")
    node.attribute[0].i = 2


def swap_inputs(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Add")
    node.input[:] = [node.input[1], node.input[0]]


def swap_weights(model: onnx.ModelProto) -> None:
    q = next(node for node in model.graph.node if node.name == "l0.q")
    k = next(node for node in model.graph.node if node.name == "l0.k")
    q.input[1], k.input[1] = k.input[1], q.input[1]


def shift_range(model: onnx.ModelProto) -> None:
    item = next(item for item in model.graph.initializer if item.external_data)
    next(entry for entry in item.external_data if entry.key == "offset").value = "64"


def other_constant(model: onnx.ModelProto) -> None:
    item = next(item for item in model.graph.initializer if item.name == "scale")
    item.float_data[0] *= 2


def other_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4


def other_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 18


def other_operator(model: onnx.ModelProto) -> None:
    model.graph.node[-1].op_type = "Sigmoid"


DIFFERENT = [
    change_attribute, swap_inputs, swap_weights, shift_range, other_constant, other_input,
    other_opset, other_operator,
]  # fmt: skip


@pytest.mark.parametrize("change", DIFFERENT)
def test_what_computes_something_else_is_not_equal(
    folder: Path, change: Callable[[onnx.ModelProto], object]
) -> None:
    edit_graph(folder / "iterator.onnx", change)
    assert not equal(folder)


def move_weights(folder: Path, change: Callable[[bytearray], object] = lambda data: None) -> None:
    """The iterator's weights in a file of its own, 64 bytes further on."""
    data = bytearray(64) + bytearray((folder / DATA_FILE).read_bytes())
    change(data)
    (folder / "own.data").write_bytes(data)

    def point(model: onnx.ModelProto) -> None:
        for item in model.graph.initializer:
            for entry in item.external_data:
                if entry.key == "location":
                    entry.value = "own.data"
                elif entry.key == "offset":
                    entry.value = str(int(entry.value) + 64)

    edit_graph(folder / "iterator.onnx", point)


def test_equal_weights_in_another_file_are_equal(folder: Path) -> None:
    """B11: weights may lie in several files."""
    move_weights(folder)
    assert equal(folder)


def test_one_other_byte_in_another_file_is_noticed(folder: Path) -> None:
    model = onnx.load(folder / "context.onnx", load_external_data=False)
    item = next(item for item in model.graph.initializer if item.name == "layer.1.o")
    offset = next(int(entry.value) for entry in item.external_data if entry.key == "offset")

    def change(data: bytearray) -> None:
        data[64 + offset + 1023] ^= 1

    move_weights(folder, change)
    assert not equal(folder)


def test_identical_ranges_are_equal_without_being_read(folder: Path) -> None:
    read: list[tuple[str, int]] = []

    def hash_range(path: Path, offset: int, length: int) -> str:
        read.append((path.name, length))
        return sha256_range(path, offset, length)

    assert equal(folder, hash_range)
    assert DATA_FILE not in {name for name, _ in read}


def conditional(inner: str, constant: float) -> onnx.GraphProto:
    """`y = x + c if flag else x * c`, whose branches read x and c from outside."""
    branches = [
        helper.make_graph(
            [
                helper.make_node("Constant", [], [f"{inner} unused"], value_float=constant),
                helper.make_node(kind, ["x", "c"], [inner]),
                helper.make_node("Add", [inner, f"{inner} unused"], ["out"]),
            ],
            f"{inner} {kind}",
            [],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n"])],
        )
        for kind in ("Add", "Mul")
    ]
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branches[0], else_branch=branches[1])
    return helper.make_graph(
        [node],
        inner,
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor("c", TensorProto.FLOAT, [1], [2.0])],
    )


@pytest.mark.parametrize(("constant", "same"), [(1.5, True), (1.25, False)])
def test_graphs_inside_graphs_are_compared_too(folder: Path, constant: float, same: bool) -> None:
    for name, inner, value in (("context", "a", 1.5), ("iterator", "b", constant)):
        model = helper.make_model(conditional(inner, value), ir_version=10)
        onnx.checker.check_model(model)
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    assert equal(folder) is same


def test_a_value_that_is_used_before_it_is_made_is_refused(folder: Path) -> None:
    for name in ("context", "iterator"):
        edit_graph(folder / f"{name}.onnx", lambda model: model.graph.node.reverse())
    with pytest.raises(GraphError, match="not a readable ONNX file") as caught:
        equal(folder)
    assert "before it is made" in caught.value.facts["found"]


def test_what_an_ep_compiled_equals_itself_alone(folder: Path) -> None:
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=1,
        ep_cache_context=b"blob", source="QNNExecutionProvider",
    )  # fmt: skip
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    for name in ("context", "iterator"):
        (folder / f"{name}.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    assert not equal(folder)
    (folder / "iterator.onnx").unlink()
    (folder / "iterator.onnx").hardlink_to(folder / "context.onnx")
    assert equal(folder)


def test_a_range_is_hashed_as_the_library_does_and_a_short_file_is_refused(tmp_path: Path) -> None:
    data = np.random.default_rng(1).bytes(3_000_000)
    (tmp_path / "f").write_bytes(data)
    expected = hashlib.sha256(data[7:2_500_007]).hexdigest()
    assert sha256_range(tmp_path / "f", 7, 2_500_000) == expected
    with pytest.raises(GraphError, match="ends within a tensor"):
        sha256_range(tmp_path / "f", 2_999_999, 2)


# What a bundle has in common.


def test_pairs_are_compared_tensor_by_tensor(folder: Path) -> None:
    """`context` and `iterator` are 8 tensors of 16 x 16 floats on the same ranges, and three
    constants inside each graph: 4 and 3 numbers of 8 bytes, and one of 4.
    """
    found = compare_contents(Bundle.open(folder))
    pair = next(pair for pair in found.pairs if pair.stages == ("context", "iterator"))
    assert pair.same_graph
    assert pair.equal == Amount(11, 8 * 1024 + 32 + 24 + 4)
    assert pair.only == (Amount(0, 0), Amount(0, 0))
    assert (pair.conflicts, pair.renamed, pair.overlapping) == ((), (), ())
    other = next(pair for pair in found.pairs if pair.stages == ("embeddings", "lm_head"))
    assert other.equal == Amount(0, 0)
    assert other.only == (Amount(1, 260 * 16 * 4), Amount(1, 260 * 16 * 4))


def test_weights_stored_twice_are_counted(folder: Path) -> None:
    move_weights(folder)
    found = compare_contents(Bundle.open(folder))
    pair = next(pair for pair in found.pairs if pair.stages == ("context", "iterator"))
    assert pair.twice.nbytes >= 8 * 1024
    assert found.twice.nbytes == pair.twice.nbytes


def test_conflicts_renames_and_overlaps_are_named(folder: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        items = {item.name: item for item in model.graph.initializer}
        # Another content under the name layer.0.q, whose range is layer.0.k's now; and a range
        # that begins in the middle of layer.1.o.
        offsets = {
            name: next(e for e in items[name].external_data if e.key == "offset")
            for name in ("layer.0.q", "layer.0.k", "layer.1.o")
        }
        offsets["layer.0.q"].value = offsets["layer.0.k"].value
        offsets["layer.1.o"].value = str(int(offsets["layer.1.o"].value) - 512)
        items["layer.0.v"].name = "v of layer 0"
        for node in model.graph.node:
            node.input[:] = ["v of layer 0" if n == "layer.0.v" else n for n in node.input]

    edit_graph(folder / "iterator.onnx", change)
    found = compare_contents(Bundle.open(folder))
    pair = next(pair for pair in found.pairs if pair.stages == ("context", "iterator"))
    assert not pair.same_graph
    assert set(pair.conflicts) == {
        NamePair("layer.0.q", "layer.0.q", 1024),
        NamePair("layer.1.o", "layer.1.o", 1024),
    }
    assert pair.renamed == (NamePair("layer.0.v", "v of layer 0", 1024),)
    assert NamePair("layer.1.o", "layer.1.o", 512) in pair.overlapping


# One session.


def answers(folder: Path, batches: list[list[list[int]]], **search: Any) -> list[list[list[int]]]:
    import onnxruntime_genai as og

    model = og.Model(og.Config(str(folder)))
    found = []
    for batch in batches:
        params = og.GeneratorParams(model)
        params.set_search_options(
            max_length=len(batch[0]) + 6, batch_size=len(batch), do_sample=False, **search
        )
        generator = og.Generator(model, params)
        generator.append_tokens(np.array(batch, dtype=np.int32))
        for _ in range(6):
            generator.generate_next_token()
        found.append([list(generator.get_sequence(row)) for row in range(len(batch))])
    return found


PROMPTS = [[[5]], [[5, 6]], [[5, 6, 7, 8, 9]], [[3, 4, 5], [9, 8, 7]], [[3], [9]]]


@pytest.mark.parametrize("layout", ["one object", "many objects", "plain object"])
def test_one_session_gives_the_tokens_of_two(tmp_path: Path, layout: str) -> None:
    """For prompts of one token, which skip the prefill stage, and more; two at a time."""
    folder = build_pipeline(tmp_path / "bundle", two_sessions=True, layout=layout)
    bundle = Bundle.open(folder)
    choice = choose(bundle, bundle.config, "session")
    assert choice.merged == {"iterator": "context"}
    merged = derive(bundle, choice.config)
    assert not (merged / "iterator.onnx").exists()
    assert answers(merged, PROMPTS) == answers(folder, PROMPTS)
    beams = {"num_beams": 2, "num_return_sequences": 1}
    assert answers(merged, PROMPTS[:3], **beams) == answers(folder, PROMPTS[:3], **beams)


def test_merging_changes_nothing_else_of_the_text(folder: Path) -> None:
    config = GenaiConfig.load(folder / "genai_config.json")
    merged = sessions.merge(config, "context", "iterator")
    kept = json.loads(config.text)
    stages = kept["model"]["decoder"]["pipeline"][0]
    del stages["iterator"]
    stages["context"]["run_on_token_gen"] = True
    assert json.loads(merged.text) == kept
    # An edit is a splice: every other line stands as it stood.
    assert set(merged.text.splitlines()) - set(config.text.splitlines()) == {
        '                        "run_on_token_gen": true,'
    }


def pipeline_of(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    stages: dict[str, dict[str, Any]] = config["model"]["decoder"]["pipeline"][0]
    return stages


def test_numbers_of_sessions_follow(folder: Path) -> None:
    """Sessions are numbered; one that is freed for the next phase must not be the one session."""

    def change(config: dict[str, Any]) -> None:
        stages = pipeline_of(config)
        stages["iterator"]["reset_session_idx"] = 1  # frees context
        stages["embeddings"]["reset_session_idx"] = 3  # frees lm_head
        stages["lm_head"]["reset_session_idx"] = 2  # frees iterator

    edit_config(folder, change)
    bundle = Bundle.open(folder)
    merged = sessions.merge(bundle.config, "context", "iterator")
    stages = pipeline_of(json.loads(merged.text))
    assert {name: stage.get("reset_session_idx") for name, stage in stages.items()} == {
        "embeddings": 2, "context": None, "lm_head": None,
    }  # fmt: skip


def test_a_session_that_is_freed_for_tokens_runs_on_as_the_one(folder: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        pipeline_of(config)["iterator"]["reset_session_idx"] = 1

    edit_config(folder, change)
    bundle = Bundle.open(folder)
    merged = derive(bundle, sessions.merge(bundle.config, "context", "iterator"))
    # One prompt: onnxruntime-genai 0.18 crashes at the next one where a session was freed.
    assert answers(merged, PROMPTS[2:3]) == answers(folder, PROMPTS[2:3])


@pytest.mark.openvino
def test_one_session_of_an_accelerator_compiles_once_in_memory(folder: Path) -> None:
    """B8: prefill and decode share their weights without any context file."""
    from turnout.machine import plugins

    plugins.register(["OpenVINOExecutionProvider"])
    bundle = Bundle.open(folder)
    expected = answers(folder, PROMPTS)
    config = on_openvino(folder, "CPU")
    choice = choose(bundle, config, "auto")
    assert (choice.merged, choice.ep_groups) == ({"iterator": "context"}, ())
    merged = derive(bundle, choice.config)
    assert answers(merged, PROMPTS) == expected
    assert {path.suffix for path in merged.iterdir()} == {".onnx", ".json"}


def split_head(folder: Path) -> None:
    """A pipeline in which each phase has its own head: context, head; iterator, head."""

    def change(config: dict[str, Any]) -> None:
        stages = pipeline_of(config)
        head = stages.pop("lm_head")
        iterator = stages.pop("iterator")
        stages["prompt_head"] = {**head, "run_on_token_gen": False}
        stages["iterator"] = iterator
        stages["token_head"] = {**head, "run_on_prompt": False}

    edit_config(folder, change)


def test_stages_with_others_between_them_keep_the_order_of_every_run(folder: Path) -> None:
    split_head(folder)
    bundle = Bundle.open(folder)
    choice = choose(bundle, bundle.config, "session")
    assert choice.merged == {"iterator": "context", "token_head": "prompt_head"}
    stages = pipeline_of(json.loads(choice.config.text))
    assert list(stages) == ["embeddings", "context", "prompt_head"]
    assert answers(derive(bundle, choice.config), PROMPTS) == answers(folder, PROMPTS)


def test_the_later_place_is_taken_where_the_first_would_be_too_early(folder: Path) -> None:
    """`iterator` reads what a stage in front of it makes for tokens alone, so `context` moves."""

    def change(config: dict[str, Any]) -> None:
        stages = pipeline_of(config)
        embeddings, head = stages.pop("embeddings"), stages.pop("lm_head")
        context, iterator = stages.pop("context"), stages.pop("iterator")
        stages["first"] = {**embeddings, "run_on_token_gen": False}
        stages["context"] = context
        stages["second"] = {**embeddings, "run_on_prompt": False}
        stages["iterator"], stages["lm_head"] = iterator, head

    edit_config(folder, change)
    bundle = Bundle.open(folder)
    merged = sessions.merge(bundle.config, "context", "iterator")
    assert list(pipeline_of(json.loads(merged.text))) == ["first", "second", "iterator", "lm_head"]
    assert answers(derive(bundle, merged), PROMPTS) == answers(folder, PROMPTS)


def give(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: pipeline_of(config)["iterator"].update(values)


def between(config: dict[str, Any]) -> None:
    stages = pipeline_of(config)
    head, iterator = stages.pop("lm_head"), stages.pop("iterator")
    stages["lm_head"], stages["iterator"] = head, iterator


def feedback(config: dict[str, Any]) -> None:
    pipeline_of(config)["embeddings"]["inputs"].append("normed")


def first_of_another_type(config: dict[str, Any]) -> None:
    stages = pipeline_of(config)
    embeddings = stages.pop("embeddings")
    stages["embeddings"] = embeddings
    config["model"]["type"] = "fara_vl"


OBSTACLES = {
    "both phases": (give(run_on_prompt=True), "do not run one on the prompt"),
    "options": (give(session_options={"log_id": "x"}), "session options differ"),
    "EPs": (
        give(session_options={"provider_options": [{"OpenVINO": {}}]}),
        "execution providers differ",
    ),
    "head": (give(is_lm_head=True), "roles as the output head differ"),
    "inputs": (give(inputs=["hidden"]), "inputs differ"),
    "outputs": (give(outputs=["normed"]), "outputs differ"),
    "forwarders": (give(output_names_forwarder={"normed": "other"}), "forwarded outputs differ"),
    "run options": (give(run_options={"a": "b"}), "run options differ"),
    "order": (between, "what runs between them (lm_head)"),
    "feedback": (feedback, "read, from the run before"),
    "first": (first_of_another_type, "treat their first stage"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_could_change_an_answer_keeps_two_sessions(folder: Path, name: str) -> None:
    change, phrase = OBSTACLES[name]
    config = edit_config(folder, change)
    reason = sessions.obstacle(config, "context", "iterator")
    assert reason is not None and phrase in reason
    with pytest.raises(UsageError, match="cannot be one session"):
        sessions.merge(config, "context", "iterator")


# The choice.


def test_off_shares_nothing_and_unknown_words_are_refused(folder: Path) -> None:
    bundle = Bundle.open(folder)
    choice = choose(bundle, bundle.config, "off")
    assert choice.config is bundle.config and not choice.is_any
    with pytest.raises(UsageError, match="unknown"):
        choose(bundle, bundle.config, "everything")


def test_auto_makes_one_session_and_packs_nothing_for_it(folder: Path) -> None:
    bundle = Bundle.open(folder)
    choice = choose(bundle, bundle.config, "auto")
    assert (choice.merged, choice.ep_groups, choice.prepack) == ({"iterator": "context"}, (), ())
    assert any("one session runs on prompt and tokens" in reason for reason in choice.reasons)


def test_require_fails_where_nothing_can_be_shared(tmp_path: Path) -> None:
    bundle = Bundle.open(build_flat(tmp_path / "bundle"))
    with pytest.raises(CompileError, match="Nothing of this bundle can be shared"):
        choose(bundle, bundle.config, "require")
    assert not choose(bundle, bundle.config, "auto").is_any


def on_openvino(folder: Path, device: str) -> GenaiConfig:
    def change(config: dict[str, Any]) -> None:
        for name in ("context", "iterator"):
            pipeline_of(config)[name]["session_options"] = {
                "provider_options": [{"OpenVINO": {"device_type": device}}]
            }

    return edit_config(folder, change)


def different_graphs(folder: Path) -> None:
    edit_graph(folder / "iterator.onnx", swap_inputs)


@pytest.mark.parametrize(
    ("device", "share", "groups"),
    [
        ("NPU", "auto", (("context", "iterator"),)),
        ("GPU", "auto", (("context", "iterator"),)),
        ("CPU", "auto", ()),
        ("CPU", "ep", (("context", "iterator"),)),
        ("NPU", "session", ()),
    ],
)
def test_an_eps_own_sharing_is_chosen_by_device(
    folder: Path, device: str, share: str, groups: tuple[tuple[str, ...], ...]
) -> None:
    different_graphs(folder)
    config = on_openvino(folder, device)
    assert choose(Bundle.open(folder), config, share).ep_groups == groups


def test_stages_whose_names_stand_for_different_tensors_do_not_share(folder: Path) -> None:
    """B1: OpenVINO binds weights by name alone."""
    edit_graph(folder / "iterator.onnx", shift_range)
    config = on_openvino(folder, "NPU")
    choice = choose(Bundle.open(folder), config, "ep")
    assert choice.ep_groups == ()
    assert any("stands for different tensors" in reason for reason in choice.reasons)


def test_stages_with_different_options_do_not_share(folder: Path) -> None:
    on_openvino(folder, "NPU")
    config = edit_config(
        folder,
        lambda c: pipeline_of(c)["iterator"]["session_options"]["provider_options"][0][
            "OpenVINO"
        ].update(num_streams="2"),
    )
    assert choose(Bundle.open(folder), config, "ep").ep_groups == ()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("bundles"))


def test_auto_packs_where_two_graphs_differ_and_their_weights_do_not(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(bundles("static"))
    # The tiny model's weights are not worth a file.
    assert choose(bundle, bundle.config, "auto").prepack == ()
    monkeypatch.setattr(sharing, "_WORTH_BYTES", 1)
    packed = ("context", "iterator", "lm_head")
    assert choose(bundle, bundle.config, "auto").prepack == packed
    assert choose(bundle, bundle.config, "prepacked").prepack == packed
    # Compiling implies auto, and is no reason to pack.
    assert choose(bundle, bundle.config, "auto", compiling=True).prepack == ()


def test_a_stage_that_packs_nothing_is_left_out(bundles: Bundles) -> None:
    def change(config: dict[str, Any]) -> None:
        for item in config["model"]["decoder"]["pipeline"]:
            if "lm_head" in item:
                item["lm_head"]["session_options"]["session.disable_prepacking"] = "1"

    bundle = Bundle.open(bundles("static", change=change))
    choice = choose(bundle, bundle.config, "prepacked")
    assert choice.prepack == ("context", "iterator")
    assert any("session.disable_prepacking is set" in reason for reason in choice.reasons)


def test_a_choice_does_not_touch_the_bundle(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    bundle = Bundle.open(folder)
    choose(bundle, bundle.config, "auto")
    compare_contents(bundle)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    shutil.rmtree(folder)
