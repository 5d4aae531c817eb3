"""What jobs of quantisation do beside running their steps."""

from typing import Any

from console.jobs.copy_checks import store_damage, store_verification, trim_result, verify_payload
from console.jobs.kinds import JobHandler, register
from console.jobs.models import Job, Step
from console.quantization import services
from workers.contracts import StepKind


class QuantizerHandler(JobHandler):
    """llm-compressor comes to a host, or goes."""

    def step_succeeded(self, step: Step) -> None:
        """Note what the host has now."""
        if step.kind == StepKind.INSTALL_QUANTIZER:
            services.installed(step)
        else:
            services.removed(step)


class QuantizeHandler(JobHandler):
    """A model is made and verified."""

    def payload(self, step: Step) -> dict[str, Any]:
        """The texts go along only when they are sent; the verification is of what was made."""
        row = services.of_job(step.job)
        if step.kind == StepKind.VERIFY and row.made is not None:
            return verify_payload(row.made, launch=False)
        return {**step.payload, "prompts": row.prompts}

    def step_succeeded(self, step: Step) -> None:
        """It becomes a copy; then its verification is kept."""
        row = services.of_job(step.job)
        if step.kind == StepKind.QUANTIZE:
            services.took_files(row, step)
        elif row.made is not None:
            store_verification(row.made, step.result, job=step.job_id)
            trim_result(step)

    def job_failed(self, job: Job, step: Step) -> None:
        """What was made and is not sound is shown as damaged."""
        row = services.of_job(job)
        if step.kind == StepKind.VERIFY and row.made is not None:
            store_damage(row.made, step.failure or {}, job=job.pk)

    def before_retry(self, job: Job, step: Step) -> None:
        """The original or llm-compressor may have gone since."""
        row = services.of_job(job)
        if step.kind == StepKind.QUANTIZE and row.control is not None:
            services.refuse(row.control, row.quantizer)


def register_handlers() -> None:
    """Called once, when the app is ready."""
    register("install_quantizer", QuantizerHandler())
    register("remove_quantizer", QuantizerHandler())
    register("quantize", QuantizeHandler())
