from __future__ import annotations

import pytest

from recipe_toolkit.sim.flags import UsageError, layout, parse


def at(*flags: str):
    return layout(parse(["serve", "tiny", *flags]))


def test_a_flag_is_read_in_every_spelling():
    for spelling in (["--port", "9"], ["--port=9"]):
        assert parse(["serve", "tiny", *spelling])["port"] == 9
    for spelling in (["-tp", "4"], ["-tp=4"], ["--tensor-parallel-size=4"], ["--tensor_parallel_size", "4"]):
        assert parse(["serve", "tiny", *spelling])["tensor-parallel-size"] == 4
    assert parse(["serve", "tiny", "-ep"])["enable-expert-parallel"] is True
    assert parse(["serve", "--no-enable-prefix-caching", "tiny"])["enable-prefix-caching"] is False
    assert parse(["serve", "tiny", "--disable-prefix-caching"])["enable-prefix-caching"] is False
    assert parse(["serve", "tiny", "--max-model-len", "8k"])["max-model-len"] == 8000
    assert parse(["serve", "tiny", "--max-model-len=8K"])["max-model-len"] == 8192


def test_names_and_documents():
    flags = parse(
        ["serve", "/models/-odd", "--served-model-name", "a", "b", "--kv-transfer-config", '{"kv_role":"kv_both"}']
    )
    assert (flags.model, flags.served_names) == ("/models/-odd", ("a", "b"))
    assert flags["kv-transfer-config"] == {"kv_role": "kv_both"}
    assert parse(["serve", "m"]).served_names == ("m",)


def test_flags_that_do_not_matter_are_kept_aside():
    flags = parse(["serve", "tiny", "--seed", "-1", "--trust-remote-code", "--cudagraph", "1", "2", "--port", "9"])
    assert flags.ignored == ("--seed -1", "--trust-remote-code", "--cudagraph 1 2")
    assert flags["port"] == 9


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "usage"),
        (["bench"], "usage"),
        (["serve"], "no MODEL"),
        (["serve", "a", "b"], "unrecognized arguments: b"),
        (["serve", "a", "--port"], "--port: expected one argument"),
        (["serve", "a", "--port", "x"], "--port: invalid int value: 'x'"),
        (["serve", "a", "--kv-transfer-config", "{"], "--kv-transfer-config"),
        (["serve", "a", "--kv-transfer-config", "[]"], "not a JSON object"),
    ],
)
def test_a_wrong_command_line_is_refused(argv, message):
    with pytest.raises(UsageError, match=message):
        parse(argv)


def test_one_process():
    whole = at("-dp", "4", "-tp", "2")
    assert (whole.dp_ranks, whole.replica, whole.address, whole.head, whole.api) == ((0, 1, 2, 3), 2, None, True, True)


def test_dp_over_processes():
    head = at("-dp", "8", "-dpl", "4", "-dpa", "n0", "-dpp", "77")
    assert (head.dp_ranks, head.head, head.api, head.hybrid, head.address) == (
        (0, 1, 2, 3),
        True,
        True,
        False,
        ("n0", 77),
    )
    other = at("-dp", "8", "-dpl", "4", "-dpr", "4", "-dpa", "n0", "-dpp", "77", "--headless")
    assert (other.dp_ranks, other.head, other.api) == ((4, 5, 6, 7), False, False)


def test_hybrid_dp_has_an_api_server_in_every_process():
    other = at("-dp", "4", "-dpl", "2", "-dpr", "2", "--data-parallel-hybrid-lb")
    assert (other.dp_ranks, other.head, other.api, other.hybrid) == ((2, 3), False, True, True)
    assert at("-dp", "4", "-dpl", "2", "-dpr", "2").hybrid, "vLLM takes a start rank without --headless for hybrid"


@pytest.mark.parametrize(("rank", "ranks", "slices"), [(0, (0,), ()), (1, (), (0,)), (2, (1,), ()), (3, (), (1,))])
def test_a_replica_over_two_nodes(rank, ranks, slices):
    headless = ["--headless"] if rank else []
    here = at("-tp", "4", "-dp", "2", "--nnodes", "4", "--node-rank", str(rank), "--master-addr", "m", *headless)
    assert (here.dp_ranks, here.slices, here.head, here.peers) == (ranks, slices, rank == 0, 4)
    assert here.address == ("m", 29501)


def test_replicas_that_fit_their_nodes():
    here = at("-tp", "2", "-dp", "8", "--nnodes", "2", "--node-rank", "1", "--headless")
    assert (here.dp_ranks, here.slices) == ((4, 5, 6, 7), ())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-dp", "2", "-dpl", "2", "-dpr", "1", "--headless"], "do not exist"),
        (["--nnodes", "2", "-tp", "3"], "not divisible"),
        (["--nnodes", "2", "-tp", "2", "--node-rank", "2"], "node_rank 2"),
        (["--nnodes", "2", "-tp", "2", "--node-rank", "1"], "needs --headless"),
        (["-dp", "2", "--data-parallel-hybrid-lb", "--headless"], "headless"),
    ],
)
def test_layouts_that_vllm_refuses(flags, message):
    with pytest.raises(ValueError, match=message):
        at(*flags)


@pytest.mark.parametrize("said", [[], ["--max-model-len", "auto"], ["--max-model-len=-1"]])
def test_without_a_longest_request_it_is_what_the_kv_cache_holds(said):
    flags = parse(["serve", "m", "--block-size=128", *said])
    assert flags.fitted(1000)["max-model-len"] == 896
    assert parse(["serve", "m", "--max-model-len=5"]).fitted(1000)["max-model-len"] == 5
