"""Mutations of configs and of ONNX headers, and the readers that must survive them.

Everything follows from a seed. A reader survives when it answers or raises a `TurnoutError`, in
bounded time and memory; anything else that is raised is what fuzzing looks for.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from turnout import checking
from turnout.bundle import GenaiConfig, GraphFile
from turnout.bundle.jsontext import decode
from turnout.errors import TurnoutError
from turnout.machine import Inventory
from turnout.routing import OptionRequest, RouteRequest, StageRequest, apply, resolve
from turnout.routing.products import needs_unpacked

INVENTORIES = Path(__file__).parent / "data" / "inventories"

# Values of every kind that a document may hold where another one is due.
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, 2**31, 2**63, 10**30, -(10**30), 1e308, "", "x", "0", "true",
    "null", "../x", "/etc/passwd", "C:\\x", "a\0b", "\ud83d\ude00", "ü" * 50, "%d", "x" * 5000,
    [], [1], [[[]]], [None], ["x", 1], {}, {"": {}}, {"a": 1}, {"a": {"b": []}}, [{"a": []}],
    [{}, {}], {"filename": "m.onnx"},
    {"provider_options": [{"OpenVINO": {"device_type": "NPU"}}]},
)  # fmt: skip
# Pieces of text that no JSON writer makes.
ODD_TEXT = (
    "\ufeff", "//x\n", "/*x*/", "#", ",", ",,", "}", "]", "{", "[", ":", '"', "\\", "\\u12",
    "\\u0041", "\\ud800", "\\q", "NaN", "Infinity", "None", "'", "01", "1e999", "-", "+1", "\0",
    "\x1f", "\u2028", "9" * 500, "[" * 150, '{"a":' * 150, "null", "true", "é", "\U0001f600",
)  # fmt: skip


# Configs


def mutate_config(rng: random.Random, text: str) -> bytes:
    """One to four mutations of a config: of its values first, of its text and bytes then."""
    for _ in range(rng.randint(0, 2)):
        text = _with_document(rng, text)
    for _ in range(rng.randint(0, 2)):
        text = rng.choice(_TEXT_MUTATIONS)(rng, text)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        data = rng.choice(_BYTE_MUTATIONS)(rng, data)
    return data


def _with_document(rng: random.Random, text: str) -> str:
    try:
        root = {"root": json.loads(text)}
    except (ValueError, RecursionError):
        return text
    places = list(_places(root))
    holder, key = rng.choice(places)
    rng.choice(_VALUE_MUTATIONS)(rng, holder, key, places)
    layout: dict[str, Any] = rng.choice([{"indent": 4}, {}, {"separators": (",", ":")}])
    ascii_only = rng.random() < 0.1  # writes \uXXXX, which the runtime refuses
    return json.dumps(root.get("root"), ensure_ascii=ascii_only, **layout)


_Places = list[tuple[Any, Any]]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys: Any = ()
    if isinstance(value, dict):
        keys = value.keys()
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _replace(rng: random.Random, holder: Any, key: Any, places: _Places) -> None:
    holder[key] = copy.deepcopy(rng.choice(ODD_VALUES))


def _delete(rng: random.Random, holder: Any, key: Any, places: _Places) -> None:
    del holder[key]


def _add(rng: random.Random, holder: Any, key: Any, places: _Places) -> None:
    value = copy.deepcopy(rng.choice(ODD_VALUES))
    if isinstance(holder, list):
        holder.insert(key, value)
    else:
        names = [*sorted({str(k) for _, k in places}), "new", "", "x" * 2000]
        holder[rng.choice(names)] = value


def _swap(rng: random.Random, holder: Any, key: Any, places: _Places) -> None:
    """Two values change places, from anywhere to anywhere."""
    other, there = rng.choice(places)
    holder[key], other[there] = copy.deepcopy(other[there]), copy.deepcopy(holder[key])


def _retype(rng: random.Random, holder: Any, key: Any, places: _Places) -> None:
    """A number as text, a text as number, a value in a list, a list as its element, ..."""
    value = holder[key]
    holder[key] = rng.choice([str(value)[:200], [value], {"x": value}, len(str(value)), [], {}])


def _reorder(rng: random.Random, holder: Any, key: Any, places: _Places) -> None:
    items = list(holder.items()) if isinstance(holder, dict) else list(holder)
    rng.shuffle(items)
    if isinstance(holder, dict):
        holder.clear()
        holder.update(items)
    else:
        holder[:] = items


_VALUE_MUTATIONS = (_replace, _replace, _delete, _add, _swap, _retype, _reorder)


def _insert_text(rng: random.Random, text: str) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(ODD_TEXT) + text[at:]


def _cut_text(rng: random.Random, text: str) -> str:
    first, last = sorted(rng.randint(0, len(text)) for _ in range(2))
    return text[:first] if rng.random() < 0.5 else text[:first] + text[last:]


def _repeat_text(rng: random.Random, text: str) -> str:
    """A span twice: members with equal keys where it is a whole line."""
    lines = text.split("\n")
    if len(lines) > 2 and rng.random() < 0.7:
        first = rng.randrange(len(lines))
        some = lines[first : first + rng.randint(1, 12)]
        return "\n".join([*lines[:first], *some, *lines[first:]])
    at = rng.randint(0, len(text))
    return text[:at] + text[at : at + 200] + text[at:]


def _repeat_member(rng: random.Random, text: str) -> str:
    """A key again in front of its object's other keys, with a value of another kind."""
    openings = [index for index, char in enumerate(text) if char == "{"]
    if not openings:
        return text
    at = rng.choice(openings) + 1
    key = rng.choice(["model", "decoder", "pipeline", "session_options", "filename", "OpenVINO"])
    value = json.dumps(rng.choice(ODD_VALUES), ensure_ascii=False)
    return text[:at] + f'"{key}": {value}, ' + text[at:]


