// Tape: records op calls as they run and replays them backward.
//
// A model's forward is a list of blocks. The nodes of a block are recomputed and differentiated together, so all memory
// has one of four lifetimes, each a stack:
//   scratch    one op
//   block      one block's forward, or its backward (recomputed values and gradients)
//   kept       from forward until the block's backward has run
//   boundary   the gradient (or, without gradients or with a ValueFormat, the value) that one block passes to the next;
//              two buffers alternate
// A plan, recorded by a dry pass, decides which values are kept: values that backward reads and whose producer is not
// recomputed, values that cross a block's boundary, and values that an op marks Keep::kAlways. With a ValueFormat
// values that cross are kept in its fewer bytes: forward goes on with the exact ones, and backward, recomputation
// included, reads the rounded ones.
//
// Nodes run on the tape's device or, in Tape::on_host, on a CPU beside it, whose values have memory of the same
// lifetimes there (tape/host_side.h). A value is on the side on which its node was recorded; only the nodes of
// ops/transfer read values of the other side.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/op_group.h"
#include "core/stream/context.h"
#include "core/stream/stream_link.h"
#include "tape/kept_memory.h"
#include "tape/value_format.h"
#include "tape/weight.h"

namespace hone {

class HostSide;
class Tape;

/// A value on a tape.
struct Var {
  int32_t id = -1;
  bool defined() const { return id >= 0; }
};

enum class Keep {
  kPolicy,  ///< kept or recomputed, by the policy
  kAlways,  ///< never recomputed: choices that must not be made twice (top-k ids, permutations)
};

/// How much of forward is recomputed in backward instead of being kept. Each level includes the levels before it.
enum class RecomputeLevel : uint8_t {
  kNone,
  kNorms,        ///< norms, RoPE and latent keys: about one pass over memory each
  kActivations,  ///< activations of dense MLPs
  kExperts,      ///< gate and up projections of experts: a third more products of experts
  /// All but what attention returns, whose products grow with the square of a document: a few rows a token are kept.
  kAllButAttention,
  kEverything,  ///< activation checkpointing: only values that cross blocks are kept
};

/// One recorded op call. `forward` writes the outputs from the inputs; `backward` reads `saved` values and the outputs'
/// gradients and writes the inputs' and the weights' gradients.
///
/// A node describes its own costs: profiles, recomputation and benchmarks contain no op names. By default an op is
/// memory-bound, has no products, and is recomputed only where nearly everything is, since the cost of recomputing its
/// inputs is unknown.
class Node {
 public:
  virtual ~Node() = default;
  /// The op's name in profiles.
  virtual std::string_view kind() const = 0;
  virtual OpGroup group() const { return OpGroup::kMemoryBound; }
  /// Multiply-adds × 2 of forward's products, without adapters. An op that overrides group() overrides this, too.
  virtual double flops(const Tape& tape) const;
  /// Bytes that forward and backward read and write, without weights. Defaults: inputs and outputs; saved values and
  /// the gradients of outputs and inputs.
  virtual double forward_bytes(const Tape& tape) const;
  virtual double backward_bytes(const Tape& tape) const;
  /// The first level at which outputs are recomputed in backward instead of being kept; inputs that are not kept are
  /// recomputed, too. kNorms is for an op of one pass over memory whose backward reads its inputs anyway.
  virtual RecomputeLevel recomputed_from() const { return RecomputeLevel::kAllButAttention; }
  /// Runs the op. Called again in backward if an output was not kept; tape.replaying() is then true.
  virtual void forward(Tape& tape) = 0;
  virtual void backward(Tape& tape) = 0;
  /// True for a loss: backward runs without gradients of the outputs.
  virtual bool starts_gradient() const { return false; }
  /// Whether backward reads the node's weights; if not, their values need not be present.
  virtual bool backward_reads_weights() const { return true; }
  /// Whether its inputs may be on the other side than its outputs.
  virtual bool crosses_sides() const { return false; }

  std::vector<Var> inputs;
  std::vector<Var> outputs;
  std::vector<Var> saved;          ///< values that backward reads; they are present when it runs
  bool weights_want_grad = false;  ///< a weight or adapter of the node is trained
};

/// Selects the nodes that run again in backward instead of keeping their outputs.
struct RecomputePolicy {
  RecomputeLevel level = RecomputeLevel::kNone;
  /// Whether the level is for nodes on the host, too: their values take host memory, of which there is more, and their
  /// products are the slowest of a step.
  bool on_host = false;

  bool recomputes(const Node& node, Side side) const {
    return (side == Side::kDevice || on_host) && level >= node.recomputed_from();
  }
};

/// The values that a tape keeps; recorded by the first dry pass, and valid for tapes of the same structure.
struct TapePlan {
  struct Fate {
    bool saved = false;    ///< a node's backward reads it
    bool crosses = false;  ///< used in a later block
  };
  bool recorded = false;
  std::vector<Fate> values;
};

/// What nodes compute and move: Node::flops, forward_bytes and backward_bytes.
struct NodeWork {
  double flops = 0, bytes = 0;
};

/// The work of a training tape. A product's gradients of its input and of its weight count as a forward product each,
/// an adapter's as its weight's.
struct TapeWork {
  NodeWork forward, recompute, backward;
};

/// The arenas of a tape. Training, evaluation and generation share them; the largest sets their sizes.
struct TapeMemory {
  explicit TapeMemory(Device device);

  Arena scratch, block;
  KeptMemory kept;
  Arena boundary[2];
  TapeWork work;  ///< that a dry pass counted in its last training tape

