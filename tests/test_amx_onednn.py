"""oneDNN's own account of what it executed, from recordings of six versions on five machines."""

from __future__ import annotations

import pytest

from provision.amx.onednn import Library, describe, isa_of, parse_execution, parse_library, shares
from tests.amx_texts import FOLDER, recorded

SPR = (
    "Intel AVX-512 with float16, Intel DL Boost and bfloat16 support and Intel AMX with bfloat16 and "
    "8-bit integer support"
)


@pytest.mark.parametrize(
    ("name", "library", "parts"),
    [
        (
            "onednn-3.0-r7iz",
            Library("3.0.0", "Intel AVX-512 with Intel DL Boost and bfloat16 support", 8),
            {"avx512": 1.0},
        ),
        ("onednn-3.2-spr", Library("3.2.0", SPR, 188), {"amx": 1.0}),
        ("onednn-3.3-spr-vnni", Library("3.3.0", "Intel AVX-512 with Intel DL Boost", 1), {"avx512": 1.0}),
        ("onednn-3.9-emr", Library(), {"avx512_bf16": 0.7172, "amx": 0.2828}),
        ("onednn-3.8-graviton", Library("3.8.0", "AArch64 SVE (256 bits)", 1), {"acl": 1.0}),
        (
            "onednn-3.12-zen5",
            Library("3.12.0", "Intel AVX-512 with Intel DL Boost and bfloat16 support", 2),
            {"avx512_bf16": 1.0},
        ),
    ],
)
def test_recorded_runs_are_understood(name, library, parts):
    lines = recorded(name).splitlines()

    assert parse_library(lines) == library
    assert shares(lines).by_isa == pytest.approx(parts, abs=1e-4)


def test_every_recording_is_used():
    names = {path.stem for path in FOLDER.glob("onednn-*.txt")}

    assert names == {f"onednn-{name}" for name in ("3.0-r7iz", "3.2-spr", "3.3-spr-vnni", "3.9-emr")} | {
        "onednn-3.8-graviton",
        "onednn-3.12-zen5",
    }


def test_only_products_count_and_reorders_do_not():
    found = shares(recorded("onednn-3.0-r7iz").splitlines())

    assert found.ms == pytest.approx(2.64697)
    assert found.amx == 0


def test_a_kernel_that_was_refused_was_not_executed():
    refused = next(line for line in recorded("onednn-3.2-spr").splitlines() if "create:dispatch" in line)

    assert "amx" in refused
    assert parse_execution(refused) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 3 loss 0.12",
        "onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx512_co",
        "onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx2,undef,,,,8x8:8x8,0.5 step 4",
        "onednn_verbose,v1,primitive,exec",
        "onednn_verbose,v1,info,cpu,isa:Intel AVX2",
    ],
)
def test_lines_that_are_torn_or_of_somebody_else_are_passed_over(line):
    assert parse_execution(line) is None


def test_a_line_behind_other_text_and_with_a_timestamp_is_found():
    plain = "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx10_1_512_amx,undef,,,,8x8:8x8,0.5"
    stamped = plain.replace("verbose,", "verbose,1700000000.123,", 1)

    assert parse_execution(f"[node1] {plain}\n") == parse_execution(stamped)
    assert parse_execution(plain.replace("onednn", "dnnl")) == parse_execution(plain)


@pytest.mark.parametrize(
    ("kernel", "isa"),
    [
        ("brg:avx512_core_amx_bf16", "amx"),
        ("brg_matmul:avx10_2_amx_2", "amx"),
        ("brgconv_bwd_w:avx512_core_amx_bf16", "amx"),
        ("brg_matmul:avx10_1_512", "avx512_bf16"),
        ("brg:avx512_core_fp16", "avx512_bf16"),
        ("brgemm:avx512_core_vnni", "avx512"),
        ("jit:avx2", "avx2"),
        ("brg:sve_256", "sve"),
        ("gemm:acl", "acl"),
        ("gemm:jit:f32", "gemm"),
        ("ref:any", "ref"),
    ],
)
def test_kernels_tell_their_instruction_set(kernel, isa):
    assert isa_of(kernel) == isa


def test_shares_are_told_in_one_line():
    assert describe(shares(recorded("onednn-3.9-emr").splitlines())) == (
        "72 % of the time in products on avx512_bf16, 28 % on amx"
    )
    assert describe(shares([])) == "no product was executed by oneDNN or MKL"
