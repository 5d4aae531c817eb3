"""Secrets never leave a host in a log line, and what is no secret stays readable."""

import json
import time

import pytest

from workers.host.secret_masking import mask_bytes, mask_text, mask_values

SECRET = "AbCd0123456789xyz"


@pytest.mark.parametrize(
    "line",
    [
        f"Using token hf_{SECRET} for the hub",
        f"headers: {{'Authorization': 'Bearer {SECRET}'}}",
        f"Authorization: Basic {SECRET}==",
        f"curl -H 'authorization: bearer {SECRET}' http://x",
        f"non-default args: {{'model': 'm', 'api_key': ['{SECRET}', '{SECRET}2'], 'port': 1}}",
        f"OPENAI_API_KEY={SECRET}",
        f"HF_TOKEN={SECRET}",
        f'{{"password": "{SECRET}", "user": "ada"}}',
        f"vllm serve m --api-key {SECRET} --port 1",
        f"['vllm', 'serve', '--api-key', '{SECRET}']",
        f"pulling https://ada:{SECRET}@git.example.com/x",
        f"redis://:{SECRET}@10.0.0.1:6379/0",
        f"GET https://cdn.example.com/x.safetensors?X-Amz-Signature={SECRET}&part=1",
        f"key sk-{SECRET} was refused",
        f"AWS_SECRET_ACCESS_KEY = '{SECRET}'",
    ],
)
def test_a_secret_is_masked_and_the_length_stays(line: str) -> None:
    masked = mask_text(line)
    assert SECRET not in masked
    assert len(masked) == len(line)
    assert mask_bytes(line.encode()) == masked.encode()


@pytest.mark.parametrize(
    "line",
    [
        "Using max_num_batched_tokens=8192, max_tokens: 128",
        "tokenizer='/models/a', tokenizer_mode=auto, eos_token_id=2, pad_token: <pad>",
        "api_key=None, hf_token=None, revision=None",
        "GPU KV cache size: 123,456 tokens; Maximum concurrency for 4,096 tokens per request: 30.14x",
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
        "Route: /v1/chat/completions, Methods: POST; http://127.0.0.1:8000/health",
        'Missing key(s) in state_dict: "lm_head.weight"',
        "torch._dynamo skip-something-task-scheduler",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert mask_text(line) == line


def test_known_secrets_are_masked_whatever_they_look_like_and_bytes_that_are_no_text_stay() -> None:
    assert mask_bytes(b"\xff said plain-word\xe2\x82", [b"plain-word"]) == b"\xff said **********\xe2\x82"


def test_reports_are_masked_in_depth() -> None:
    report = {"evidence": [{"line": 3, "text": f"token hf_{SECRET}"}], "ok": True}
    assert SECRET not in json.dumps(mask_values(report))
    assert mask_values(report)["evidence"][0]["line"] == 3


def test_two_thousand_lines_take_a_fraction_of_the_second_in_which_they_are_written() -> None:
    line = b"(EngineCore pid=1) INFO 11-29 14:00:00 [a.py:1] Avg generation throughput: 12.0 tokens/s, KV cache usage: 1.0%\n"
    began = time.process_time()
    mask_bytes(line * 2000)
    assert time.process_time() - began < 0.5
