// DataParallel: what the ranks of a run do together in an optimizer step. Each works on micro-batches of its own; their
// gradients are summed, a bucket as soon as backward has finished it, beside the rest of backward. With ZeRO-1
// (bucket.h: sharded) the sum of each element reaches one rank alone, which steps it and hands its value to the others:
// beside the next step's forward, which waits for each bucket where it first reads it (params/arrival.h).
// Source of the scheme: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
// (arXiv:1910.02054), stage 1.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "dist/communicator.h"
#include "params/parameter_store.h"

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
  const std::vector<Bucket>& buckets() const { return store_.buckets(); }
  /// Whether some state is sharded.
  bool shards() const;

  /// The pass that finishes the rank's gradients begins, or gradients are there without one.
  void begin_reduction() { sums_.clear(); }
  /// Starts the sums of the next buckets, as far as all their gradients are queued. The order of buckets is the same on
  /// all ranks whenever they are finished.
  void reduce_finished(const Context& context);
  /// Starts those of all buckets that are left; every gradient has been queued.
  void reduce_rest(const Context& context);
  /// What is queued from now on finds the sums of bucket `index`, which have been started; or those of all.
  void await_sums(const Context& context, size_t index);
  void await_sums(const Context& context);

  /// Starts sums of a step's measurements over ranks, one after the other. What is queued after await_measurements()
  /// finds them.
  void sum(const Context& context, std::span<const Tensor> measurements);
  void await_measurements(const Context& context);
  /// The host waits until all sums that were started are there: a rank that was lost before has not let anybody take
  /// half a step.
  void wait(const Context& context) { communicator_.finish(context.stream()); }

  /// Starts handing the stepped values of a bucket to all ranks, beside what is queued next; who reads them waits.
  void gather_values(const Context& context, const Bucket& bucket);
  /// The same of every sharded bucket, in the order of forward.
  void gather_values(const Context& context);

 private:
  void reduce(const Context& context, const Bucket& bucket);
  void join(Stream& stream, int64_t calls, std::string_view of);
  std::vector<Part> parts_of(const Bucket& bucket) const;

  Communicator& communicator_;
  ParameterStore& store_;
  std::vector<int64_t> sums_;  // of the buckets whose sums have been started in this step: the collective's number
  int64_t measurements_ = 0;   // the number of the last collective of sum()
};

}  // namespace hone
