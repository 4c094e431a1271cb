// What the benchmarks of ops need of a model.
#pragma once

#include "kernels/op_bench.h"
#include "nn/decoder_config.h"

namespace hone {

/// A step of `tokens` in documents of `seq`.
BenchSizes bench_sizes(const DecoderConfig& config, int64_t tokens, int64_t seq, DType dtype, DeviceKind device);

}  // namespace hone
