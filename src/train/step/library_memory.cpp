#include "train/step/library_memory.h"

namespace hone {

namespace {

constexpr int64_t kMegabyte = 1'000'000;
constexpr int64_t kCuda = 650 * kMegabyte;  ///< context, libraries, kernels
constexpr int64_t kFirstCommunicator = 910 * kMegabyte;
constexpr int64_t kOtherCommunicator = 540 * kMegabyte;
/// Kernels, including those of libraries, which CUDA loads when they are first used; with a margin of 0.2 GB.
constexpr int64_t kLoadedLater = 420 * kMegabyte;
/// Channels, which NCCL connects in the first collective. With kLoadedLater, more than the most that a run has taken
/// after its first memory reading: 1.49 GB; most took 0.98.
constexpr int64_t kConnectedLater = 1100 * kMegabyte;

/// Communicators besides the one of all ranks (dist/transport/mesh.h).
int64_t other_communicators(const RankShare& share) {
  if (share.stage == ZeroStage::kNone || share.shard_ranks() == 1) return 0;
  const int64_t of_groups = share.shard_ranks() < share.ranks ? 2 : 0;
  return of_groups + (share.stage == ZeroStage::kValues ? 1 : 0);
}

}  // namespace

LibraryMemory library_memory(Device device, const RankShare& share) {
  if (device.kind != DeviceKind::kCuda) return {};
  if (share.ranks == 1) return {.all = kCuda, .later = kLoadedLater};
  return {.all = kCuda + kFirstCommunicator + other_communicators(share) * kOtherCommunicator,
          .later = kLoadedLater + kConnectedLater};
}

}  // namespace hone
