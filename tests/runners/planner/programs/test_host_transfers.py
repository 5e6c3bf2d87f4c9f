"""Bytes to and from the host's memory in handwritten programs; test_topologies.py has those of the GPU compiler."""

from runners.planner.programs.host_transfers import host_transfers

PROGRAM = """
%put (stored: bf16[3,8,64], new: bf16[1,8,64], i: s32[]) -> bf16[3,8,64] {
  %stored = bf16[3,8,64]{2,1,0:S(5)} parameter(0)
  %new = bf16[1,8,64]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %put.1 = bf16[3,8,64]{2,1,0:S(5)} dynamic-update-slice(%stored, %new, %i, %i, %i)
}

%condition (p: s32[]) -> pred[] {
  %limit = s32[] constant(3)
  ROOT %lt = pred[] compare(%n, %limit), direction=LT
}

%body (p: s32[]) -> s32[] {
  %start = ((bf16[3,8,64]{2,1,0:S(5)}, bf16[1,8,64]{2,1,0}), bf16[3,8,64]{2,1,0:S(5)}) fusion-start(%a, %b), calls=%put
  %inside = bf16[8,64]{1,0} dynamic-update-slice(%device, %row, %zero, %zero)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %loop = s32[] while(%t), condition=%condition, body=%body
  %kept = bf16[3,8,64]{2,1,0:S(5)} get-tuple-element(%loop), index=0
  %one = bf16[1,8,64]{2,1,0} dynamic-slice(%kept, %i, %i, %i), dynamic_slice_sizes={1,8,64}
  %all = (bf16[3,8,64]{2,1,0:T(8,128)}, bf16[3,8,64]{2,1,0:T(8,128)S(5)}, u32[]) copy-start(%kept)
  %back = bf16[3,8,64]{2,1,0:T(8,128)S(5)} copy(%done)
  %done = bf16[3,8,64]{2,1,0:T(8,128)} copy-done(%all)
}
"""
LAYER = 8 * 64 * 2


def test_slices_and_copies_count_by_direction_and_loop():
    assert host_transfers(PROGRAM) == {"to": 3 * LAYER + 3 * LAYER, "from": LAYER + 3 * LAYER}


def test_moves_inside_the_device_do_not_count():
    assert host_transfers(PROGRAM.replace("S(5)", "S(1)")) == {"to": 0, "from": 0}
