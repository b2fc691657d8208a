"""Properties that compare several runs: the same question asked in two ways has one answer.

A relation needs no oracle, or needs it for a bound only. So it sees what an oracle shares with a
kernel, and it says bit for bit where an oracle says within a bound. Each is a function from a call,
its output and a way to run other calls to a finding, or to None where it says nothing about the
call. Its docstring names the faults of docs/faults.md that it kills.

"Equal" is bit for bit wherever the kernel has the same sums to make in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from conformance.properties import PROPERTY_NAMES, REFUSED_OR_RIGHT
from conformance.relations.batch import (
    a_request_is_as_good_alone,
    a_request_may_come_twice,
    batch_may_be_reversed,
    heads_may_be_reversed,
    tokens_are_single_calls,
)
from conformance.relations.cache import (
    any_page_size_is_right,
    pages_may_lie_anywhere,
    pools_may_be_large,
    the_right_keys_are_seen,
    unseen_slots_do_not_matter,
)
from conformance.relations.calls import (
    a_repetition_is_equal,
    an_early_launch_changes_nothing,
    calls_leave_no_trace,
    max_seq_len_is_a_hint,
    output_scale_is_a_factor,
)
from conformance.relations.division import (
    any_number_of_sms_will_do,
    any_number_of_splits_is_right,
    ranks_merge_to_the_whole,
)
from conformance.relations.gpu import (
    a_graph_replays_with_other_lengths,
    any_stream_will_do,
    two_hundred_repetitions_are_equal,
)
from conformance.relations.host import (
    an_empty_batch_is_empty,
    contradictions_are_refused,
    outputs_may_be_left_to_the_kernel,
    the_plan_fits,
)
from conformance.relations.overlap import what_may_overlap_waits_first
from conformance.relations.question import Call, First, Relation, Run
from conformance.relations.watched import every_access_is_ordered

__all__ = [
    "GPU_RELATIONS",
    "JUDGED",
    "RELATIONS",
    "RELATION_NAMES",
    "Call",
    "First",
    "Relation",
    "Run",
]

GPU_RELATIONS: Mapping[str, Relation] = MappingProxyType(
    {
        relation.__name__: relation
        for relation in (
            a_graph_replays_with_other_lengths, any_stream_will_do,
            two_hundred_repetitions_are_equal,
        )
    }
)  # fmt: skip
"""Those that are skipped without a GPU."""

RELATIONS: Mapping[str, Relation] = MappingProxyType(
    {
        relation.__name__: relation
        for relation in (
            every_access_is_ordered, any_page_size_is_right, pages_may_lie_anywhere,
            unseen_slots_do_not_matter, batch_may_be_reversed, a_request_is_as_good_alone,
            a_request_may_come_twice, heads_may_be_reversed, any_number_of_splits_is_right,
            tokens_are_single_calls, ranks_merge_to_the_whole, output_scale_is_a_factor,
            max_seq_len_is_a_hint, a_repetition_is_equal, calls_leave_no_trace, pools_may_be_large,
            the_right_keys_are_seen, any_number_of_sms_will_do, an_early_launch_changes_nothing,
            outputs_may_be_left_to_the_kernel, contradictions_are_refused, an_empty_batch_is_empty,
            the_plan_fits, what_may_overlap_waits_first,
        )
    }
    | dict(GPU_RELATIONS)
)  # fmt: skip
RELATION_NAMES = tuple(RELATIONS)
JUDGED = (*PROPERTY_NAMES, *RELATION_NAMES, REFUSED_OR_RIGHT)  # all that a case can name
