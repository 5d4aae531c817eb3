"""The decision trees of the guides: eight symptoms, each with questions that Slipway answers itself.

One change at a time is what all of them come to: each verdict names one thing to do, and the tree can be walked again after it.
"""

from collections.abc import Mapping

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console.common.spans import readable_bytes
from console.oncall import tree_answers as answers
from console.oncall.tree import Answer, Found, Question, Tree
from console.oncall.tree_answers import not_known, seconds, yes_if
from console.oncall.tree_facts import Facts

FIRST_SECONDS = 60
"""An end within so long of being ready counts as one at the first requests."""
SLOW_FACTOR = 3.0

_NOT_OF_MEMORY = Question(gettext_lazy("Did it run out of memory?"), answers.was_memory, ends_on=Answer.NO)


def _captures_graphs(facts: Facts) -> Found:
    if facts.option("--enforce-eager") is not None:
        return Found(Answer.NO, _("--enforce-eager is set: no graphs are captured."))
    captured = facts.lines.get("captured", 0)
    ended = bool(facts.end and facts.end.ready_seconds is None)
    return yes_if(
        bool(captured) and ended, _("Its last log names the capture of graphs %(count)d times.") % {"count": captured},
        next=_("Lower --max-num-seqs or --gpu-memory-utilization, or set --enforce-eager once to prove it."),
        acts=("change",),
    )  # fmt: skip


def _profile_too_small(facts: Facts) -> Found:
    code = facts.end.code if facts.end else ""
    fact = (facts.end.title or code or _("no cause named")) if facts.end else _("it has not ended")
    return yes_if(
        code.startswith("kv_cache."), fact, acts=("change",),
        next=_("The weights fit and the cache doesn't: set the context that the log names, or give it more memory."),
    )  # fmt: skip


def _sequences(facts: Facts) -> Found:
    raw = facts.option("--max-num-seqs")
    if raw is None or not raw.isdigit():
        return Found(Answer.NO, _("--max-num-seqs is the engine's own."))
    return yes_if(
        int(raw) > answers.SPIKE_SEQUENCES, _("--max-num-seqs is %(count)s.") % {"count": raw}, acts=("change",),
        next=_("Set it to 128 and raise it step by step: each sequence needs memory for sampling besides the cache."),
    )  # fmt: skip


OOM_FIRST = Tree(
    "oom-first",
    gettext_lazy("Out of memory at the start or at the first request"),
    gettext_lazy("It doesn't come up, or ends with the first request after it has."),
    (
        _NOT_OF_MEMORY,
        Question(gettext_lazy("Does somebody else hold memory of its devices?"), answers.foreign_memory),
        Question(gettext_lazy("Is memory left over from an earlier process?"), answers.leftover_memory),
        Question(gettext_lazy("Is it too large for the device?"), answers.too_large),
        Question(gettext_lazy("Do the weights fit, and only the cache doesn't?"), _profile_too_small),
        Question(gettext_lazy("Does it end while graphs are captured?"), _captures_graphs),
        Question(gettext_lazy("Does --gpu-memory-utilization leave too little?"), answers.utilization_too_high),
        Question(gettext_lazy("Are very many sequences allowed at once?"), _sequences),
    ),
    gettext_lazy(
        "None of the usual causes. Halve the context and start again: if it comes up, raise it until it doesn't."
    ),
    ("change", "log"),
)


def _later(facts: Facts) -> Found:
    if facts.end is None or facts.end.ready_seconds is None:
        return Found(
            Answer.NO,
            _("It was not ready before it ended."),
            _("Use the tree for the start and the first request."),
            ("log",),
        )
    fact = _("It was ready for %(ready)s before it ended.") % {"ready": seconds(facts.end.ready_seconds)}
    return Found(
        Answer.YES if facts.end.ready_seconds > FIRST_SECONDS else Answer.NO, fact,
        _("That is the first request rather than later: use the tree for the start."), ("log",),
    )  # fmt: skip


def _repeats_itself(facts: Facts) -> Found:
    return yes_if(
        facts.ends_today > 1, _("It ended by itself %(count)d times in the last 24 h.") % {"count": facts.ends_today},
        next=_("It comes back: memory grows with time. Restart it daily as a stopgap, and use another engine version."),
        acts=("restart", "change"),
    )  # fmt: skip


