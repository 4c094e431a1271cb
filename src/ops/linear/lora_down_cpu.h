// The part of a LoRA adapter in the gradient of its input, inside launched CPU work.
#pragma once

#include "core/cpu/thread_pool.h"
#include "ops/linear/linear.h"

namespace hone::cpu {

/// Scratch for lora_dx(); undefined if it needs none.
Tensor lora_dx_scratch(ArenaScope& scratch, const LoraDownGradArgs& args);

/// dx = dropout'(dxa A) + beta · dx, which is wanted; the other destination is ignored.
void lora_dx(ThreadPool& pool, const LoraDownGradArgs& args, const Tensor& scratch);

}  // namespace hone::cpu
