"""Who does what when: by kernels whose schedule is known, and by the rules of the trace format."""

import itertools
import json
import xml.etree.ElementTree as ET
from collections import defaultdict

import pytest

from simulator.drawing import AXIS, WIDTH, chrome_trace, description, svg
from simulator.launch import Extent, Tensor, launch_kernel
from simulator.policy import Policy
from simulator.timeline import RUN, WAIT, Recorders, Slice, Timeline
from tests.simulator.ptx_text import aligned, module

# Warp 0 counts to 40 before it arrives; warp 1 waits for it. %r0 is the warp.
HANDSHAKE = """
    shr.u32 %r0, %idx, 5; setp.eq.u32 %p0, %r0, 1; @%p0 bra MEET;
    mov.u32 %r1, 0;
    COUNT: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 40; @%p1 bra COUNT;
    MEET: bar.sync 0;"""
# Each lane copies 16 bytes and then counts: with a policy that completes late, both at once.
COPY = """
    ld.param.u64 %rd1, [data]; cvt.u64.u32 %rd2, %lane; mad.lo.u64 %rd1, %rd2, 16, %rd1;
    mov.u32 %r1, smem; shl.b32 %r2, %lane, 4; add.u32 %r1, %r1, %r2;
    cp.async.cg.shared.global [%r1], [%rd1], 16; cp.async.commit_group;
    mov.u32 %r3, 0;
    COUNT: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 40; @%p1 bra COUNT;
    cp.async.wait_group 0;"""


def recorded(body: str, *, clusters: int = 1, policy: str = "late", **extent) -> list[Timeline]:
    watch = Recorders(clusters)
    arguments = [Tensor.of(aligned(128, "uint32"), "data")]
    text = module(body, [".param .u64 data"])
    size = Extent(**{"block": (64, 1, 1), "dynamic_shared_bytes": 1024, **extent})
    launch_kernel(text, size, arguments, policy=Policy(policy), watch=watch)
    return list(watch.timelines)


def of(timeline: Timeline, track: str, kind: str) -> list[Slice]:
    return [s for s in timeline.slices if (s.track, s.kind) == (track, kind)]


def test_a_warp_waits_for_as_long_as_the_other_counts() -> None:
    (timeline,) = recorded(HANDSHAKE)
    (wait,) = of(timeline, "warp 1", WAIT)
    assert wait.name.startswith("waits for the opening of barrier 0")
    (counts, *_) = of(timeline, "warp 0", RUN)
    assert counts.begin == 0
    assert counts.instructions > 40 * 3
    assert wait.begin == 1
    assert wait.end >= counts.end - 1 >= 10  # 40 rounds of the loop at four blocks a turn


def test_slices_of_a_warp_do_not_overlap_and_cover_its_instructions() -> None:
    watch = Recorders()
    text = module(HANDSHAKE)
    run = launch_kernel(text, Extent(block=(64, 1, 1)), [], watch=watch)
    (timeline,) = watch.timelines
    by_track = defaultdict(list)
    for one in timeline.slices:
        by_track[one.track].append(one)
    for slices in by_track.values():
        for before, after in itertools.pairwise(slices):
            assert before.begin < before.end <= after.begin
    assert sum(s.instructions for s in timeline.slices) == run.warp_instructions


def test_a_late_copy_is_in_flight_while_its_warp_counts_and_an_eager_one_is_not() -> None:
    (late,) = recorded(COPY, block=(32, 1, 1))
    (copy,) = of(late, "cp.async", "copy")
    run = of(late, "warp 0", RUN)[0]
    assert copy.begin < run.end <= copy.end
    assert copy.source.startswith("PTX line")
    (eager,) = recorded(COPY, block=(32, 1, 1), policy="fair")
    (copy,) = of(eager, "cp.async", "copy")
    assert copy.end - copy.begin == 1


def test_clusters_are_kept_as_asked_for() -> None:
    for clusters in (1, 2, 9):
        found = recorded(HANDSHAKE, clusters=clusters, grid=(3, 1, 1))
        assert len(found) == min(clusters, 3)
        assert [t.slices[0].cta[0] for t in found] == list(range(len(found)))


@pytest.mark.parametrize("policy", ["fair", "random", "pct", "quantum_1", "delay"])
def test_the_chrome_trace_obeys_the_rules_of_its_format(policy: str) -> None:
    trace = json.loads(json.dumps(chrome_trace(recorded(COPY, clusters=2, policy=policy,
                                                        grid=(2, 1, 1)))))  # fmt: skip
    assert AXIS in trace["otherData"]["time_axis"]
    named, pairs, threads = set(), {}, defaultdict(list)
    for event in trace["traceEvents"]:
        assert event.keys() >= {"ph", "name", "pid", "tid"}
        place = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            named.add(place if event["name"] == "thread_name" else event["pid"])
            continue
        assert place in named
        assert event["pid"] in named
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
            threads[place].append((event["ts"], event["ts"] + event["dur"]))
        else:
            key = event["cat"], event["id"], event["pid"]
            assert (event["ph"] == "b") == (key not in pairs)
            pairs.setdefault(key, []).append(event["ts"])
    assert all(len(times) == 2 and times[0] < times[1] for times in pairs.values())
    assert pairs
    for slices in threads.values():  # complete events of one thread nest: here they never overlap
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(slices))


def test_the_drawing_fits_its_width_and_says_in_words_what_it_shows() -> None:
    (timeline,) = recorded(COPY)
    root = ET.fromstring(svg(timeline))
    names = {element.tag.partition("}")[2] for element in root.iter()}
    assert names == {"svg", "title", "desc", "style", "text", "rect", "line"}
    assert root.get("role") == "img"
    assert root.get("aria-label") == description(timeline)
    assert "2 warps" in description(timeline)
    for element in root.iter():
        if element.tag.endswith("rect"):
            assert float(element.get("x")) + float(element.get("width")) <= WIDTH


def test_a_hostile_kernel_name_stays_text() -> None:
    timeline = Timeline("k<script>&", (Slice((0, 0, 0), "warp 0", RUN, "x", 0, 1, "s"),), 1)
    assert ET.fromstring(svg(timeline))[0].text == "k<script>&"
