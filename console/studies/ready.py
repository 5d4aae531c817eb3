"""Rules of thumb that tuning guides give, as studies: what they claim stands beside what is measured here.

The guides contradict each other, and some describe engines that are gone. That is why nothing here is applied by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True)
class ReadyStudy:
    """One rule. `claims` are what guides say; `changes` are lines as `console.studies.variants` reads them.

    `load` are fields of the form that differ from its usual ones; `watch` are the measures that the claim is about.
    """

    key: str
    title: str | Promise
    claims: tuple[str | Promise, ...]
    changes: str
    load: Mapping[str, Any] = field(default_factory=dict)
    watch: tuple[str, ...] = ("output_tokens_per_second", "ttft_p95")


READY: dict[str, ReadyStudy] = {
    one.key: one
    for one in (
        ReadyStudy(
            "block_size",
            _("Block size"),
            (_("“Take the square root of the average prompt's length.”"), _("“Leave it at 16, others only cost.”")),
            "--block-size 16 | 32 | 64 | 128",
        ),
        ReadyStudy(
            "prefix_caching",
            _("Prefix caching, with a shared beginning"),
            (
                _("“Turn it off for a general API: it takes 15 percent of the memory.”"),
                _("“Turn it on where prompts begin alike: the first token comes at once.”"),
            ),
            "--enable-prefix-caching | --no-enable-prefix-caching",
            {"profile": "shared_prefix"},
            ("ttft_p50", "ttft_p95", "output_tokens_per_second"),
        ),
        ReadyStudy(
            "prefix_caching_unshared",
            _("Prefix caching, with nothing in common"),
            (_("“It costs throughput where no two prompts begin alike.”"),),
            "--enable-prefix-caching | --no-enable-prefix-caching",
            {"profile": "chat"},
        ),
        ReadyStudy(
            "eager",
            _("Eager mode, with the time to start"),
            (
                _("“Always set --enforce-eager, it is more stable, and needed for FP8.”"),
                _("“Only for debugging: it gives away the compiled graphs.”"),
            ),
            "--enforce-eager | --no-enforce-eager",
            {},
            ("start_seconds", "output_tokens_per_second", "itl_p50"),
        ),
        ReadyStudy(
            "chunked_prefill",
            _("Chunked prefill, with long prompts"),
            (_("“Turn it on, long prompts then don't hold up the others.”"), _("“Turn it off for throughput.”")),
            "--enable-chunked-prefill | --no-enable-chunked-prefill",
            {"profile": "long_prompt"},
            ("itl_p95", "ttft_p95", "output_tokens_per_second"),
        ),
        ReadyStudy(
            "max_num_seqs",
            _("Requests at once"),
            (_("“Be conservative: 128 to 192, about the tokens of a step divided by the average length.”"),),
            "--max-num-seqs 32 | 64 | 128 | 192 | 256",
            {"values": "16, 64, 256", "requests": 256},
        ),
        ReadyStudy(
            "max_num_batched_tokens",
            _("Tokens in a step"),
            (_("“Go up the ladder 2,048, 4,096, 8,192, and stop at the P95 of your prompts.”"),),
            "--max-num-batched-tokens 2048 | 4096 | 8192",
            {"profile": "long_prompt"},
        ),
        ReadyStudy(
            "kv_dtype",
            _("Type of the KV cache"),
            (_("“fp8 doubles the requests that fit, at no loss of quality.”"),),
            "--kv-cache-dtype auto | fp8",
            {},
            ("output_tokens_per_second", "ttft_p95", "quality"),
        ),
        ReadyStudy(
            "parallel",
            _("Devices for one replica, or for several"),
            (
                _("“A single device first; leftover devices run a second replica.”"),
                _("“Tensor parallel over all devices gives the lowest latency.”"),
            ),
            "--tensor-parallel-size 1 --data-parallel-size 1 | --tensor-parallel-size 2 --data-parallel-size 1 |"
            " --tensor-parallel-size 1 --data-parallel-size 2 | --tensor-parallel-size 4 --data-parallel-size 1 |"
            " --tensor-parallel-size 2 --data-parallel-size 2 | --tensor-parallel-size 8 --data-parallel-size 1",
        ),
        ReadyStudy(
            "log_stats",
            _("The engine's own statistics"),
            (_("“Set --disable-log-stats, they cost speed.”"), _("“Never: nobody can see anything then.”")),
            "--disable-log-stats | !--disable-log-stats",
        ),
    )
}
