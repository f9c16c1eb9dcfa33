"""What is read from the LLVM IR of cores: one small text for each finding."""

from __future__ import annotations

import pytest

from aerie.runtime.npu.core_ir import check

LOOP = """define void @core_0_2() {{
  br label %1

1:                                                ; preds = %4, %0
  %2 = phi i32 [ %5, %4 ], [ 0, %0 ]
  %3 = icmp slt i32 %2, 8
  br i1 %3, label %4, label %6

4:                                                ; preds = %1
{body}
  %5 = add i32 %2, 1
  br label %1, !llvm.loop !1

6:                                                ; preds = %1
{after}
  ret void
}}
"""
VECTOR = "  %v = load <16 x bfloat>, ptr @buf0, align 2"


def core(body: str = VECTOR, after: str = "") -> str:
    return LOOP.format(body=body, after=after)


CLEAN = {
    "vectors": core(),
    "scalars behind the loop": core(after="  %a = fptrunc float %x to bfloat\n  %b = fmul float %x, %y"),
    "vectors converted": core(
        "  %a = fptrunc <16 x float> %x to <16 x bfloat>\n  %b = fmul <16 x float> %x, %y"
    ),
    "intrinsics": core("  %a = call float @llvm.aie2p.invsqrt(float %x)"),
    "an aligned offset": core(
        "  %g = getelementptr bfloat, ptr @buf0, i32 32\n  %a = load <32 x bfloat>, ptr %g"
    ),
    "an alloca that fits": core(after="  %a = alloca [16 x <16 x float>], align 64"),
}
FINDINGS = {
    "scalars": (
        core("  %a = fptrunc float %x to bfloat\n  %b = fmul float %x, %y\n  %c = fmul fast float %b, %y"),
        "core_0_2: 2 fmul, 1 fptrunc of single floats in innermost loops; a core has vectors for them",
        False,
    ),
    "lanes": (
        core("  %a = extractelement <16 x float> %x, i32 0\n  %b = insertelement <8 x i8> %y, i8 %a, i32 0"),
        "core_0_2: 1 extractelement, 1 insertelement in innermost loops: vectors are split into "
        "scalars; use a width that AIE2P has",
        False,
    ),
    "a function": (
        core("  call void @gelu(ptr @buf0)"),
        "core_0_2: calls gelu, which no object defines; link_with names the object that has it",
        True,
    ),
    "maxnum": (
        core("  %a = call <16 x float> @llvm.maxnum.v16f32(<16 x float> %x, <16 x float> %y)"),
        "core_0_2: calls llvm.maxnum.v16f32, which Peano cannot legalise; compare and select instead",
        True,
    ),
    "stack": (
        core(after="  %a = alloca [17 x <16 x float>], align 64"),
        "core_0_2: 1088 bytes of alloca, and the stack has 1024: it would grow into the buffers; raise "
        "--stack-size, or keep the values in a buffer",
        True,
    ),
    "alignment": (
        core("  %g = getelementptr bfloat, ptr @buf0, i32 16\n  %a = load <32 x bfloat>, ptr %g, align 2"),
        "core_0_2: a load of <32 x bfloat> at byte 32 of its buffer, no multiple of 64: the core masks the "
        "address and takes other bytes; move the data to a multiple",
        True,
    ),
    "alignment of a store": (
        core("  store <16 x bfloat> %x, ptr getelementptr (bfloat, ptr @buf0, i32 8), align 2"),
        "core_0_2: a store of <16 x bfloat> at byte 16 of its buffer, no multiple of 32: the core masks the "
        "address and takes other bytes; move the data to a multiple",
        True,
    ),
}


@pytest.mark.parametrize("text", CLEAN.values(), ids=CLEAN)
def test_clean(text: str) -> None:
    assert check(text) == []


@pytest.mark.parametrize(("text", "message", "wrong"), FINDINGS.values(), ids=FINDINGS)
def test_finding(text: str, message: str, wrong: bool) -> None:
    (found,) = check(text)
    assert (str(found), found.wrong) == (message, wrong)


def test_functions_of_objects_are_known() -> None:
    text = core("  call void @rope_2x64(ptr @buf0)")
    assert check(text, functions={"rope_2x64"}) == []


def test_stack_is_what_the_program_has() -> None:
    assert check(FINDINGS["stack"][0], stack_bytes=2048) == []
