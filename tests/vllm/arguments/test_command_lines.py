"""Pasted text of all kinds becomes the words after `vllm serve`."""

import shlex

import pytest

from workers.vllm.arguments import CheckedArguments, Surroundings, parse_command_line, schema_for

EXPECTED = "org/model --max-model-len 4096 --tensor-parallel-size 2"
FLAGS = "--max-model-len 4096 --tensor-parallel-size 2"


def parse(text: str, version: str = "0.16.0") -> CheckedArguments:
    return parse_command_line(text, schema_for(version))


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve org/model {FLAGS}",
        f"org/model {FLAGS}",
        f"serve org/model {FLAGS}",
        f"$ vllm serve org/model {FLAGS}",
        f"(venv) $ vllm serve org/model {FLAGS}",
        f"# vllm serve org/model {FLAGS}",
        f"/opt/vllm/bin/vllm serve org/model {FLAGS}",
        f"CUDA_VISIBLE_DEVICES=0,1 vllm serve org/model {FLAGS}",
        f"env A=1 vllm serve org/model {FLAGS}",
        f"nohup vllm serve org/model {FLAGS} > vllm.log 2>&1 &",
        f"vllm serve org/model {FLAGS} 2>/dev/null | tee log",
        f"cd /srv && source bin/activate; uv run vllm serve org/model {FLAGS}",
        f"numactl --cpunodebind=0 vllm serve org/model {FLAGS}",
        f"python3 -m vllm.entrypoints.openai.api_server --model org/model {FLAGS}",
        f"python -m vllm.entrypoints.cli.main serve org/model {FLAGS}",
        "vllm serve org/model \\\n    --max-model-len 4096 \\\n  --tensor-parallel-size 2\n",
        "vllm serve org/model \\   \n  --max-model-len 4096 \\\n\n  --tensor-parallel-size 2",
        "vllm serve org/model ^\r\n  --max-model-len 4096 ^\r\n  --tensor-parallel-size 2",
        "vllm serve org/model\n  --max-model-len 4096\n  --tensor-parallel-size 2",
        "# start the model\npip install vllm\nvllm serve org/model --max-model-len=4096 -tp 2\ncurl localhost:8000/health",
        "vllm serve \u201corg/model\u201d \u2014max-model-len 4096 \u2013-tensor-parallel-size 2".replace(
            "\u2013-", "--"
        ),
        "MODEL=org/model\nexport LENGTH=4096\nvllm serve $MODEL --max-model-len ${LENGTH} -tp 2",
        f"bash -lc 'vllm serve org/model {FLAGS}'",
        f"docker run --gpus all --rm -it -p 8000:8000 --ipc=host vllm/vllm-openai:v0.16.0 --model org/model {FLAGS}",
        f"sudo docker run -d -p8000:8000 -v ~/m:/m vllm/vllm-openai serve org/model {FLAGS}",
        f"docker run --runtime nvidia --entrypoint vllm img/vllm vllm serve org/model {FLAGS}",
        f"docker exec -it box vllm serve org/model {FLAGS}",
        f"podman run --device nvidia.com/gpu=all docker.io/vllm/vllm-openai:latest --model org/model {FLAGS}",
        f"[Service]\nUser=vllm\nExecStart=/opt/vllm/bin/vllm serve org/model {FLAGS}\nRestart=always",
        f"ExecStart=-/bin/bash -c 'exec vllm serve org/model {FLAGS}'",
    ],
)
def test_every_way_to_write_it_gives_the_same_arguments(text: str) -> None:
    answer = parse(text)
    assert shlex.join(answer.argv) == EXPECTED
    assert answer.findings == ()


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("A=1 vllm serve M", {"A": "1"}),
        ("export A=1\nvllm serve M", {"A": "1"}),
        ("docker run -e A=1 --env=B=2 --env C=3 vllm/vllm-openai --model M", {"A": "1", "B": "2", "C": "3"}),
        ('[Service]\nEnvironment="A=x y" B=2\nExecStart=vllm serve M', {"A": "x y", "B": "2"}),
    ],
)
def test_variables_set_for_the_engine_are_kept(text: str, environment: dict[str, str]) -> None:
    answer = parse(text)
    assert answer.model == "M"
    assert answer.environment == environment


def test_json_in_quotes_over_several_lines_stays_one_value() -> None:
    answer = parse('vllm serve M --speculative-config \'{"model": "d",\n  "num_speculative_tokens": 3}\' -tp 2')
    assert answer.values == {
        "speculative_config": {"model": "d", "num_speculative_tokens": 3},
        "tensor_parallel_size": 2,
    }


def test_json_whose_quotes_a_page_has_lost_is_mended() -> None:
    answer = parse("vllm serve M --speculative-config {model:org/d,num_speculative_tokens:3}")
    assert [finding.code for finding in answer.findings] == ["args.invalid_value"]
    assert answer.values == {"speculative_config": {"model": "org/d", "num_speculative_tokens": 3}}


def test_the_demo_server_is_explained() -> None:
    for version, severity in (("0.16.0", "warning"), ("0.32.0", "error")):
        finding = parse("python -m vllm.entrypoints.api_server --model M", version).findings[0]
        assert (finding.flag, finding.severity) == ("vllm.entrypoints.api_server", severity)
    assert parse("python -m vllm.entrypoints.openai.api_server --model M", "0.32.0").ok


def test_a_variable_nobody_set_is_an_error() -> None:
    answer = parse("vllm serve $MODEL")
    assert [finding.code for finding in answer.findings] == ["text.unknown_variable"]
    assert not answer.ok


def test_an_open_quote_is_named() -> None:
    assert parse("vllm serve 'org/model --max-model-len 4096").findings[0].code == "text.unbalanced_quotes"


def test_nothing_gives_nothing() -> None:
    assert parse("").argv == ()
    assert parse("# only a comment\n").ok


def test_a_long_context_that_the_environment_allows_is_seen_in_the_pasted_line() -> None:
    known = Surroundings(model_config={"max_position_embeddings": 1024})
    text = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve M --max-model-len 2048"
    assert parse_command_line(text, schema_for("0.32.0"), known).ok


def test_a_config_file_of_another_machine_is_left_out_and_said_to_be_unread() -> None:
    answer = parse("vllm serve M --config /etc/vllm.yaml --seed 1")
    assert [(finding.code, finding.severity) for finding in answer.findings] == [("args.config_unread", "warning")]
    assert answer.argv == ("M", "--seed", "1")