def _line_ends(rng: random.Random, text: str) -> str:
    return text.replace("\n", rng.choice(["\r\n", "\r", "", "\n\n", "\t"]))


_TEXT_MUTATIONS = (_insert_text, _insert_text, _cut_text, _repeat_text, _repeat_member, _line_ends)


def _flip_bits(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _random_bytes(rng: random.Random, data: bytes) -> bytes:
    return rng.randbytes(rng.randint(0, 300))


def _other_encoding(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(rng.choice(["utf-16", "utf-8-sig", "utf-32", "latin-1"]), "replace")


def _truncated(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randint(0, len(data))]


_BYTE_MUTATIONS = (_flip_bits, _random_bytes, _other_encoding, _truncated)


def machines() -> list[Inventory]:
    """The machines for which mutated configs are routed."""
    found = [Inventory.from_json(p.read_bytes()) for p in sorted(INVENTORIES.glob("*.json"))]
    return [*found, Inventory.minimal()]


REQUESTS = (
    RouteRequest(ep="cpu"),
    RouteRequest(device="auto"),
    RouteRequest(ep="openvino", device="cpu", reproducible=True),
    RouteRequest(device="gpu", provider_options=(OptionRequest(None, "k", "v"),)),
    RouteRequest(ep="qnn", scope="accelerated", session_options=(OptionRequest(None, "k", "v"),)),
    RouteRequest(stages=(StageRequest("decoder", "cuda"),)),
)


def read_config(data: bytes, inventory: Inventory, request: RouteRequest) -> str:
    """Read and route a config: "routed", or the name of the `TurnoutError` that was raised."""
    try:
        config = GenaiConfig.parse(decode(data))
        config.stages()
        effective = apply(config, resolve(config, inventory, request))
        effective.stages()
    except TurnoutError as error:
        str(error)
        return type(error).__name__
    return "routed"


def check_config(data: bytes, folder: Path) -> str:
    """`turnout check` of a lone config: "clean", the worst severity, or a `TurnoutError`'s name."""
    path = folder / "genai_config.json"
    path.write_bytes(data)
    return _worst(lambda: checking.check_config(path))


def agrees(data: bytes, folder: Path) -> str:
    """Whether the runtime's parser takes a config, which its check must say, too."""
    import onnxruntime_genai as og

    path = folder / "genai_config.json"
    path.write_bytes(data)
    try:
        accepted = checking.check_config(path).accepted
    except TurnoutError:  # it is no text, or too large
        accepted = False
    try:
        og.Config(str(folder))
    except Exception as error:  # the binding's own exceptions
        assert not accepted, f"the runtime refuses it: {error}"
        return "both refuse it"
    assert accepted, "the runtime takes it"
    return "both take it"


def check_bundle(folder: Path, inventory: Inventory | None = None) -> str:
    """`turnout check` of a bundle, as `check_config` says it."""
    return _worst(lambda: checking.check(folder, inventory=inventory))


def _worst(check: Callable[[], checking.Report]) -> str:
    try:
        report = check()
    except TurnoutError as error:
        str(error)
        return type(error).__name__
    json.dumps(report.to_json())
    return next((s for s in ("error", "warning", "info") if report.count(s)), "clean")


# ONNX headers


def small_graphs() -> list[bytes]:
    """ONNX files with all that a header can hold."""
    return [_rich_graph().SerializeToString(), _context_graph().SerializeToString()]


def _external(name: str, offset: int, length: int) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[length // 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _rich_graph() -> onnx.ModelProto:
    floats = TensorProto.FLOAT
    info = helper.make_tensor_value_info
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=helper.make_tensor("v", 7, [2], [1, 2]))],
        "inner",
        [],
        [info("c", TensorProto.INT64, [2])],
        [_external("deep", 64, 16)],
    )
    values = helper.make_tensor("s", floats, [2], [1.0, 2.0])
    indices = helper.make_tensor("s_i", TensorProto.INT64, [2], [0, 3])
    graph = helper.make_graph(
        [
            helper.make_node("If", ["b"], ["i"], then_branch=inner, else_branch=inner),
            helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
            helper.make_node("MatMulNBits", ["x", "q"], ["z"], domain="com.microsoft",
                             bits=8, block_size=32, accuracy_level=4),
            helper.make_node("Loop", [], ["l"], body=inner),
        ],
        "rich",
        [
            info("x", floats, ["batch", None, 3]),
            info("b", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("seq", floats, ["n"]),
        ],
        [info("y", floats, None)],
        [
            _external("w", 0, 64),
            helper.make_tensor("q", TensorProto.UINT8, [4], b"\1\2\3\4", raw=True),
            helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"bc"]),
        ],
        sparse_initializer=[helper.make_sparse_tensor(values, indices, [5])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, producer_name="fuzz")


