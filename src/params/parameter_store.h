// ParameterStore: all parameters of a run, their memory, and what is trained.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/context.h"
#include "core/host_buffer.h"
#include "params/bucket.h"
#include "params/parameter.h"
#include "params/pattern.h"

namespace hone {

/// Bytes by what they hold; of the device, but for the last.
struct ParameterBytes {
  int64_t weights = 0, master = 0, gradients = 0, moments = 0;
  int64_t host = 0;  ///< of all of these, what is in host memory (Offload)
  int64_t total() const { return weights + master + gradients + moments; }
  ParameterBytes& operator+=(const ParameterBytes& other);
};

class ParameterStore {
 public:
  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Adds a parameter; its address stays valid. Names are unique.
  Parameter& add(ParameterSpec spec, DType dtype);
  /// Null if there is none of this canonical name.
  Parameter* find(const std::string& name);

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  std::vector<Parameter*> trainable();

  /// The parameters some pattern matches, in order; buffers match none. A pattern that matches none is a UserError with
  /// near names; one that matches only some experts of a fused tensor too. `key` is the config key, for the message.
  std::vector<Parameter*> select(const std::vector<std::string>& patterns, const std::string& key);

  /// The gradients of one half of a layer at a time: all are in the memory of the largest, so each must have been used
  /// up when its group is released. Parameters outside the layers keep their own. Before allocation, on one rank.
  void share_layer_gradients(bool share) { share_layer_gradients_ = share; }
  bool layers_share_gradients() const { return share_layer_gradients_; }

  /// The trainable parameters will be trained by several ranks, which then come in buckets(); what is offloaded will be
  /// in host memory, on one rank too. After groups and what is trained have been chosen, before allocation. Of what is
  /// trained adapters alone are sharded where a model has some: what is trained whole beside them is small, and every
  /// rank keeps it. Frozen values are sharded by ZeroStage::kValues: dense ones. Layers do not share gradients then,
  /// and what is sharded is not factored.
  void share_among(const RankShare& share);
  /// Whether ranks keep parts of some parameters' optimizer state, gradients, values.
  bool shards_state() const { return shares(&Bucket::sharded); }
  bool shards_gradients() const { return shares(&Bucket::shards_gradients); }
  bool shards_values() const { return shares(&Bucket::shards_values); }
  /// Whether some values are brought to the device for each use, from other ranks or from host memory.
  bool brings_values() const { return shares(&Bucket::brings_values); }
  /// Whether the optimizer's state is in host memory.
  bool offloads_state() const { return offloads_state_; }
  /// Of what is trained, in the order in which backward finishes them, the embedding last; empty for one rank.
  std::span<const Bucket> buckets() const { return {buckets_.data(), trained_buckets_}; }
  /// These, and after them those of frozen parameters whose values are brought; on one rank of trained ones, too.
  const std::vector<Bucket>& all_buckets() const { return buckets_; }
  /// Whether no values are on their way from other ranks that nobody has waited for.
  bool values_arrived() const;

  /// What a parameter will need, before any of it is allocated; its gradient as if it had its own.
  static ParameterBytes bytes_of(const Parameter& parameter);
  /// What all will need, to train or only for inference.
  ParameterBytes bytes(bool training = true) const;
  /// Allocates values, and for trainable ones gradients, moments and masters (not for `inference`).
  void allocate(Device device, bool inference = false);
  /// Allocates the values of trainable parameters alone: what reading and writing adapters needs.
  void allocate_trainable_values(Device device);
  /// Gives every parameter an address that only a dry pass may use.
  void allocate_dry(Device device = {});

  /// Starts an optimizer step: the next gradient of each parameter overwrites. `scalars` are the step's, on the device;
  /// bfloat16 gradients that are added to need their seed.
  void begin_step(const StepScalars* scalars = nullptr);
  /// Goes on with one: all gradients have been written, so the next ones add; but those that are staged overwrite what
  /// others have left.
  void continue_step();
  /// After backward: gradients that nobody wrote become zero, of all parameters that do not stage them, or of these.
  void zero_unwritten(const Context& context);
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
  /// Every value is whole, and ops read it where it is.
  void present_stored_values();

  std::deque<Parameter> parameters_;
  std::map<std::string, Parameter*> by_name_;
  std::vector<Buffer> buffers_;
  std::vector<HostBuffer> host_buffers_;
  bool offloads_state_ = false;
  bool share_layer_gradients_ = false;
  std::vector<Bucket> buckets_;
  size_t trained_buckets_ = 0;  // the first of them
};

/// Host values (float32) into a parameter that is not held in 8 bits, wherever it is: value in its dtype and the
/// float32 master (as far as it is here), from element `offset` on.
void write_values(Parameter& parameter, int64_t offset, const float* values, int64_t count);

}  // namespace hone
