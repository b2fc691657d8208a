"""The catalogue: every edit still fits, brings a known fault back, and touches no other kernel."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import replace

import pytest

from conformance.kernel import Output, RunOptions, UsageError, load_kernel
from conformance.properties import Observation, matches_float64
from mutation.source import ORIGINAL, ROOT, SourceMutant, catalogue, copied
from reference.inputs import make_inputs
from reference.problem import Dims, Mask, Problem, Recipe

FAULTS = tomllib.loads((ROOT / "conformance" / "faults.toml").read_text(encoding="utf-8"))["fault"]
PROBLEM = Problem(
    dims=Dims(16, 4),
    dtype="float8_e4m3fn",
    page_size=16,
    seq_lens=(6,),
    softmax_scale=192**-0.5,
    mask=Mask(causal=True),
)


@pytest.mark.parametrize("mutant", catalogue().values(), ids=lambda mutant: mutant.id)
def test_each_edit_fits_and_leaves_python(mutant):
    text = (ROOT / ORIGINAL / mutant.file).read_text(encoding="utf-8")
    changed = mutant.applied(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_an_edit_that_fits_nowhere_or_twice_is_refused():
    mutant = SourceMutant("m", "", "plan.py", "one", "two", ())
    for text in ("", "one and one"):
        with pytest.raises(ValueError, match=r"mutant m: old must stand in plan\.py once"):
            mutant.applied(text)


def test_the_catalogue_has_each_class_of_faults():
    named = {fault for mutant in catalogue().values() for fault in mutant.faults}
    assert len(catalogue()) >= 120
    assert named <= {fault["id"] for fault in FAULTS}
    assert {f["class"] for f in FAULTS if f["id"] in named} == {f["class"] for f in FAULTS}


def test_a_copy_differs_in_the_edited_file_alone(tmp_path):
    mutant = catalogue()["rank-forgotten"]
    folder = copied(mutant, tmp_path) / ORIGINAL
    assert copied(mutant, tmp_path) / ORIGINAL == folder
    source = ROOT / ORIGINAL
    names = {path.relative_to(source) for path in source.rglob("*.py")}
    assert {path.relative_to(folder) for path in folder.rglob("*.py")} == names
    changed = [n for n in names if (folder / n).read_bytes() != (source / n).read_bytes()]
    assert [str(name) for name in changed] == [mutant.file]


def test_the_host_of_a_mutant_is_its_own():
    original, mutant = load_kernel(ORIGINAL), load_kernel("mutant:workspace-without-lse")
    split = replace(PROBLEM, seq_lens=(2000,))
    want = original.plan(split, 148)
    got = mutant.plan(split, 148)
    assert mutant.name == "mutant:workspace-without-lse"
    assert got.num_splits == want.num_splits > 1
    assert got.workspace_bytes == want.workspace_bytes - 4 * 64 * want.num_splits
    assert original.plan(split, 148) == want


def test_what_a_mutant_no_longer_takes_it_is_asked_for():
    mutant = load_kernel("mutant:tokens-beyond-three-refused")
    assert mutant.supports(PROBLEM).ok
    inputs = make_inputs(PROBLEM, Recipe(), 0)
    with pytest.raises(ValueError, match="seq_len_q must be 1 or 2 or 3"):
        mutant.run(PROBLEM, inputs, RunOptions())


def holds(kernel, inputs) -> bool:
    output = kernel.run(PROBLEM, inputs, RunOptions())
    assert isinstance(output, Output)
    run = Observation(PROBLEM, kernel.algorithm, inputs, inputs, output, 1)
    return matches_float64(run).holds


def test_the_device_code_of_a_mutant_is_its_own():
    inputs = make_inputs(PROBLEM, Recipe(), 0)
    assert not holds(load_kernel("mutant:causal-dropped"), inputs)
    assert holds(load_kernel(ORIGINAL), inputs)


def test_an_unknown_mutant_is_refused():
    with pytest.raises(UsageError, match="'mutant:no-such' is none of the"):
        load_kernel("mutant:no-such")
