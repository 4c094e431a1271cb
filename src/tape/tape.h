// Tape: records op calls as they run and replays them backward.
//
// A model's forward is a list of blocks; the nodes of a block are re-run or differentiated together, so that all memory
// has one of four lifetimes, each a stack:
//   scratch    one op
//   block      one block's forward, or its backward (recomputed values and gradients)
//   kept       from forward until the block's backward has run
//   boundary   the gradient (or, without gradients, the value) that one block passes to its neighbour; two buffers
//   alternate
// A plan, recorded by a dry pass, decides per value whether it is kept: values that backward reads and whose producer
// is not recomputed, values that cross a block's boundary, and values an op marks Keep::kAlways.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "core/op_group.h"
#include "tape/kept_memory.h"
#include "tape/weight.h"

namespace hone {

class Tape;

/// A value on a tape.
struct Var {
  int32_t id = -1;
  bool defined() const { return id >= 0; }
};

enum class Keep {
  kPolicy,  ///< kept or recomputed as the policy says
  kAlways,  ///< never recomputed: choices that a re-run must not make again (top-k ids, permutations)
};

/// How much of forward is run again in backward instead of being kept: each level what the ones before it do, too.
enum class RecomputeLevel : uint8_t {
  kNone,
  kNorms,        ///< norms, rotations and latent keys: about a pass over memory each
  kActivations,  ///< activations of dense MLPs
  kExperts,      ///< gate and up of experts: a third more of their products
  kEverything,   ///< activation checkpointing: only values that cross blocks are kept
};

/// One recorded op call. `forward` writes the outputs from the inputs; `backward` reads `saved` values and the outputs'
/// gradients and writes the inputs' and the weights' gradients.
///
/// A node describes itself: profiles, recomputation and benchmarks know no op by its name. An op that says nothing is
/// memory-bound, has no products, and is run again at the last level alone: what its inputs cost to have again, no
/// default can know.
class Node {
 public:
  virtual ~Node() = default;
  /// The op's name in profiles.
  virtual std::string_view kind() const = 0;
  virtual OpGroup group() const { return OpGroup::kMemoryBound; }
  /// Multiply-adds × 2 of forward's products, adapters' not counted. Whoever states another group states this, too.
  virtual double flops(const Tape& tape) const;
  /// What forward and backward read and write; weights are not counted. Unless an op says otherwise: inputs and
  /// outputs; what is saved, the gradients that come in and those that go out.
  virtual double forward_bytes(const Tape& tape) const;
  virtual double backward_bytes(const Tape& tape) const;
  /// The first level at which outputs are not kept for backward but computed again, and with them those of the inputs
  /// that are not kept. kNorms is for an op of one pass over memory whose backward saves its inputs anyway.
  virtual RecomputeLevel recomputed_from() const { return RecomputeLevel::kEverything; }
  /// Runs the op. Called again in backward if an output was not kept (tape.replaying() is then true).
  virtual void forward(Tape& tape) = 0;
  virtual void backward(Tape& tape) = 0;
  /// True for a loss: backward runs without a gradient coming in.
  virtual bool starts_gradient() const { return false; }
  /// Whether backward reads the node's weights; its group need not be present otherwise.
  virtual bool backward_reads_weights() const { return true; }

  std::vector<Var> inputs;
  std::vector<Var> outputs;
  std::vector<Var> saved;          ///< values that backward reads, made present before it runs
  bool weights_want_grad = false;  ///< some weight or adapter of the node is trained
};

/// Which nodes run again in backward instead of keeping their outputs.
struct RecomputePolicy {
  RecomputeLevel level = RecomputeLevel::kNone;

  bool recomputes(const Node& node) const { return level >= node.recomputed_from(); }
};

/// Which values of a tape with a certain structure are kept; recorded by a first dry pass.
struct TapePlan {
  struct Fate {
    bool saved = false;    ///< some node's backward reads it
    bool crosses = false;  ///< used in a later block
  };
  bool recorded = false;
  std::vector<Fate> values;
};

/// The arenas of a tape; shared by training, evaluation and generation, sized by the largest.
struct TapeMemory {
  explicit TapeMemory(Device device);

  Arena scratch, block;
  KeptMemory kept;
  Arena boundary[2];

  void begin_dry();
  /// Allocates the high-water marks of the dry passes since begin_dry().
  void reserve();
  /// Bytes of all arenas on the device (dry: high-water marks; else capacities).
  size_t bytes() const;
};

struct TapeOptions {
  bool training = false;  ///< false: no gradients, nothing kept
  RecomputePolicy recompute;
};

class Tape {
 public:
  /// The plan is recorded if it has not been, else followed (the structure must be the same).
  Tape(const Context& context, TapeMemory& memory, TapePlan& plan, TapeOptions options);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  const Context& context() const { return context_; }
  bool training() const { return options_.training; }
  /// True while a node's forward runs for the second time.
  bool replaying() const { return replaying_; }

  /// A value from outside, which must outlive the tape; with `grad` (same shape and dtype) its gradient is written
  /// there.
  Var input(Tensor tensor, Tensor grad = {});

  /// Runs `body`, whose nodes form one block. Values made in it may be used in it and in the next block only.
  void block(const std::function<void()>& body);
  /// Runs `body` with `residency` acquired. Backward acquires it again at its first use, and releases it after the
  /// first node of `body`, which it visits last.
  void with(Residency& residency, const std::function<void()>& body);

  /// For ops: adds an output to a node whose inputs and weights_want_grad are set.
  Var add_output(Node& node, Shape shape, DType dtype, Keep keep = Keep::kPolicy);
  /// For ops: runs a node's forward and records the node.
  void record(std::unique_ptr<Node> node);

  /// Keeps `var` readable after its block: through the next block or, in the last block, until another tape uses the
  /// memory.
  void expose(Var var);

  /// Differentiates all recorded nodes, last block first.
  void backward();

  const Shape& shape(Var var) const;
  DType dtype(Var var) const;
  bool requires_grad(Var var) const;
  /// The value, present in a node's forward (inputs, outputs) and backward (saved).
  Tensor data(Var var) const;
  /// For backward: the gradient that has flowed to an output; undefined if none has.
  Tensor grad(Var var) const;
  /// For backward: the destination of an input's gradient; ask exactly once per use.
  GradDest grad_dest(Var var);
  /// For backward: lets `gradient` become the gradient of `var`, if nothing has been written there and the lifetimes
  /// allow; else returns false and the op writes to grad_dest. Later uses of `var` add to it in place, so a tensor is
  /// given away once.
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

  Tensor allocate(const Value& value);
  void ensure(Var var);
  void backward_block(int32_t index);
  void hold(Residency* residency, bool reads_values);
  void differentiate(Node& node, Residency* residency);
  void release_after(const Block& block, size_t node);
  Value& at(Var var);
  const Value& at(Var var) const;

  Context context_;
  TapeMemory& memory_;
  TapePlan& plan_;
  const bool recording_plan_;
  const TapeOptions options_;
  std::vector<Value> values_;
  std::vector<Block> blocks_;
  std::vector<Held> held_;
  Residency* residency_ = nullptr;
  bool replaying_ = false;
};

}  // namespace hone