def _context_graph() -> onnx.ModelProto:
    nodes = [
        helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0,
                         ep_cache_context="m_QNN.bin", main_context=1, source="QNN",
                         partition_name="p"),
        helper.make_node("EPContext", ["y"], ["z"], domain="com.microsoft", embed_mode=1,
                         ep_cache_context=b"blob" * 20, source="OpenVINO"),
    ]  # fmt: skip
    return helper.make_model(helper.make_graph(nodes, "context", [], []))


def mutate_header(rng: random.Random, data: bytes) -> bytes:
    """One to four mutations of an ONNX file."""
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(_HEADER_MUTATIONS)(rng, data)
    return data


def varint(value: int) -> bytes:
    """A protobuf number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(number: int, payload: bytes) -> bytes:
    """A field that holds bytes: text or another message."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def _odd_length(rng: random.Random, data: bytes) -> bytes:
    """A byte, most of which are lengths or keys, becomes a number of another size."""
    if not data:
        return data
    at = rng.randrange(len(data))
    value = rng.choice([0, 1, 127, 128, 2**14, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 2**70])
    return data[:at] + varint(value) + data[at + 1 :]


def _splice(rng: random.Random, data: bytes) -> bytes:
    first, last = sorted(rng.randint(0, len(data)) for _ in range(2))
    at = rng.randint(0, len(data))
    return data[:at] + data[first:last] + data[at:]


def _nest(rng: random.Random, data: bytes) -> bytes:
    """The model's bytes inside messages inside messages, as graphs, types or attributes."""
    number = rng.choice([1, 2, 4, 5, 6, 7, 9, 11, 15, 22])
    for _ in range(rng.choice([1, 2, 40, 200])):
        data = message(number, data)
    return message(7, data)


def _graphs_in_graphs(rng: random.Random, data: bytes) -> bytes:
    """Nodes with attributes with graphs, to the depth at which it is refused, and beyond."""
    inner = b""
    for _ in range(rng.choice([5, 31, 32, 33, 300])):
        inner = message(1, message(5, message(rng.choice([6, 11]), inner)))
    return data + message(7, inner)


def _odd_tensor(rng: random.Random, data: bytes) -> bytes:
    """A tensor of impossible shape, or with external data of impossible place."""
    dims = b"".join(varint(8) + varint(rng.choice([0, 1, 2**31, 2**62, 2**63])) for _ in range(3))
    entries = b""
    for key in ("location", "offset", "length"):
        value = rng.choice([b"", b"0", b"-1", b"99999999999999999999", b"../x", b"1e3", b"\xff"])
        entries += message(13, message(1, key.encode()) + message(2, value))
    kind = varint(16) + varint(rng.choice([0, 1, 8, 16, 22, 28, 29, 255]))
    tensor = message(5, dims + kind + varint(112) + b"\1" + entries)
    return data + message(7, tensor)


_HEADER_MUTATIONS: Sequence[Callable[[random.Random, bytes], bytes]] = (
    _flip_bits, _flip_bits, _odd_length, _odd_length, _truncated, _splice, _nest,
    _graphs_in_graphs, _odd_tensor, _random_bytes,
)  # fmt: skip


def read_header(path: Path) -> str:
    """Read a header, and what routing asks of it: "read", or the name of the `TurnoutError`."""
    try:
        graph = GraphFile.read(path)
        _ = graph.node_count, graph.external_files
        needs_unpacked(graph, "linux-x86_64")
    except TurnoutError as error:
        str(error)
        return type(error).__name__
    return "read"