def _host_memory(facts: Facts) -> Found:
    code = facts.end.code if facts.end else ""
    exit_code = facts.end.exit_code if facts.end else None
    is_killed = code == "process.killed_by_oom" or (exit_code == -9 and not code)
    return yes_if(
        is_killed, _("Exit code %(code)s; diagnosis: %(title)s.") % {
            "code": "–" if exit_code is None else exit_code, "title": (facts.end.title if facts.end else "") or "–",
        },
        next=_("The kernel ended it for want of RAM, not of GPU memory: lower the CPU swap or offload, or add RAM."),
        acts=("host", "change"),
    )  # fmt: skip


OOM_LATER = Tree(
    "oom-later",
    gettext_lazy("Out of memory after ten minutes"),
    gettext_lazy("It serves for a while, and then ends for want of memory."),
    (
        _NOT_OF_MEMORY,
        Question(gettext_lazy("Had it been serving for a while?"), _later, ends_on=Answer.NO),
        Question(gettext_lazy("Was it the host's RAM?"), _host_memory),
        Question(gettext_lazy("Has somebody else taken memory since?"), answers.foreign_memory),
        Question(gettext_lazy("Is the KV cache full?"), answers.cache_is_full),
        Question(gettext_lazy("Are longer prompts the ones that fail?"), answers.failing_prompts_are_long),
        Question(gettext_lazy("Does --gpu-memory-utilization leave too little?"), answers.utilization_too_high),
        Question(gettext_lazy("Has the driver reported errors?"), answers.driver_reports_errors),
        Question(gettext_lazy("Does it happen again and again?"), _repeats_itself),
    ),
    gettext_lazy("Once, and no cause to be seen. Watch memory of its devices on the dashboard until it happens again."),
    ("dashboard", "log"),
)

OOM_SOME = Tree(
    "oom-some",
    gettext_lazy("Out of memory on some requests"),
    gettext_lazy("Most requests are answered; some end the engine, or fail."),
    (
        Question(gettext_lazy("Are the prompts that fail longer?"), answers.failing_prompts_are_long),
        Question(gettext_lazy("Is the KV cache full when it happens?"), answers.cache_is_full),
        Question(gettext_lazy("Are very many sequences allowed at once?"), _sequences),
        Question(gettext_lazy("Does --gpu-memory-utilization leave too little?"), answers.utilization_too_high),
        Question(gettext_lazy("Does somebody else hold memory of its devices?"), answers.foreign_memory),
    ),
    gettext_lazy("No pattern in what failed. Look at the requests that failed, and send one of them again alone."),
    ("requests", "log"),
)


def _is_silent(facts: Facts) -> Found:
    fact = _("Its host is silent.") if facts.is_unknown else _("Its host is heard of.")
    return yes_if(
        facts.is_unknown, fact, acts=("host",),
        next=_("It isn't known whether it hangs: reach the machine first. Engines go on without the console."),
    )  # fmt: skip


def _has_ended(facts: Facts) -> Found:
    ended = facts.state in ("crashed", "stopped") and not facts.hung
    return yes_if(
        ended, _("Its state is %(state)s.") % {"state": facts.state}, acts=("instance", "log"),
        next=_("It doesn't run, so it doesn't hang: follow the cause that its page names."),
    )  # fmt: skip


def _is_starting(facts: Facts) -> Found:
    starting = facts.state in ("starting", "loading", "validating", "warming", "restarting")
    return yes_if(
        starting, _("Its state is %(state)s.") % {"state": facts.state}, acts=("log",),
        next=_("It is coming up, not hanging: follow its log. A start that never ends is ended at its deadline."),
    )  # fmt: skip


def _is_busy(facts: Facts) -> Found:
    now = facts.now
    if now is None or now.running is None:
        return not_known(_("It tells no numbers now."))
    fact = _("%(running)d requests run, %(waiting)d wait, %(tokens).1f tokens per second come out.") % {
        "running": now.running, "waiting": now.waiting or 0, "tokens": now.generation_tokens or 0,
    }  # fmt: skip
    return yes_if(
        now.running > 0 and (now.generation_tokens or 0) > 0, fact, acts=("dashboard", "change"),
        next=_("It is busy, not hung: tokens come. Add a replica, or let fewer requests in at the route."),
    )  # fmt: skip


def _known_hung(facts: Facts) -> Found:
    dumped = facts.lines.get("dumped", 0)
    fact = (
        _("The agent found no token for the time that is set.") if facts.hung else _("The agent has not found it hung.")
    )
    if dumped:
        fact += " " + _("A stack dump stands in the log.")
    text = (
        _("The stack dump in its log shows where each process waits. The agent has restarted it by its policy.")
        if dumped
        else _("The agent restarts it by its policy. Keep the log: it says what each process did last.")
    )
    return yes_if(facts.hung, fact, next=text, acts=("log", "restart"))


