// DataParallel: what the ranks of a run do together in an optimizer step. Each works on micro-batches of its own; their
// gradients are summed beside the rest of backward, in one of two ways (params/bucket.h):
// - Gradients that are whole on every rank add up over the rank's micro-batches first, and are summed over ranks in the
//   last: a bucket as soon as backward has finished it. Where the state is sharded (ZeRO-1), the sum of each element
//   reaches one rank alone, which steps it and hands its value to the others: beside the next step's forward, which
//   waits for each bucket where it first reads it (params/arrival.h).
// - Gradients that are sharded, too (ZeRO-2 and 3), are in memory that groups take turns in: summed over ranks in every
//   micro-batch when their group is released, and what reaches this rank is added to its part of the step's gradients,
//   at the latest when the memory is needed again.
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
  /// `store` has been shared among the communicator's ranks; both and the streams it is used with outlive this.
  DataParallel(Communicator& communicator, ParameterStore& store);
  /// Waits for values that are on their way.
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  Control& control() const { return communicator_.control(); }
  std::span<const Bucket> buckets() const { return store_.buckets(); }
  /// Whether some state is sharded.
  bool shards() const { return store_.shards_state(); }

  /// A step begins.
  void begin_reduction();
  /// Starts the sums of the next buckets whose gradients are whole, as far as all of them are queued. The order of
  /// buckets is the same on all ranks whenever they are finished. In the rank's last pass of the step.
  void reduce_finished(const Context& context);
  /// Starts those of all such buckets that are left; every gradient has been queued.
  void reduce_rest(const Context& context);
  /// A group is about to be used in backward, which writes sharded gradients: earlier ones leave its memory.
  void make_room(const Context& context, const ParameterGroup& group);
  /// A group has been used in backward: starts the sums of its sharded gradients; of zeros, if the rank is `idle`.
  void reduce_group(const Context& context, const ParameterGroup& group, bool idle);
  /// The pass has ended: what is queued from now on finds the sharded gradients of the micro-batches so far.
  void finish_pass(const Context& context) { settle(context, 0); }
  /// What is queued from now on finds the sums of a bucket, which have been started; or those of all.
  void await_sums(const Context& context, const Bucket& bucket);
  void await_sums(const Context& context);

  /// Starts sums of a step's measurements over ranks, one after the other. What is queued after await_measurements()
  /// finds them.
  void sum(const Context& context, std::span<const Tensor> measurements);
  void await_measurements(const Context& context);
  /// The host waits until all sums that were started are there: a rank that was lost before has not let anybody take
  /// half a step.
  void wait(const Context& context) { communicator_.finish(context.stream()); }

  /// Starts handing the stepped values of a bucket to all ranks, beside what is queued next; who reads them waits.
  /// Values that are sharded stay where they are.
  void gather_values(const Context& context, const Bucket& bucket);
  /// The same of every sharded bucket, in the order of forward.
  void gather_values(const Context& context);

 private:
  /// Sums of sharded gradients that have been started and are not in own_gradients yet.
  struct Pending {
    const ParameterGroup* group;
    const Bucket* bucket;
    int64_t call;
  };
  /// Starts the sums; returns the collective's number.
  int64_t reduce(const Context& context, const Bucket& bucket);
  /// All but the last `left` of what is pending reaches own_gradients.
  void settle(const Context& context, size_t left);
  void join(Stream& stream, int64_t calls, std::string_view of);

  Communicator& communicator_;
  ParameterStore& store_;
  std::vector<const Bucket*> whole_;  // whose gradients are whole on every rank
  std::vector<int64_t> sums_;  // of these, as far as they have been started in this step: the collective's number
  std::deque<Pending> pending_;
  std::set<const Bucket*> settled_;  // whose own_gradients are of this step
  int64_t measurements_ = 0;         // the number of the last collective of sum()
};

}  // namespace hone
