"""Questions that several trees ask, each answered from the facts of one instance."""

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.common.spans import readable_bytes, readable_duration
from console.oncall.tree import Answer, Found
from console.oncall.tree_facts import Facts

MEMORY_CODES = (
    "memory.out_of_memory", "kv_cache.no_blocks", "kv_cache.too_small", "memory.not_enough_free", "process.killed_by_oom",
)  # fmt: skip
HIGH_UTILIZATION = 0.95
SPIKE_SEQUENCES = 256
LONG_PROMPT_FACTOR = 2.0
KV_FULL = 0.9


def yes_if(condition: bool | None, fact: str, *, next: str = "", acts: tuple[str, ...] = ()) -> Found:  # noqa: FBT001
    """Yes, no, or not known where the condition is None."""
    answer = Answer.UNKNOWN if condition is None else Answer.YES if condition else Answer.NO
    return Found(answer, fact, next, acts)


def not_known(why: str) -> Found:
    """The question can't be answered now."""
    return Found(Answer.UNKNOWN, why)


def is_memory(facts: Facts) -> bool:
    """True if the last end was one of memory, by its diagnosis or by its log."""
    code = facts.end.code if facts.end else ""
    return code.startswith(MEMORY_CODES) or facts.lines.get("out_of_memory", 0) > 0


def was_memory(facts: Facts) -> Found:
    """Did it run out of memory at all? `no` ends the tree: another one is meant."""
    if facts.end is None and not facts.lines.get("out_of_memory"):
        return Found(
            Answer.NO,
            _("No process of it has ended by itself, and its log has no line about memory."),
            _("This tree is about engines that ran out of memory. Look at the log, or choose another tree."),
            ("log",),
        )
    end = facts.end
    title = (end.title or end.code or _("no cause named")) if end else _("lines about memory in its log")
    if is_memory(facts):
        return Found(Answer.YES, title)
    return Found(
        Answer.NO,
        _("It ended by another cause: %(title)s.") % {"title": title},
        end.message if end and end.message else _("Follow the cause that its page names."),
        ("instance", "log"),
    )


def foreign_memory(facts: Facts) -> Found:
    """Is memory of its devices held by somebody else?"""
    held = _foreign(facts)
    if held is None:
        return not_known(_("The host tells nothing of its devices now."))
    total, names = held
    if not total:
        return Found(Answer.NO, _("Nobody else holds memory of its devices."))
    fact = _("%(size)s are held by others: %(names)s.") % {"size": readable_bytes(total), "names": ", ".join(names[:4])}
    return Found(
        Answer.YES, fact, _("End them on the host, or place the deployment on other devices."), ("host", "change")
    )


def leftover_memory(facts: Facts) -> Found:
    """Do processes of ours hold memory that belong to no instance which should run?"""
    if facts.live is None:
        return not_known(_("The host tells nothing of its processes now."))
    processes = [*(one for gpu in facts.live.gpus.gpus for one in gpu.processes), *facts.live.processes]
    lost = [one for one in processes if one.instance and one.instance not in facts.known_instances]
    if not lost:
        return Found(Answer.NO, _("Every process with Slipway's token belongs to an instance that should run."))
    size = readable_bytes(sum(one.memory or 0 for one in lost))
    text = ngettext("Process %(pids)s is left over and holds %(size)s.", "Processes %(pids)s are left over and hold %(size)s.",
                    len(lost)) % {"pids": ", ".join(str(one.pid) for one in lost[:6]), "size": size}  # fmt: skip
    return Found(
        Answer.YES, text,
        _("The agent ends leftovers of its own when it starts; a process in state D waits for the driver and goes with a reset "
          "of the GPU. Look at the host's page."),
        ("host",),
    )  # fmt: skip


def _foreign(facts: Facts) -> tuple[int, list[str]] | None:
    if facts.live is None:
        return None
    gpus = [gpu for gpu in facts.live.gpus.gpus if not facts.devices or gpu.uuid in facts.devices]
    found = [one for gpu in gpus for one in gpu.processes if not one.instance]
    held = [(one.memory or 0, one.name or str(one.pid)) for one in found]
    if not gpus:
        held = [(one.memory or 0, one.model or f"vLLM {one.pid}") for one in facts.live.strangers if not one.devices]
    return sum(size for size, _name in held), [name for _size, name in held]


def too_large(facts: Facts) -> Found:
    """Is what it needs more than the device has, by the plan of its start?"""
    plan = facts.plan
    if not plan.get("budget_bytes"):
        if facts.end and facts.end.code in ("kv_cache.too_small", "kv_cache.no_blocks"):
            return Found(
                Answer.YES, facts.end.message, _("Lower the context, or use more or larger GPUs."), ("change",)
            )
        return not_known(_("No start of it was planned with measured numbers."))
    need = sum(int(plan.get(name) or 0) for name in (
        "weights_bytes_per_device", "overhead_bytes", "min_kv_bytes_for_one_request"))  # fmt: skip
    budget = int(plan["budget_bytes"])
    fact = _("It needs %(need)s for weights, overhead and one request; it may use %(budget)s.") % {
        "need": readable_bytes(need), "budget": readable_bytes(budget),
    }  # fmt: skip
    return yes_if(
        need > budget, fact, acts=("change",),
        next=_("Lower --max-model-len, use a quantised model, or more GPUs: the deploy form shows what fits."),
    )  # fmt: skip