def _shared_memory(facts: Facts) -> Found:
    free = facts.live.shm_free if facts.live else None
    lines = facts.lines.get("shm", 0)
    if free is None and not lines:
        return not_known(_("The host doesn't tell how much shared memory is free."))
    fact = _("%(free)s of /dev/shm are free; %(lines)d lines of the log name it.") % {
        "free": readable_bytes(free) if free is not None else "–", "lines": lines,
    }  # fmt: skip
    return yes_if(
        (free is not None and free < 64 * 2**20) or lines > 0, fact, acts=("host", "restart"),
        next=_("Processes of one engine talk through shared memory: make room in /dev/shm and restart."),
    )  # fmt: skip


def _between_gpus(facts: Facts) -> Found:
    raw = facts.option("--tensor-parallel-size") or facts.option("-tp") or "1"
    lines = facts.lines.get("nccl", 0)
    code = facts.end.code if facts.end else ""
    fact = _("--tensor-parallel-size is %(count)s; lines of its log that name NCCL: %(lines)d.") % {
        "count": raw, "lines": lines,
    }  # fmt: skip
    is_it = raw.isdigit() and int(raw) > 1 and (code.startswith("nccl.") or lines > 0)
    return yes_if(
        is_it, fact, acts=("change", "log"),
        next=_("Start it once with --disable-custom-all-reduce; if it still hangs, with one GPU."),
    )  # fmt: skip


HANG = Tree(
    "hang",
    gettext_lazy("It hangs"),
    gettext_lazy("Requests get no answer, and it has not ended."),
    (
        Question(gettext_lazy("Is its host silent?"), _is_silent),
        Question(gettext_lazy("Has it ended?"), _has_ended),
        Question(gettext_lazy("Is it still coming up?"), _is_starting),
        Question(gettext_lazy("Is it only busy?"), _is_busy),
        Question(gettext_lazy("Has the agent found it hung?"), _known_hung),
        Question(gettext_lazy("Has the driver reported errors?"), answers.driver_reports_errors),
        Question(gettext_lazy("Is shared memory used up?"), _shared_memory),
        Question(gettext_lazy("Do its GPUs wait for each other?"), _between_gpus),
    ),
    gettext_lazy(
        "Nothing says that it hangs. Ask it in the playground; look at the route and the gateway if it answers there."
    ),
    ("playground", "routes"),
)


def _was_cold(facts: Facts) -> Found:
    seen = facts.requests
    if seen.first_ttft_ms is None or seen.usual_ttft_ms is None:
        return not_known(_("Too few requests since the last start to compare the first one with."))
    fact = _("The first request's first token took %(first)d ms, the others' %(usual)d ms in the middle.") % {
        "first": seen.first_ttft_ms, "usual": seen.usual_ttft_ms,
    }  # fmt: skip
    slow = seen.first_ttft_ms > SLOW_FACTOR * seen.usual_ttft_ms
    return Found(
        Answer.YES if slow else Answer.NO,
        fact,
        _("The first request is as fast as the others: nothing to be done."),
        (),
    )


def _warmed(facts: Facts) -> Found:
    if not facts.warmup:
        return Found(
            Answer.NO, _("No warm-up of it is known."),
            _("Restart it by Slipway: it gets no traffic before it is warm."), ("restart",),
        )  # fmt: skip
    stable, rounds = bool(facts.warmup.get("stable", True)), len(facts.warmup.get("rounds") or [])
    fact = _("After %(rounds)d rounds the first token took %(ms)d ms; it %(stable)s.") % {
        "rounds": rounds, "ms": float(facts.warmup.get("ttft_seconds") or 0) * 1000,
        "stable": _("was stable") if stable else _("still changed"),
    }  # fmt: skip
    return Found(
        Answer.YES if stable else Answer.NO, fact,
        _("Give it warm-up prompts like the ones that it gets, so that its shapes are compiled before."), ("change",),
    )  # fmt: skip


def _compiles(facts: Facts) -> Found:
    compiled = facts.lines.get("compiled", 0)
    return yes_if(
        compiled > 0 and facts.option("--enforce-eager") is None,
        _("Its log names compilation %(count)d times.") % {"count": compiled},
        next=_("Shapes are compiled at first use: keep the compile cache, and warm it up with long and short prompts."),
        acts=("change", "log"),
    )  # fmt: skip


