// WeightFetcher: completes a bucket's values in its slot with the parts that other ranks keep. There are two ways:
// - collectives: an all-gather, in which every rank takes part at the same time;
// - peers: each rank copies the parts from the memory of the other ranks of its host (dist/exchange/peer_memory.h).
//   Frozen values need no synchronisation at all; values that are trained need two fences a step, begin_update()
//   and end_update().
//
// Both leave the same bits. Speed on 2 H200 with NVLink: docs/distributed.md.
#pragma once

#include <memory>
#include <string>

#include "core/stream/context.h"
#include "core/stream/copy_lane.h"
#include "dist/transport/communicator.h"
#include "params/parameter_store.h"

namespace hone {

enum class FetchWay {
  kAuto,  ///< peers where they are possible, else collectives
  kPeers,
  kCollectives,
};

class WeightFetcher {
 public:
  virtual ~WeightFetcher() = default;

  /// "peer copies", "all-gathers"
  virtual std::string_view name() const = 0;
  /// Starts filling bucket.values after the work that is queued on the context's stream now; a read of the bucket waits
  /// for its arrival. This rank's part is in bucket.own_values. If that is in host memory, `own` is the lane that
  /// copies it to its place in bucket.values. All ranks call fetch() for the same buckets in the same order.
  virtual void fetch(const Context& context, const Bucket& bucket, const CopyLane* own) = 0;
  /// Call it before a collective that every rank joins, and that must have run before any rank changes its stored
  /// values: by then all ranks have read the old ones.
  virtual void begin_update(const Context&) {}
  /// Call it after this rank's stored values have been changed. Later fetches find the new values of all ranks.
  virtual void end_update(const Context&) {}
};

/// Collective of all ranks: the fetcher of the buckets of `store` that the group `ranks` (dist/transport/mesh.h:
/// consecutive ranks) shards on the device. Returns when the values that ranks have stored so far can be read. Throws
/// UserError, on all ranks, if the way is kPeers and not possible in some group.
std::unique_ptr<WeightFetcher> make_fetcher(FetchWay way, Communicator& ranks, const ParameterStore& store,
                                            Stream& stream);

}  // namespace hone
