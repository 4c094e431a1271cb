// The device memory that CUDA and NCCL take in addition to what Hone allocates. No call tells how much it will be, so
// these are measured constants: H200, CUDA 13.0, NCCL 2.28.9, the driver's bytes after steps minus the plan's.
//
//   | ranks, stage | runs | bytes beside the plan, 10^9 |
//   |---|---|---|
//   | 1 | 114 | 0.64 to 0.71 |
//   | 1, with cpu_offload | 9 | 0.66 to 0.88 |
//   | 2 and 4, stages 0 and 1 | 19 | 1.55 to 1.57 |
//   | 2, stage 3 | 7; 2 in another call | 2.09 to 2.11; 2.31 and 2.60 |
//
// The files are bench/results/h200*.json* and steps-*.jsonl. Other GPUs and versions have not been measured.
#pragma once

#include <cstdint>

#include "core/base/device.h"
#include "params/bucket.h"

namespace hone {

struct LibraryMemory {
  int64_t all = 0;    ///< bytes, at the end of a run's first steps
  int64_t later = 0;  ///< at most so many of them are taken after the communicators have been created
};

/// The memory of libraries on a rank of a run on GPUs; nothing on a CPU.
LibraryMemory library_memory(Device device, const RankShare& share);

}  // namespace hone
