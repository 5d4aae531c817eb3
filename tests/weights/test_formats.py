"""GGUF headers, the FP8 bookkeeping of one guide, and chat templates."""

import json
import struct

import jinja2
import jinja2.ext
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.weights import build
from workers.weights.findings import Severity
from workers.weights.jinja import TemplateError, check_template
from workers.weights.verification import verify_directory

ONE = "model.safetensors"


def found(folder):
    return [(item.code, item.file) for item in verify_directory(folder).findings]


def text(value):
    return struct.pack("<Q", len(value)) + value


def gguf(*, magic=b"GGUF", version=3, offset=0, tensors=1, data=64):
    entries = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    entries += text(b"tokens") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"b")
    entries += text(b"scores") + struct.pack("<IIQ", 9, 6, 3) + bytes(12)
    info = text(b"blk.0.w") + struct.pack("<IQQIQ", 2, 4, 4, 0, offset)
    head = magic + struct.pack("<IQQ", version, tensors, 3) + entries + info
    return head + bytes(-len(head) % 32) + bytes(data)


def test_a_gguf_file_is_recognised_and_what_it_needs_is_named(tmp_path):
    (tmp_path / "m.gguf").write_bytes(gguf())
    (finding,) = verify_directory(tmp_path).findings
    assert (finding.code, finding.severity) == ("weights.gguf", Severity.INFO)
    assert "llama" in finding.message
    assert "0.23" in finding.fix
    assert "plugin" in finding.fix


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (gguf(magic=b"GGML"), "weights.header_invalid"),
        (gguf(version=9), "weights.header_invalid"),
        (gguf(tensors=2**60), "weights.header_invalid"),
        (gguf()[:100], "weights.truncated"),
        (gguf(offset=64), "weights.truncated"),
        (b"", "weights.truncated"),
    ],
)
def test_a_damaged_gguf_header(tmp_path, content, code):
    (tmp_path / "m.gguf").write_bytes(content)
    assert found(tmp_path) == [(code, "m.gguf")]


@given(st.binary(max_size=120))
@settings(max_examples=100, deadline=None)
def test_any_bytes_as_gguf_are_survived(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("gguf")
    (folder / "m.gguf").write_bytes(b"GGUF" + content)
    verify_directory(folder)


def with_legend(folder, table, places):
    tensors = build.tensors_of("qwen3")
    metadata = {"format": "pt", "__vllm_fp8_scale_table__": table}
    (folder / ONE).write_bytes(build.safetensors_bytes(tensors, metadata))
    build.write_json(folder / "block_index_map.json", places)
    (folder / "blocks.bin.data").write_bytes(b"xxxxGMMAyyyy")


@pytest.fixture
def model(tmp_path):
    return build.make_model(tmp_path / "model")


NAME = "model.layers.0.mlp.up_proj.weight"
BLOCK = {"file": "blocks.bin.data", "offset": 4, "size": 8, "tensor": NAME}


def test_the_guides_bookkeeping_is_checked_and_said_to_be_unused(model):
    with_legend(model, json.dumps({NAME: [0.5, 1.0]}), {"0": BLOCK})
    findings = verify_directory(model).findings
    assert {(item.code, item.file) for item in findings} == {
        ("guide_format.sound", "block_index_map.json"),
        ("guide_format.sound", ONE),
    }
    assert all("vLLM itself doesn't use it" in item.message for item in findings)


@pytest.mark.parametrize(
    ("table", "places", "file"),
    [
        (json.dumps({NAME: [0.0]}), {"0": BLOCK}, ONE),
        (json.dumps({"nobody": 1.0}), {"0": BLOCK}, ONE),
        ("{", {"0": BLOCK}, ONE),
        (json.dumps({NAME: 1.0}), {"0": {**BLOCK, "offset": 0}}, "block_index_map.json"),
        (json.dumps({NAME: 1.0}), {"0": {**BLOCK, "offset": 99}}, "block_index_map.json"),
        (json.dumps({NAME: 1.0}), {"0": {**BLOCK, "file": "gone.bin"}}, "block_index_map.json"),
        (json.dumps({NAME: 1.0}), {"0": {**BLOCK, "tensor": "nobody"}}, "block_index_map.json"),
        (json.dumps({NAME: 1.0}), [], "block_index_map.json"),
    ],
)
def test_broken_bookkeeping_is_a_warning(model, table, places, file):
    with_legend(model, table, places)
    assert ("guide_format.broken", file) in found(model)
    assert verify_directory(model).ok


def test_a_file_that_starts_with_the_magic_is_no_safetensors_file(model):
    (model / ONE).write_bytes(b"GMMA" + b"\xff" * 60)
    assert set(found(model)) == {("weights.header_invalid", ONE), ("guide_format.broken", ONE)}


GOOD = [
    build.TEMPLATE,
    "{%- set ns = namespace(a=0, b=[]) -%}{%- for m in x[1:] if m.role != 'x' %}{{- ns.a + loop.index0 }}{% endfor %}",
    "{% if tools is defined and tools is none %}{{ tools | map(attribute='function') | list | tojson(indent=4) }}{% endif %}",
    "{% macro f(a, b=none) %}{{ a ~ b }}{% endmacro %}{{ f(1, b={'x': [1, 2], 'y': (3,)}) }}",
    "{% set x %}text{% endset %}{# a %} comment {{ #}{% raw %}{{ }{% endraw %}{% generation %}{{ x }}{% endgeneration %}",
    "{{ a if b else c }}{{ 'it''s' }}{{ \"}}\" }}{% for a, b in c.items() %}{% else %}{% endfor %}{% break %}",
    "{{ x[-1]['y'].z[::-1] }}{{ not a in b or c is sameas d }}{{ 1_000 // 2 ** 3 % 4 }}{{ f(*a, **b) }}",
    "{% call(user) g() %}{% endcall %}{% filter upper %}x{% endfilter %}{% with a = 1 %}{% endwith %}{{ - 1 }}",
]
BAD = [
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if a %}{% endfor %}{% endif %}",
    "{{ a ",
    "{{ 'a }}",
    "{{ a['b' }}",
    "{{ a + }}",
    "{{ }}",
    "{% if %}{% endif %}",
    "{% unknown %}",
    "{% else %}",
    "{{ a b }}",
    "{# never closed",
    "{% raw %}",
    "{% for in x %}{% endfor %}",
    "{% set = 1 %}",
    "{{ {'a' 1} }}",
    "{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}",
]


class _Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


REFERENCE = jinja2.Environment(extensions=["jinja2.ext.loopcontrols", _Generation])  # Only parsed, never rendered.


@pytest.mark.parametrize("source", GOOD)
def test_a_template_that_jinja_takes_is_taken(source):
    REFERENCE.parse(source)
    check_template(source)


@pytest.mark.parametrize("source", BAD)
def test_a_template_that_jinja_refuses_is_refused(source):
    with pytest.raises(TemplateError):
        check_template(source)


@given(st.sampled_from(GOOD), st.data())
@settings(max_examples=150, deadline=None)
def test_a_template_with_a_lost_letter_is_judged_as_jinja_does(source, data):
    at = data.draw(st.integers(0, len(source) - 1))
    broken = source[:at] + source[at + 1 :]
    try:
        REFERENCE.parse(broken)
    except jinja2.TemplateSyntaxError:
        return
    check_template(broken)