  void begin_dry();
  /// Allocates the high-water marks of the dry passes since begin_dry().
  void reserve();
  /// Bytes of all arenas on the device (dry: high-water marks; else capacities).
  size_t bytes() const;
};

struct TapeOptions {
  bool training = false;  ///< false: no gradients, nothing kept
  RecomputePolicy recompute;
  /// How values that cross blocks, but those of Keep::kAlways, are kept for backward; null: as they are.
  const ValueFormat* crossing = nullptr;
};

class Tape {
 public:
  /// Records the plan if it is empty (in a dry pass), else follows it; the structure must then be the same. `host`: for
  /// on_host(), dry if the context is; or null. It must outlive the tape.
  Tape(const Context& context, TapeMemory& memory, TapePlan& plan, TapeOptions options, HostSide* host = nullptr);
  /// The pass of a node that runs parts of its work on tapes of their own.
  enum class PartOf : uint8_t { kForward, kBackward };
  /// A tape for such a part, on the device, while the node runs: one block, whose values are in the memory of outer's
  /// until this ends. Of kBackward record() runs no forward: backward() computes the values that it reads.
  Tape(Tape& outer, PartOf pass);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// The context of the side on which nodes are recorded or a node runs.
  const Context& context() const;
  /// The device's, wherever a node runs.
  const Context& device_context() const { return context_; }
  HostSide& host() const {
    HONE_ASSERT(host_ != nullptr, "the tape has no host side");
    return *host_;
  }
  bool training() const { return options_.training; }
  /// True while a node's forward is recomputed.
  bool replaying() const { return replaying_; }

  /// Adds a value from outside; it must outlive the tape. Its gradient is written to `grad` (same shape and dtype), if
  /// that is defined.
  Var input(Tensor tensor, Tensor grad = {});
  /// The same for a part, which adds to the gradient if beta is 1.
  Var input(Tensor tensor, GradDest grad);

  /// Runs `body`, whose nodes form one block. Only this block and the next one may use values made in it.
  void block(const std::function<void()>& body);
  /// Runs `body` with `residency` acquired. Backward acquires it again at its first use, and releases it after it has
  /// visited all nodes of `body`, the first one last.
  void with(Residency& residency, const std::function<void()>& body);

  /// Runs `body`, whose nodes run on the host and whose values are there.
  void on_host(const std::function<void()>& body);

  /// For ops: adds an output to a node whose inputs and weights_want_grad are set.
  Var add_output(Node& node, Shape shape, DType dtype, Keep keep = Keep::kPolicy);
  /// For ops: runs a node's forward and records the node.
  void record(std::unique_ptr<Node> node);

  /// Keeps `var` readable after its block: during the next block or, in the last block, until another tape uses the
  /// memory. Not for training with a ValueFormat.
  void expose(Var var);

  /// Differentiates all recorded nodes, last block first.
  void backward();
  /// Differentiates the nodes of a part, whose `output` has this gradient.
  void backward(Var output, Tensor gradient);

  const Shape& shape(Var var) const;
  DType dtype(Var var) const;
  bool requires_grad(Var var) const;
  /// The value, present in a node's forward (inputs, outputs) and backward (saved).
  Tensor data(Var var) const;
  /// For backward: the gradient of an output; undefined if no use of the output gave one.
  Tensor grad(Var var) const;
  /// For backward: the destination of an input's gradient. Call it exactly once per use.
  GradDest grad_dest(Var var);
  /// For backward: makes `gradient` the gradient of `var` and returns true, if `var` has no gradient yet and the
  /// lifetimes allow it; else returns false, and the op writes to grad_dest(var). Later uses of `var` add to the tensor
  /// in place: an op may pass a tensor for one input only.
  bool alias_grad(Var var, Tensor gradient);

 private:
  struct Value;
  struct Block;
  /// A residency that backward has acquired.
  struct Held {
    Residency* residency;
    bool reads_values;
    Use use() const { return {.backward = true, .reads_values = reads_values}; }
  };

  class OnSide;

  TapeMemory& memory_of(Side side) const;
  /// In a dry training pass, adds `bytes` and `products` products of a node to the work of its side.
  void count(NodeWork TapeWork::*pass, const Node& node, double bytes, int products);
  /// Calls f with the context and the memory of each side.
  template <class F>
  void on_each_side(F f);
  void place(Value& value, const Node& node, Keep keep);
  /// Keeps the values of the block that has run forward in options_.crossing.
  void pack_crossing();
  /// Forgets exact and unpacked values of a block, of which the packed ones are kept.
  void drop_exact(const Block& block);
  /// Takes the packed value to the memory of the block that runs backward.
  void unpack(Value& value);
  void run_forward(Node& node, NodeWork TapeWork::*pass);
  void ensure(Var var);
  void backward_block(int32_t index);
  void hold(Residency* residency, bool reads_values);
  void differentiate(Node& node, Side side, Residency* residency);
  void release_after(const Block& block, size_t node);
  Value& at(Var var);
  const Value& at(Var var) const;

  Context context_;
  TapeMemory& memory_;
  TapePlan& plan_;
  const bool recording_plan_;
  const TapeOptions options_;
  HostSide* const host_;
  const std::optional<PartOf> part_ = {};
  std::optional<ArenaScope> part_memory_;
  Side side_ = Side::kDevice;
  std::vector<Value> values_;
  std::vector<Block> blocks_;
  std::vector<Held> held_;
  Residency* residency_ = nullptr;
  bool replaying_ = false;
};

}  // namespace hone