def _queues(facts: Facts) -> Found:
    now = facts.now
    if now is None or now.waiting is None:
        return not_known(_("It tells no numbers now."))
    return yes_if(
        now.waiting > 0, _("%(waiting)d requests wait for their turn.") % {"waiting": now.waiting}, acts=("dashboard",),
        next=_("They wait for others, not for the first token: add a replica or raise --max-num-seqs."),
    )  # fmt: skip


SLOW_FIRST = Tree(
    "slow-first",
    gettext_lazy("The first request is slow"),
    gettext_lazy("After a start, or after a pause, the first answer takes much longer than the next ones."),
    (
        Question(gettext_lazy("Is the first request slower than the others?"), _was_cold, ends_on=Answer.NO),
        Question(gettext_lazy("Was it warmed up until it was stable?"), _warmed, ends_on=Answer.NO),
        Question(gettext_lazy("Do requests queue?"), _queues),
        Question(gettext_lazy("Is something compiled at first use?"), _compiles),
    ),
    gettext_lazy(
        "It was warm. Give the warm-up prompts as long as the first real ones, and a target for the first token."
    ),
    ("change",),
)


def _repeats(facts: Facts) -> Found:
    outcome = facts.check("repeats")
    fact = str(facts.checks.get("repeats", {}).get("fact", "")) or _("It was not asked the same thing several times.")
    known = {"failed": True, "warning": True, "ok": False}.get(outcome)
    found = yes_if(known, fact)
    return found if known is not False else Found(
        Answer.NO, fact, _("At temperature 0 it gives the same answer: what differs are sampling settings of the requests."), ()
    )  # fmt: skip


def _prefix_or_batch(facts: Facts) -> Found:
    fact = str(facts.checks.get("repeats", {}).get("next", ""))
    is_explained = facts.check("repeats") == "warning"
    return yes_if(
        is_explained, fact or _("The validation gave no reason."), acts=("instance",),
        next=_("The difference is explained: close calls between two tokens change with the batch. It is no fault."),
    )  # fmt: skip


def _custom_all_reduce(facts: Facts) -> Found:
    raw = facts.option("--tensor-parallel-size") or facts.option("-tp") or "1"
    several = raw.isdigit() and int(raw) > 1
    is_off = facts.option("--disable-custom-all-reduce") is not None
    fact = _("--tensor-parallel-size is %(count)s, custom all-reduce is %(state)s.") % {
        "count": raw, "state": _("off") if is_off else _("on"),
    }  # fmt: skip
    return yes_if(
        several and not is_off, fact, acts=("change",),
        next=_("Set --disable-custom-all-reduce and compare again: it is a known cause where GPUs aren't linked well."),
    )  # fmt: skip


def _golden_differs(facts: Facts) -> Found:
    outcome = facts.check("golden")
    if outcome in ("", "skipped"):
        return not_known(
            _("%(count)d golden answers are kept; the last start was not compared.") % {"count": facts.goldens}
        )
    fact = str(facts.checks["golden"].get("fact", ""))
    return yes_if(
        outcome in ("failed", "warning"), fact, acts=("instance", "change"),
        next=_("The engine answers differently from the one before: go back to it, or accept the new answer as golden."),
    )  # fmt: skip


INCONSISTENT = Tree(
    "inconsistent",
    gettext_lazy("Answers are inconsistent"),
    gettext_lazy("The same question is answered differently, or differently from before."),
    (
        Question(gettext_lazy("Does it differ at temperature 0?"), _repeats, ends_on=Answer.NO),
        Question(gettext_lazy("Is the difference explained?"), _prefix_or_batch),
        Question(gettext_lazy("Does it differ from the golden answer?"), _golden_differs),
        Question(gettext_lazy("Has something changed since the last good start?"), answers.changed_since_good),
        Question(gettext_lazy("Do several GPUs add up their parts by custom all-reduce?"), _custom_all_reduce),
        Question(gettext_lazy("Are its files damaged?"), answers.files_are_damaged),
        Question(gettext_lazy("Do the files answer well without the engine?"), answers.control_run, ends_on=Answer.NO),
    ),
    gettext_lazy(
        "Compare with the unquantised model, or with another engine version beside this one, on the same question."
    ),
    ("control_run", "change"),
)


