"""Ready-to-paste calls of a deployment's endpoint, and the differences between two specs."""

import json
import shlex

from console.deployments import services
from console.deployments.models import Spec

HIDDEN_KEY = "$SLIPWAY_KEY"
"""Stands where the key is not shown: a shell takes it from the environment."""
QUESTION = "What is the capital of France?"


def curl(endpoint: services.Endpoint, *, key: str) -> str:
    """A chat completion by curl."""
    body = json.dumps(
        {"model": endpoint.model, "messages": [{"role": "user", "content": QUESTION}]}, ensure_ascii=False
    )
    return (
        f"curl {shlex.quote(endpoint.url + '/v1/chat/completions')} \\\n"
        f'  -H "Authorization: Bearer {key}" \\\n'
        f'  -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(body)}"
    )


def openai_python(endpoint: services.Endpoint, *, key: str) -> str:
    """The same by the openai package."""
    shown = 'os.environ["SLIPWAY_KEY"]' if key == HIDDEN_KEY else json.dumps(key)
    head = "import os\n\nfrom openai import OpenAI" if key == HIDDEN_KEY else "from openai import OpenAI"
    return (
        f"{head}\n\n"
        f"client = OpenAI(base_url={json.dumps(endpoint.url + '/v1')}, api_key={shown})\n"
        f"answer = client.chat.completions.create(\n"
        f"    model={json.dumps(endpoint.model)},\n"
        f'    messages=[{{"role": "user", "content": {json.dumps(QUESTION)}}}],\n'
        f")\n"
        f"print(answer.choices[0].message.content)"
    )


def spec_lines(spec: Spec) -> list[str]:
    """A spec as lines, one fact each, so that two of them can be compared."""
    lines = [
        f"model        {spec.copy.revision.model}",
        f"revision     {spec.copy.revision.commit}",
        f"path         {spec.copy.path}",
        f"engine       {spec.engine}",
        f"host         {spec.host}",
        f"port         {spec.port or 'automatic'}",
        f"deadline     {spec.start_deadline_seconds:g} s",
        *[f"restart      {name} {value}" for name, value in sorted(spec.restart.items())],
        *[f"probe        {name} {value}" for name, value in sorted(spec.probe.items()) if value],
        *[f"gate         {name} {json.dumps(value, sort_keys=True)}" for name, value in sorted(spec.gate.items())],
        *[f"environment  {name}={value}" for name, value in sorted(spec.environment.items())],
    ]
    return lines + [f"argument     {text}" for text in grouped(spec.arguments)]


def grouped(arguments: list[str]) -> list[str]:
    """Words of argv with each flag's values on its line."""
    lines: list[str] = []
    for word in arguments:
        if word.startswith("-") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def command(spec: Spec) -> str:
    """The command of a spec on several lines, ready to be read and copied."""
    return folded(services.command_line(spec))


def folded(argv: list[str]) -> str:
    """A command with one flag a line, joined by backslashes: what runs is the argv, this is for people."""
    return " \\\n  ".join(_lines(argv))


def _lines(argv: list[str]) -> list[str]:
    head = " ".join(shlex.quote(word) for word in argv[:3])
    return [head, *grouped(argv[3:])]
