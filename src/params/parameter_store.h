// ParameterStore: all parameters of a run and their memory.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/memory/buffer.h"
#include "core/memory/host_buffer.h"
#include "core/stream/context.h"
#include "params/bucket.h"
#include "params/mapped_values.h"
#include "params/parameter.h"
#include "params/parameter_bytes.h"
#include "params/pattern.h"
#include "params/shared_values.h"
#include "params/value_reader.h"

namespace hone {

class ParameterStore {
 public:
  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Files may name what is added from now on with the second text of a pair where the name begins with the first or,
  /// if that begins with a dot, has it. That is the first of its layouts.
  void name_in_files(std::vector<std::pair<std::string, std::string>> parts) { file_parts_ = std::move(parts); }
  /// Adds a parameter; its address stays valid. Names are unique.
  Parameter& add(ParameterSpec spec, DType dtype);
  /// Null if there is none of this canonical name.
  Parameter* find(const std::string& name);

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  std::vector<Parameter*> trainable();

  /// The parameters that some pattern matches, in order; buffers never match. UserError, with near names, for a pattern
  /// that matches nothing or only some experts of a fused tensor. `key` is the config key, for the message.
  std::vector<Parameter*> select(const std::vector<std::string>& patterns, const std::string& key);

  /// Holds the gradients of one half of a layer at a time: all share the memory of the largest, so each must have been
  /// used when its group is released. Parameters outside the layers keep their own. Before allocation, on one rank.
  void share_layer_gradients(bool share) { share_layer_gradients_ = share; }
  bool layers_share_gradients() const { return share_layer_gradients_; }

  /// Shards the trainable parameters among the ranks of a group, in buckets(), and places what `share` offloads in host
  /// memory, on one rank too. Call it after groups and trainable parameters have been chosen, before allocation. If a
  /// model has adapters, only they are sharded; other trained parameters are small then, and whole on every rank.
  /// ZeroStage::kValues also shards frozen values, if they are dense. Layers do not share gradients then, and second
  /// moments of sharded parameters are not factored. Parameters on the host are not sharded.
  void share_among(const RankShare& share);
  /// Whether ranks keep parts of some parameters' optimizer state, gradients, values.
  bool shards_state() const { return shares(&Bucket::sharded); }
  bool shards_gradients() const { return shares(&Bucket::shards_gradients); }
  bool shards_values() const { return shares(&Bucket::shards_values); }
  /// The ranks over which experts are spread (RankShare), and this rank's place among them; 1 and 0: all are here.
  int expert_ranks() const { return expert_ranks_; }
  int expert_rank() const { return expert_rank_; }
  /// Whether this rank has all of the optimizer's state, and all values: neither sharded nor spread.
  bool state_is_whole() const { return !shards_state() && expert_ranks_ == 1; }
  bool values_are_whole() const { return !shards_values() && expert_ranks_ == 1; }
  /// Whether routed experts are in host memory and are computed there (RankShare).
  bool experts_on_host() const { return experts_on_host_; }
  /// Whether some values come to the device for each use, from other ranks or from host memory.
  bool brings_values() const { return shares(&Bucket::brings_values); }
  /// Whether the device steps what is in host memory: the optimizer's state, or trained values that are offloaded.
  bool steps_from_host() const { return offloads_state_ || offloads_trained_; }
  /// Buckets of trained parameters, in the order in which backward finishes them, the embedding last; empty for one
  /// rank.
  std::span<const Bucket> buckets() const { return {buckets_.data(), trained_buckets_}; }
  /// The same, followed by the buckets of frozen parameters whose values come to the device for each use; on one rank,
  /// of trained ones too.
  const std::vector<Bucket>& all_buckets() const { return buckets_; }
  /// The memory of values that ranks shard, if it is mapped.
  const MappedValues* mapped_values() const { return mapped_.get(); }
  /// The values that the ranks of a host keep once; null: none. Each rank fills its part of them (filled_here()), and
  /// the others can be read after share_values() (dist/exchange/host_sharing.h).
  SharedValues* shared_values() { return shared_.get(); }
  const SharedValues* shared_values() const { return shared_.get(); }
  /// What brings values that stay in files (kInFile); it must outlive their uses.
  void read_values_with(ValueReader* reader) { value_reader_ = reader; }
  ValueReader& value_reader() const {
    HONE_ASSERT(value_reader_ != nullptr, "values stay in files that nobody reads");
    return *value_reader_;
  }
  bool keeps_values_in_files() const { return shares(&Bucket::stays_in_files); }
  /// Whether all values from other ranks have arrived and been waited for.
  bool values_arrived() const;

  /// Bytes that a parameter will need, before allocation; its gradient as if it were not shared.
  static ParameterBytes bytes_of(const Parameter& parameter);
  /// Bytes that all will need, to train or only for inference.
  ParameterBytes bytes(bool training = true) const;
  /// Allocates values, and for trainable ones gradients, moments and masters (not for `inference`).
  void allocate(Device device, bool inference = false);
  /// Allocates only the values of trainable parameters, for reading and writing adapters.
  void allocate_trainable_values(Device device);
  /// Gives every parameter an address that only a dry pass may use.
  void allocate_dry(Device device = {});

  /// Starts an optimizer step: the next gradient of each parameter overwrites. `scalars` are the step's, on the device;
  /// bfloat16 gradients that are added to need their seed. `on_host`: the same in host memory, for parameters there.
  void begin_step(const StepScalars* scalars = nullptr, const StepScalars* on_host = nullptr);
  /// Continues a step: all gradients have been written, so the next ones add; staged gradients still overwrite what
  /// others have left.
  void continue_step();
  /// After backward: zeroes gradients that were not written, of all parameters that do not stage them, or of these.
  /// `host`: the context of parameters on the host; null if there are none.
  void zero_unwritten(const Context& context, const Context* host = nullptr);
  static void zero_unwritten(const Context& context, const std::vector<Parameter*>& parameters);

 private:
  struct Part;
  static const std::vector<Part>& parts();
  struct Places;
  struct Home;
  Home home_of(const Part& part, const Parameter& parameter) const;
  Places places_of(const Part& part, bool training) const;
  void place_bucket(const Part& part, const Bucket& bucket, Places& places) const;
  bool shares(bool (Bucket::*what)() const) const;
  void spread_over(Parameter& p, const RankShare& share);
  /// The memory of homes that is apart.
  std::vector<ValueMemory*> memories() const;
  /// Spreads the routed experts of values and gradients on the host over NUMA nodes, except shared ones.
  void spread_experts();
  /// Every value is whole, and ops read it where it is.
  void present_stored_values();

  std::deque<Parameter> parameters_;
  std::vector<std::pair<std::string, std::string>> file_parts_;
  std::map<std::string, Parameter*> by_name_;
  std::vector<Buffer> buffers_;
  std::vector<HostBuffer> host_buffers_;
  bool offloads_state_ = false, offloads_trained_ = false, experts_on_host_ = false;
  bool share_layer_gradients_ = false;
  int expert_ranks_ = 1, expert_rank_ = 0;
  std::vector<Bucket> buckets_;
  size_t trained_buckets_ = 0;  // the first of them
  std::unique_ptr<MappedValues> mapped_;
  std::unique_ptr<SharedValues> shared_;
  ValueReader* value_reader_ = nullptr;
};

/// Writes host values (float32) to a parameter that is not in 8 bits, from element `offset` on: to its value, in its
/// dtype, and to the part of the float32 master on this rank.
void write_values(Parameter& parameter, int64_t offset, const float* values, int64_t count);

}  // namespace hone
