// DataParallel: the collectives of an optimizer step. Each rank processes its own micro-batches; gradients are summed
// over ranks while backward continues, in one of two ways (params/bucket.h):
// - Gradients that are whole on every rank are accumulated over the rank's micro-batches and summed over ranks in the
//   last one, each bucket as soon as backward has finished it. If the state is sharded (ZeRO-1), the sum of an element
//   goes to one rank, which steps it and sends the value to all ranks during the next step's forward; forward waits for
//   a bucket at its first read (params/arrival.h).
// - Sharded gradients (ZeRO-2 and 3) are in memory that groups use one after another. They are summed over ranks in
//   every micro-batch when their group is released; this rank's part of the sum is added to its part of the step's
//   gradients, at the latest when the memory is needed again.
// Source of the scheme: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
// (arXiv:1910.02054).
#pragma once

#include <deque>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "dist/communicator.h"
#include "params/parameter_store.h"
#include "params/placement.h"

namespace hone {

class DataParallel {
 public:
  /// `store` is sharded over the communicator's ranks. Both, and the streams used, must outlive this object.
  DataParallel(Communicator& communicator, ParameterStore& store);
  /// Waits for values that are on their way.
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  Control& control() const { return communicator_.control(); }
  std::span<const Bucket> buckets() const { return store_.buckets(); }
  /// Whether any state is sharded.
  bool shards() const { return store_.shards_state(); }

  /// Begins a step.
  void begin_reduction();
  /// For whole gradients, in the rank's last pass of the step: starts the sums of the next buckets, up to the first one
  /// whose gradients are not all queued. All ranks use the same order of buckets.
  void reduce_finished(const Context& context);
  /// Starts the sums of all remaining buckets of whole gradients. All gradients must have been queued.
  void reduce_rest(const Context& context);
  /// Call it before a group's backward writes sharded gradients: waits until earlier gradients have left its memory.
  void make_room(const Context& context, const ParameterGroup& group);
  /// Call it after a group's backward: starts the sums of its sharded gradients, with zeros from an `idle` rank.
  void reduce_group(const Context& context, const ParameterGroup& group, bool idle);
  /// Call it after a pass: work queued later sees the sharded gradients of all micro-batches so far.
  void finish_pass(const Context& context) { settle(context, 0); }
  /// Work queued later waits for the started sums of a bucket, or of all buckets.
  void await_sums(const Context& context, const Bucket& bucket);
  void await_sums(const Context& context);

  /// Starts the sums of a step's measurements over ranks, one after another. Work queued after await_measurements()
  /// waits for them.
  void sum(const Context& context, std::span<const Tensor> measurements);
  void await_measurements(const Context& context);
  /// The host waits for all started sums. Throws if a rank was lost before they finished, so that no rank steps with
  /// incomplete sums.
  void wait(const Context& context) { communicator_.finish(context.stream()); }

  /// Starts sending the stepped values of a bucket to all ranks, concurrently with work queued later; readers wait for
  /// them. Does nothing for sharded values.
  void gather_values(const Context& context, const Bucket& bucket);
  /// The same for all sharded buckets, in the order of forward.
  void gather_values(const Context& context);

 private:
  /// A started sum of sharded gradients that has not been added to own_gradients yet.
  struct Pending {
    const ParameterGroup* group;
    const Bucket* bucket;
    int64_t call;
  };
  /// Starts the sums; returns the collective's number.
  int64_t reduce(const Context& context, const Bucket& bucket);
  /// Adds all pending sums but the last `left` to own_gradients.
  void settle(const Context& context, size_t left);
  void join(Stream& stream, int64_t calls, std::string_view of);

  Communicator& communicator_;
  ParameterStore& store_;
  std::vector<const Bucket*> whole_;  // buckets whose gradients are whole on every rank
  std::vector<int64_t> sums_;         // for each started sum of these in this step, the collective's number
  std::deque<Pending> pending_;
  std::set<const Bucket*> settled_;  // buckets whose own_gradients belong to this step
  int64_t measurements_ = 0;         // the number of the last collective of sum()
};

}  // namespace hone
