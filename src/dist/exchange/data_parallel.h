// DataParallel: the collectives of an optimizer step. Each rank processes its own micro-batches; gradients are summed
// over ranks while backward continues, in one of two ways (params/bucket.h):
// - Gradients that are whole on every rank are accumulated over the rank's micro-batches and summed over ranks in the
//   last one, each bucket as soon as backward has finished it. If the state is sharded (ZeRO-1), the sum of an element
//   goes to one rank, which steps it and sends the value to all ranks during the next step's forward; forward waits for
//   a bucket at its first read (params/arrival.h).
// - Sharded gradients (ZeRO-2 and 3) are in memory that groups use one after another. They are summed over ranks in
//   every micro-batch when their group is released; this rank's part of the sum is added to its part of the step's
//   gradients, at the latest when the memory is needed again.
// Gradients of spread experts are summed over the ranks that keep the same block, as whole gradients are over all.
// Gradients of parameters on the host are whole, and are summed by the CPUs, in the stream that computes them.
// If the ranks shard in several groups (dist/transport/mesh.h), both sums are over the ranks of a group; in a step's
// last micro-batch, the parts are then summed over groups, and all groups take the same step. Source of the scheme:
// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv:1910.02054).
#pragma once

#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream/context.h"
#include "dist/transport/mesh.h"
#include "params/parameter_store.h"
#include "params/placement.h"

namespace hone {

class DataParallel {
 public:
  /// `store` is sharded over the mesh's ranks. Both, and the streams used, must outlive this object. `host`: of
  /// parameters on the host, whose gradients are summed in its stream; null if there are none. All ranks construct it.
  /// A null mesh, or one of a single rank: sums are there already, and no function does anything.
  DataParallel(const RankMesh* mesh, ParameterStore& store, const Context* host = nullptr);
  /// Waits for values that are on their way.
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Whether there are other ranks.
  bool several() const { return mesh_ != nullptr; }
  int rank() const { return several() ? mesh_->world().rank() : 0; }
  /// The index of this rank's shard group.
  int replica() const { return several() ? mesh_->replica() : 0; }
  std::span<const Bucket> buckets() const { return store_.buckets(); }
  /// Whether this rank's experts are measured by it, so that all ranks together measure each element once.
  bool measures_experts() const { return !several() || mesh_->share().expert_replica() == 0; }
  /// Whether ranks have different elements of some gradients: then they measure them together.
  bool shards() const { return several() && !store_.state_is_whole(); }

  /// Begins a step of this many passes.
  void begin_reduction(size_t passes);
  /// For whole gradients, in the rank's last pass of the step: starts the sums of the next buckets, up to the first one
  /// whose gradients are not all queued. All ranks use the same order of buckets.
  void reduce_finished(const Context& context);
  /// Starts the sums of all remaining buckets of whole gradients. All gradients must have been queued.
  void reduce_rest(const Context& context);
  /// Call it before a group's backward writes sharded gradients: waits until earlier gradients have left its memory.
  void make_room(const Context& context, const ParameterGroup& group);
  /// Call it after a group's backward: starts the sums of its sharded gradients, with zeros from an `idle` rank.
  void reduce_group(const Context& context, const ParameterGroup& group, bool idle);
  /// Call it after a pass: its sharded gradients have been added to those of earlier micro-batches.
  void finish_pass(const Context& context);
  /// Work queued later waits for the started sums of a bucket, or of all buckets.
  void await_sums(const Context& context, const Bucket& bucket);
  void await_sums(const Context& context);

  /// Starts the sums of a step's measurements over ranks, one after another. Work queued after await_measurements()
  /// waits for them.
  void sum(const Context& context, std::span<const Tensor> measurements);
  void await_measurements(const Context& context);
  /// The calling thread waits for all started sums. Throws if a rank was lost before they finished, so that no rank
  /// steps with incomplete sums.
  void wait(const Context& context);

  /// Starts sending the stepped values of a bucket to all ranks, concurrently with work queued later; readers wait for
  /// them. Does nothing for sharded values.
  void gather_values(const Context& context, const Bucket& bucket);
  /// The same for all sharded buckets, in the order of forward.
  void gather_values(const Context& context);

 private:
  /// A started collective.
  struct Started {
    Communicator* ranks;  ///< null: there was nothing to start
    int64_t call;
  };
  /// A started sum of sharded gradients that has not settled yet.
  struct Pending {
    const ParameterGroup* group;
    const Bucket* bucket;
    Started sum;
    bool adds;  ///< own_gradients has the sums of earlier micro-batches, to which it is added; else it is there already
  };
  Started all_reduce(const Context& context, Communicator& ranks, const Bucket& bucket, const Tensor& gradients);
  /// Starts the sum of this rank's part over the shard group; it is written to `own`, or in place if that is undefined.
  Started reduce_scatter(const Context& context, const Bucket& bucket, const Tensor& own);
  /// This rank's part of the gradients as backward writes them.
  Tensor own_part(const Bucket& bucket) const;
  /// The context in which the work on a bucket runs.
  const Context& context_of(const Bucket& bucket, const Context& device) const;
  /// Starts the sums of whole gradients.
  Started reduce(const Context& context, const Bucket& bucket);
  /// Settles all pending sums but the last `left`: adds them to own_gradients, which are final in the last pass.
  void settle(const Context& context, size_t left);
  /// Sums final own_gradients over groups: starts the sum of adjacent ones once they are RankShare::least_bucket_bytes.
  void sum_over_groups(const Context& context, const Bucket& bucket);
  void start_group_sum(const Context& context);
  void join(Stream& stream, const Started& started, std::string_view of);

  const RankMesh* mesh_;  // null: one rank
  ParameterStore& store_;
  const Context* host_;
  Communicator* on_host_ = nullptr;  // sums gradients there; null if there are none
  size_t passes_left_ = 0;
  std::vector<const Bucket*> whole_;  // buckets whose gradients are whole on every rank
  std::vector<Started> sums_;         // the sums that were started, in this step
  std::deque<Pending> pending_;
  std::set<const Bucket*> begun_;                // buckets whose own_gradients belong to this step
  Tensor to_sum_;                                // adjacent own_gradients that wait to be summed over groups
  std::vector<const Bucket*> to_sum_of_;         // their buckets
  std::map<const Bucket*, Started> group_sums_;  // the started sums of this step
  int64_t measurements_ = 0;                     // the number of the last collective of sum()
};

}  // namespace hone
