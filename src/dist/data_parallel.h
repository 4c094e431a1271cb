// DataParallel: what the ranks of a run do together in an optimizer step. Each works on micro-batches of its own; their
// gradients are summed, a bucket as soon as backward has finished it, beside the rest of backward. With ZeRO-1
// (bucket.h: sharded) the sum of each element reaches one rank alone, which steps it and hands its value to the others.
// Source of the scheme: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
// (arXiv:1910.02054), stage 1.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/context.h"
#include "dist/communicator.h"
#include "params/parameter_store.h"

namespace hone {

class DataParallel {
 public:
  /// `store` has been shared among the communicator's ranks; both outlive this.
  DataParallel(Communicator& communicator, ParameterStore& store) : communicator_(communicator), store_(store) {
    HONE_ASSERT(communicator.size() > 1);
  }

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  Control& control() const { return communicator_.control(); }
  const std::vector<Bucket>& buckets() const { return store_.buckets(); }
  /// Whether some state is sharded.
  bool shards() const;

  /// The pass that finishes the rank's gradients begins, or gradients are there without one.
  void begin_reduction() { reduced_ = 0; }
  /// Starts the sums of the next buckets, as far as all their gradients are queued. The order of buckets is the same on
  /// all ranks whenever they are finished.
  void reduce_finished(const Context& context);
  /// Starts those of all buckets that are left; every gradient has been queued.
  void reduce_rest(const Context& context);
  /// Sums of a step's measurements, over ranks. What is queued from now on runs after these and the sums of gradients.
  void sum(const Context& context, std::span<const Tensor> measurements);
  /// The host waits until all gradients are sums: a rank that was lost before has not let anybody take half a step.
  void wait(const Context& context) { communicator_.finish(context.stream()); }

  /// Starts handing the stepped values of a bucket to all ranks, beside what is queued next. join() ends it.
  void gather_values(const Context& context, const Bucket& bucket);
  /// The same of every sharded bucket.
  void gather_values(const Context& context);
  void join(const Context& context) {
    if (!context.dry()) communicator_.join(context.stream());
  }

 private:
  void reduce(const Context& context, const Bucket& bucket);
  std::vector<Part> parts_of(const Bucket& bucket) const;

  Communicator& communicator_;
  ParameterStore& store_;
  size_t reduced_ = 0;  // buckets whose sums have been started in this step
};

}  // namespace hone