def _stuck(facts: Facts) -> Found:
    gpus = facts.live.gpus.gpus if facts.live else []
    used = sum(gpu.memory_used or 0 for gpu in gpus)
    named = sum(one.memory or 0 for gpu in gpus for one in gpu.processes) + sum(
        gpu.memory_reserved or 0 for gpu in gpus
    )
    if facts.live is None or not gpus:
        return not_known(_("The host has no GPU that tells of its memory."))
    rest = max(0, used - named)
    fact = _("%(rest)s of GPU memory belong to no process that can be seen.") % {"rest": readable_bytes(rest)}
    return yes_if(
        rest > 2**30, fact, acts=("host", "drain"),
        next=_("The driver holds it for a process that is gone, or one in a container: drain the host and reset the GPU."),
    )  # fmt: skip


LEFTOVER = Tree(
    "leftover",
    gettext_lazy("Memory is left over after a crash"),
    gettext_lazy("It has ended, and the device's memory isn't back."),
    (
        Question(gettext_lazy("Are processes of ours left over?"), answers.leftover_memory),
        Question(gettext_lazy("Does somebody else hold memory of its devices?"), answers.foreign_memory),
        Question(gettext_lazy("Is memory held by nobody?"), _stuck),
        Question(gettext_lazy("Has the driver reported errors?"), answers.driver_reports_errors),
    ),
    gettext_lazy("All memory belongs to somebody who should have it."),
    ("host",),
)


def _template_or_tokenizer(facts: Facts) -> Found:
    bad = [name for name in ("tokenizer", "template") if facts.check(name) == "failed"]
    if not facts.checks:
        return not_known(_("It was not validated."))
    return yes_if(
        bool(bad), _("Failed: %(names)s.") % {"names": ", ".join(bad)} if bad else _("Tokenizer and template answer."),
        next=_("The model's directory is at fault: complete tokenizer and chat template, and verify it."), acts=("copy",),
    )  # fmt: skip


def _sane_answer(facts: Facts) -> Found:
    outcome = facts.check("question")
    if not outcome or outcome == "skipped":
        return not_known(_("It was not asked its test question."))
    return Found(
        Answer.YES if outcome == "ok" else Answer.NO, str(facts.checks["question"].get("fact", "")),
        _("The files are fine and the engine answers badly: use another engine version."), ("change",),
    )  # fmt: skip


def _quantised(facts: Facts) -> Found:
    fact = _("Its weights are quantised.") if facts.quantised else _("Its weights are not quantised.")
    is_bad = facts.check("question") == "failed"
    return yes_if(
        facts.quantised and is_bad, fact, acts=("control_run",),
        next=_("Ask the unquantised model the same: if that is sane, the quantisation is at fault."),
    )  # fmt: skip


def _fails_to_run(facts: Facts) -> Found:
    if facts.end is None:
        return Found(Answer.NO, _("No process of it has ended by itself."))
    return yes_if(
        facts.state in ("crashed", "unhealthy", "restarting"),
        facts.end.title or facts.end.message or facts.end.code or _("no cause named"), acts=("instance", "log"),
        next=_("The deployment is at fault: it doesn't run. Follow the cause that its page names."),
    )  # fmt: skip


WHOSE_FAULT = Tree(
    "whose-fault",
    gettext_lazy("Is the deployment at fault, or the model?"),
    gettext_lazy("The answers are bad, off topic or garbled, and it isn't clear whom to call."),
    (
        Question(gettext_lazy("Does it fail to run at all?"), _fails_to_run),
        Question(gettext_lazy("Are its files damaged?"), answers.files_are_damaged),
        Question(gettext_lazy("Did tokenizer or template fail?"), _template_or_tokenizer),
        Question(gettext_lazy("Did something change since it was good?"), answers.changed_since_good),
        Question(gettext_lazy("Is it quantised, and its answer bad?"), _quantised),
        Question(gettext_lazy("Do the files answer well without the engine?"), answers.control_run, ends_on=Answer.NO),
        Question(gettext_lazy("Was its test question answered well?"), _sane_answer, ends_on=Answer.NO),
    ),
    gettext_lazy(
        "Deployment and files are sound. What is left is the model itself, the prompt, or sampling settings of the client."
    ),
    ("playground", "control_run"),
)

TREES: Mapping[str, Tree] = {
    tree.key: tree for tree in (OOM_FIRST, OOM_LATER, OOM_SOME, HANG, SLOW_FIRST, INCONSISTENT, LEFTOVER, WHOSE_FAULT)
}