# Large inputs, each of them cheap to send


def large_configs(part: int = 1) -> dict[str, bytes]:
    """Configs of a megabyte or so, divided by `part`, in which one thing is repeated."""

    def config(decoder: str, more: str = "") -> bytes:
        return f'{{"model": {{"type": "x", "decoder": {{{decoder}}}{more}}}}}'.encode()

    entry = '{"OpenVINO": {"device_type": "CPU"}}'
    stage = (
        '"s%d": {"filename": "m.onnx", "session_options": {"provider_options": [' + entry + "]}}"
    )
    stages = ", ".join(stage % index for index in range(8_000 // part))
    sections = "".join(f', "x{index}": {{"filename": "a.onnx"}}' for index in range(20_000 // part))
    scalars = "".join(f', "x{index}": {{}}' for index in range(60_000 // part))
    entries = ", ".join([entry] * (25_000 // part))
    names = ", ".join(f'{{"EP{index}": {{"a": "b"}}}}' for index in range(25_000 // part))
    keys = ", ".join(f'"k{index}": "v"' for index in range(60_000 // part))
    doubled = ", ".join('"session_options": {"a": "b"}' for _ in range(30_000 // part))
    inputs = ", ".join(['"x"'] * (200_000 // part))
    some = ", ".join(f'"k{index}": "v"' for index in range(450))
    own = ", ".join(f'"o{index}": "v"' for index in range(450))
    heirs = ", ".join(f'"s{index}": {{"filename": "m.onnx"}}' for index in range(120))
    adding = ", ".join(
        f'"s{index}": {{"inherit_session_options": true, "session_options": {{{own}}}}}'
        for index in range(60)
    )
    return {
        "stages": config(f'"pipeline": [{{{stages}}}]'),
        "stages, one list each": config('"pipeline": [' + stages.replace('"s', '{"s')
                                        .replace("]}}", "]}}}") + "]"),
        "sections": config('"filename": "m.onnx"', sections),
        "empty sections": config('"filename": "m.onnx"', scalars),
        "one entry often": config(f'"session_options": {{"provider_options": [{entries}]}}'),
        "many EPs": config(f'"session_options": {{"provider_options": [{names}]}}'),
        "session options": config(f'"session_options": {{{keys}}}'),
        "provider options": config(
            f'"session_options": {{"provider_options": [{{"OpenVINO": {{{keys}}}}}]}}'
        ),
        "doubled objects": config(doubled),
        "heirs": config(f'"session_options": {{{some}}}, "pipeline": [{{{heirs}}}]'),
        "heirs with their own": config(
            f'"session_options": {{{some}}}, "pipeline": [{{{adding}}}]'
        ),
        "inputs": config(f'"pipeline": [{{"a": {{"inputs": [{inputs}]}}}}]'),
        "a long string": config(f'"filename": "{"x" * (2_000_000 // part)}"'),
        "white space": config(" " * (2_000_000 // part)),
        "lists": b"[" * (1_000_000 // part),
        "empty lists": config('"x": [' + ", ".join(["[]"] * (300_000 // part)) + "]"),
        "a number": config(f'"x": {"9" * (1_000_000 // part)}'),
    }  # fmt: skip


def large_headers(part: int = 1) -> dict[str, bytes]:
    """ONNX files of a megabyte or so, divided by `part`, in which one thing is repeated."""
    many = 200_000 // part
    return {
        "nodes": message(7, message(1, b"") * many),
        "initializers": message(7, message(5, b"") * many),
        "inputs": message(7, message(11, b"") * many),
        "graphs": message(7, b"") * many,
        "opsets": message(8, b"") * many,
        "attributes": message(7, message(1, message(5, b"") * many)),
        "dimensions": message(7, message(5, varint(8) + b"\1") * (many // 2)),
        "rank": message(7, message(5, message(1, b"\1" * many))),
        "keys of external data": message(7, message(5, message(13, b"") * many)),
        "names": message(7, message(1, message(4, b"x" * 900)) * (many // 200)),
        "different operators": message(
            7, b"".join(message(1, message(4, b"op%d" % index)) for index in range(many // 4))
        ),
        "a long name": message(7, message(2, b"x" * (many * 10))),
        "contexts": message(7, message(1, message(4, b"EPContext")) * (many // 4)),
    }


def seeds(corpus: Path | None = None) -> list[str]:
    """Texts to mutate: configs of our own of every layout, and those of a folder."""
    from test_routing_grid import OWN

    texts = [json.dumps(document, indent=2, ensure_ascii=False) for document in OWN.values()]
    if corpus is not None:
        texts += [path.read_text("utf-8", "replace") for path in sorted(corpus.glob("*.json"))]
    return texts