def utilization_too_high(facts: Facts) -> Found:
    """Does the engine leave too little for what it does besides its own cache?"""
    raw = facts.option("--gpu-memory-utilization")
    try:
        share = float(raw) if raw else None
    except ValueError:
        share = None
    if share is None:
        return Found(Answer.NO, _("--gpu-memory-utilization is the engine's own, which leaves some room."))
    fact = _("--gpu-memory-utilization is %(share)s.") % {"share": f"{share:g}"}
    return yes_if(
        share > HIGH_UTILIZATION, fact, acts=("change",),
        next=_("Set it to 0.90 or less: graphs, NCCL and other processes need memory that vLLM doesn't count."),
    )  # fmt: skip


def failing_prompts_are_long(facts: Facts) -> Found:
    """Do long prompts fail where short ones don't?"""
    seen = facts.requests
    if not seen.failed:
        return Found(
            Answer.NO, _("Of the newest %(count)d requests through the gateway none failed.") % {"count": seen.count}
        )
    if seen.failed_prompt is None or seen.sound_prompt is None:
        return not_known(_("%(failed)d of %(count)d requests failed; their lengths are not known.")
                         % {"failed": seen.failed, "count": seen.count})  # fmt: skip
    fact = _("Prompts that failed have %(failed)d tokens in the middle, the others %(sound)d.") % {
        "failed": seen.failed_prompt, "sound": seen.sound_prompt,
    }  # fmt: skip
    return yes_if(
        seen.failed_prompt > LONG_PROMPT_FACTOR * seen.sound_prompt, fact, acts=("change", "requests"),
        next=_("Lower --max-num-batched-tokens or the context, or refuse such prompts at the route."),
    )  # fmt: skip


def cache_is_full(facts: Facts) -> Found:
    """Is the KV cache full?"""
    usage = facts.now.kv_usage if facts.now else None
    preempted = facts.lines.get("preempted", 0)
    if usage is None and not preempted:
        return not_known(_("It tells no numbers now, and its log names no preemption."))
    parts = [_("The KV cache is used by %(share)d %%.") % {"share": round(usage * 100)}] if usage is not None else []
    if preempted:
        parts.append(ngettext("%(count)d line of its log says that a request was preempted.",
                              "%(count)d lines of its log say that requests were preempted.", preempted)
                     % {"count": preempted})  # fmt: skip
    return yes_if(
        bool((usage or 0) > KV_FULL or preempted), " ".join(parts), acts=("change",),
        next=_("Lower --max-num-seqs or the context, or add a replica: requests push each other out of the cache."),
    )  # fmt: skip


def driver_reports_errors(facts: Facts) -> Found:
    """Did the driver report an error of the device?"""
    if facts.live is None:
        return not_known(_("The host tells nothing of its devices now."))
    text = ngettext("%(count)d Xid error stands in the kernel's log.", "%(count)d Xid errors stand in the kernel's log.",
                    facts.xids) % {"count": facts.xids}  # fmt: skip
    return yes_if(
        facts.xids > 0, text, acts=("host", "drain"),
        next=_("Drain the host and look at the GPU before anything else: no setting of the engine helps here."),
    )  # fmt: skip


def files_are_damaged(facts: Facts) -> Found:
    """Are its files damaged?"""
    words = {"verified": _("verified"), "damaged": _("damaged"), "unverified": _("not verified")}
    fact = _("Its files are %(state)s.") % {"state": words.get(facts.copy_state, facts.copy_state)}
    known = {"damaged": True, "verified": False}.get(facts.copy_state)
    return yes_if(known, fact, next=_("Repair the files; what is damaged is fetched again."), acts=("copy",))


def changed_since_good(facts: Facts) -> Found:
    """Is something different from the last start that went well?"""
    if not facts.has_good_start:
        return not_known(_("No start of it ever went well, so there is nothing to compare with."))
    if not facts.changed:
        return Found(Answer.NO, _("Nothing that Slipway knows of differs from the last good start."))
    return Found(
        Answer.YES, "; ".join(facts.changed[:6]), _("Undo one thing at a time, the newest first; rolling back undoes all."),
        ("specs", "roll_back"),
    )  # fmt: skip


def control_run(facts: Facts) -> Found:
    """Do the same files answer well without the engine? `no` means that they are at fault."""
    if facts.control is None:
        text = _("No control run was made. It loads the files with transformers and asks the same question.")
        return Found(Answer.UNKNOWN, text, acts=("control_run",))
    verdict = str(facts.control.get("verdict", ""))
    if facts.control.get("sane"):
        return Found(Answer.YES, verdict)
    return Found(Answer.NO, verdict, _("The model is at fault: verify or replace its files."), ("copy", "control_run"))


def seconds(value: float | None) -> str:
    """A span in words; `not known` where it isn't."""
    return readable_duration(value) if value is not None else _("not known")
