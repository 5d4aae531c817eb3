"""What vLLM's arguments are, version by version: schema, check, form values, pasted command lines.

This is the door to the modules around it:

- `schema_for("0.32.0")`, `load_schema(path)`: the arguments one version has (`argument_schema`).
- `check_arguments(schema, words)`, `parse_command_line(text, schema)`: what doesn't hold, and the line that would do.
- `argv_from_values`, `values_from_argv`: a form's values to a command line and back.
- `essentials`, `groups`, `presets`, `guarded`, `reserved`, `search`, `changed`: what a form shows (`argument_knowledge`).
"""

from workers.vllm.argument_check import argv_from_values, check_arguments, values_from_argv
from workers.vllm.argument_config_file import with_config_file
from workers.vllm.argument_findings import CheckedArguments, Finding, Surroundings
from workers.vllm.argument_knowledge import (
    Essential,
    Group,
    Guarded,
    Preset,
    changed,
    essentials,
    groups,
    guarded,
    guarded_names,
    presets,
    reserved,
    search,
)
from workers.vllm.argument_model import ModelConfigError, ModelLimits, model_limits, read_model_config
from workers.vllm.argument_schema import (
    Argument,
    ArgumentSchema,
    SchemaError,
    load_schema,
    schema_for,
    schema_from_dump,
    shipped_versions,
)
from workers.vllm.argument_table import version_key
from workers.vllm.argument_values import RefusedValueError, Value, format_value, parse_words, value_range
from workers.vllm.command_lines import check_words, parse_command_line, read_command_line, starts_with_program

__all__ = [
    "Argument",
    "ArgumentSchema",
    "CheckedArguments",
    "Essential",
    "Finding",
    "Group",
    "Guarded",
    "ModelConfigError",
    "ModelLimits",
    "Preset",
    "RefusedValueError",
    "SchemaError",
    "Surroundings",
    "Value",
    "argv_from_values",
    "changed",
    "check_arguments",
    "check_words",
    "essentials",
    "format_value",
    "groups",
    "guarded",
    "guarded_names",
    "load_schema",
    "model_limits",
    "parse_command_line",
    "parse_words",
    "presets",
    "read_command_line",
    "read_model_config",
    "reserved",
    "schema_for",
    "schema_from_dump",
    "search",
    "shipped_versions",
    "starts_with_program",
    "value_range",
    "values_from_argv",
    "version_key",
    "with_config_file",
]
