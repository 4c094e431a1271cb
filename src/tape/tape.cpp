#include "tape/tape.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/stream/profiler.h"
#include "tape/host_side.h"

namespace hone {

struct Tape::Value {
  Shape shape;
  DType dtype = DType::kF32;
  Tensor data;
  Tensor packed = {};  // what is kept of it if it crosses blocks in a ValueFormat
  Tensor grad;
  Node* producer = nullptr;        // null for a value from outside
  Residency* residency = nullptr;  // the residency that the producer needs to run again
  int32_t block = -1;
  Side side = Side::kDevice;  // its own and its producer's
  bool requires_grad = false;
  bool grad_written = false;
  bool kept = false;   // its data outlives the block's forward
  bool packs = false;  // but only until the next block's has run; what remains is packed
};

struct Tape::Block {
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Residency*> residencies;  // parallel to nodes
  std::vector<Side> sides;              // the same
  std::vector<int32_t> values;
};

/// Work of a side: nodes are recorded there, or one of them runs.
class Tape::OnSide {
 public:
  OnSide(Tape& tape, Side side) : tape_(tape), before_(std::exchange(tape.side_, side)) {}
  ~OnSide() { tape_.side_ = before_; }
  OnSide(const OnSide&) = delete;
  OnSide& operator=(const OnSide&) = delete;

 private:
  Tape& tape_;
  Side before_;
};

namespace {

/// In profiles: values that cross blocks, to a ValueFormat and back.
constexpr std::string_view kPacking = "layer_inputs";

double bytes_of(const Tape& tape, const std::vector<Var>& vars) {
  double bytes = 0;
  for (Var var : vars) bytes += static_cast<double>(tape.shape(var).numel()) * size_of(tape.dtype(var));
  return bytes;
}

}  // namespace

double Node::flops(const Tape&) const {
  HONE_ASSERT(group() == OpGroup::kMemoryBound, kind());
  return 0;
}

double Node::forward_bytes(const Tape& tape) const { return bytes_of(tape, inputs) + bytes_of(tape, outputs); }

double Node::backward_bytes(const Tape& tape) const {
  std::vector<Var> gradients = outputs;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(gradients),
               [&](Var var) { return tape.requires_grad(var); });
  return bytes_of(tape, saved) + bytes_of(tape, gradients);
}

TapeMemory::TapeMemory(Device device)
    : scratch(device, "scratch"),
      block(device, "block"),
      kept(device),
      boundary{Arena(device, "boundary 0"), Arena(device, "boundary 1")} {}

void TapeMemory::begin_dry() {
  for (Arena* arena : {&scratch, &block, &boundary[0], &boundary[1]}) arena->begin_dry();
  kept.begin_dry();
}

void TapeMemory::reserve() {
  for (Arena* arena : {&scratch, &block, &boundary[0], &boundary[1]}) arena->reserve(arena->high_water());
  kept.reserve();
}

size_t TapeMemory::bytes() const {
  size_t total = kept.bytes();
  for (const Arena* arena : {&scratch, &block, &boundary[0], &boundary[1]}) {
    total += arena->dry() ? arena->high_water() : arena->capacity();
  }
  return total;
}

Tape::Tape(const Context& context, TapeMemory& memory, TapePlan& plan, TapeOptions options, HostSide* host)
    : context_(context), memory_(memory), plan_(plan), recording_plan_(!plan.recorded), options_(options), host_(host) {
  HONE_ASSERT(!recording_plan_ || context.dry(), "a plan is recorded by a dry pass");
  HONE_ASSERT(host == nullptr || host->context().dry() == context.dry());
  // Ops on the host report their kernels where those on the device do.
  if (host != nullptr) host->stream().set_kernel_notes(context.stream().kernel_notes());
  on_each_side([&](const Context&, TapeMemory& of) {
    if (context_.dry() && training()) of.work = {};
    of.block.release(0);
    of.kept.begin_pass();
    for (Arena& arena : of.boundary) arena.release(0);
  });
}

Tape::Tape(Tape& outer, PartOf pass)
    : context_(outer.context_),
      memory_(outer.memory_),
      plan_(outer.plan_),
      recording_plan_(false),
      options_(outer.options_),
      host_(nullptr),
      part_(pass),
      replaying_(outer.replaying_) {
  HONE_ASSERT(outer.side_ == Side::kDevice, "parts run on the device");
  part_memory_.emplace(memory_.block);
  blocks_.emplace_back();
}

Tape::~Tape() {
  if (host_ != nullptr) host_->stream().set_kernel_notes(nullptr);  // which may end before the host's stream
  if (recording_plan_) plan_.recorded = true;
}

const Context& Tape::context() const { return side_ == Side::kDevice ? context_ : host().context(); }

void Tape::count(NodeWork TapeWork::*pass, const Node& node, double bytes, int products) {
  if (!training()) return;
  NodeWork& work = memory_of(side_).work.*pass;
  work.flops += products * node.flops(*this);
  work.bytes += bytes;
}

TapeMemory& Tape::memory_of(Side side) const { return side == Side::kDevice ? memory_ : host().memory(); }

template <class F>
void Tape::on_each_side(F f) {
  f(context_, memory_);
  if (host_ != nullptr) f(host_->context(), host_->memory());
}

void Tape::on_host(const std::function<void()>& body) {
  HONE_ASSERT(host_ != nullptr, "the tape has no host side");
  const OnSide scope(*this, Side::kHost);
  body();
}

Tape::Value& Tape::at(Var var) {
  HONE_ASSERT(var.defined());
  return values_[static_cast<size_t>(var.id)];
}
const Tape::Value& Tape::at(Var var) const { return const_cast<Tape*>(this)->at(var); }

const Shape& Tape::shape(Var var) const { return at(var).shape; }
DType Tape::dtype(Var var) const { return at(var).dtype; }
bool Tape::requires_grad(Var var) const { return at(var).requires_grad; }

Tensor Tape::data(Var var) const {
  HONE_ASSERT(at(var).data.defined(), "the value is not present: is it missing in `saved`?");
  return at(var).data;
}

Tensor Tape::grad(Var var) const { return at(var).grad_written ? at(var).grad : Tensor{}; }

Var Tape::input(Tensor tensor, Tensor grad) {
  Value value;
  value.shape = tensor.shape;
  value.dtype = tensor.dtype;
  value.data = tensor;
  value.kept = true;
  value.grad = grad;
  value.requires_grad = grad.defined() && training();
  values_.push_back(value);
  if (recording_plan_) plan_.values.emplace_back();
  return {static_cast<int32_t>(values_.size()) - 1};
}

Var Tape::input(Tensor tensor, GradDest grad) {
  HONE_ASSERT(part_.has_value());
  const Var var = input(tensor, grad.dst);
  at(var).grad_written = grad.wanted() && grad.beta != 0.0f;
  return var;
}

void Tape::block(const std::function<void()>& body) {
  HONE_ASSERT(!part_, "a part is one block");
  const auto index = static_cast<int32_t>(blocks_.size());
  blocks_.emplace_back();
  if (host_ != nullptr) host_->enter_block();
  on_each_side([&](const Context&, TapeMemory& memory) {
    memory.block.release(0);
    if (!training() || options_.crossing != nullptr) memory.boundary[index % 2].release(0);
  });
  {
    const ProfileScope scope(context_, ProfileKind::kBlock, "block", "forward", index);
    if (training()) {
      on_each_side([&](const Context& context, TapeMemory& memory) { memory.kept.begin_forward(context, index); });
    }
    body();
    pack_crossing();
    if (training()) on_each_side([](const Context& context, TapeMemory& memory) { memory.kept.end_forward(context); });
  }
  HONE_ASSERT(static_cast<int32_t>(blocks_.size()) == index + 1, "blocks do not nest");
  for (int32_t id : blocks_.back().values) {
    Value& value = at({id});
    if (!value.kept) value.data = {};
  }
  if (index > 0) drop_exact(blocks_[static_cast<size_t>(index) - 1]);
}

void Tape::pack_crossing() {
  for (const int32_t id : blocks_.back().values) {
    Value& value = at({id});
    if (!value.packs) continue;
    const OnSide side(*this, value.side);
    TapeMemory& memory = memory_of(side_);
    value.packed = memory.kept.take({options_.crossing->bytes(value.shape)}, DType::kU8);
    const ProfileScope scope(context(), OpGroup::kMemoryBound, kPacking, "forward");
    options_.crossing->pack(context(), value.data, value.packed);
    const auto bytes = static_cast<double>(value.data.bytes() + value.packed.bytes());
    if (scope.profiled()) scope.set_work(bytes, 0);
    if (context_.dry()) memory.work.forward.bytes += bytes;
  }
}

void Tape::unpack(Value& value) {
  const OnSide side(*this, value.side);
  TapeMemory& memory = memory_of(side_);
  value.data = memory.block.take(value.shape, value.dtype);
  const ProfileScope scope(context(), OpGroup::kMemoryBound, kPacking, "recompute");
  options_.crossing->unpack(context(), value.packed, value.data);
  const auto bytes = static_cast<double>(value.data.bytes() + value.packed.bytes());
  if (scope.profiled()) scope.set_work(bytes, 0);
  if (context_.dry()) memory.work.recompute.bytes += bytes;
}

void Tape::drop_exact(const Block& block) {
  for (const int32_t id : block.values) {
    if (Value& value = at({id}); value.packs) value.data = {};
  }
}

void Tape::with(Residency& residency, const std::function<void()>& body) {
  HONE_ASSERT(residency_ == nullptr, "residencies do not nest");
  residency_ = &residency;
  residency.acquire(context_, {});
  body();
  residency.release(context_, {});
  residency_ = nullptr;
}

/// Takes memory for the value that is added next, of as long a lifetime as the plan says.
void Tape::place(Value& value, const Node& node, Keep keep) {
  const size_t index = values_.size();
  if (recording_plan_) plan_.values.emplace_back();
  HONE_ASSERT(index < plan_.values.size(), "the tape differs from its plan");
  const TapePlan::Fate& fate = plan_.values[index];
  const bool until_backward =
      training() && (keep == Keep::kAlways || (fate.saved && !options_.recompute.recomputes(node, side_)));
  value.kept = recording_plan_ || fate.crosses || until_backward;
  value.packs = training() && options_.crossing != nullptr && !recording_plan_ && fate.crosses && keep == Keep::kPolicy;
  TapeMemory& memory = memory_of(side_);
  if (value.kept && training() && !value.packs) {
    value.data = memory.kept.take(value.shape, value.dtype);
  } else {
    Arena& arena = value.kept ? memory.boundary[value.block % 2] : memory.block;
    value.data = arena.take(value.shape, value.dtype);
  }
}

Var Tape::add_output(Node& node, Shape shape, DType dtype, Keep keep) {
  HONE_ASSERT(!blocks_.empty(), "ops run inside a block");
  const Var var{static_cast<int32_t>(values_.size())};
  Value value;
  value.shape = shape;
  value.dtype = dtype;
  value.producer = &node;
  value.residency = residency_;
  value.block = static_cast<int32_t>(blocks_.size()) - 1;
  value.side = side_;
  if (training()) {
    value.requires_grad = node.weights_want_grad || node.starts_gradient();
    for (Var input : node.inputs) value.requires_grad |= requires_grad(input);
  }
  if (!part_) {
    place(value, node, keep);
  } else if (part_ == PartOf::kForward) {
    value.data = memory_.block.take(shape, dtype);
  }
  values_.push_back(value);
  blocks_.back().values.push_back(var.id);
  node.outputs.push_back(var);
  return var;
}

void Tape::record(std::unique_ptr<Node> node) {
  const auto block = static_cast<int32_t>(blocks_.size()) - 1;
  for (Var input : node->inputs) {
    HONE_ASSERT(at(input).side == side_ || node->crosses_sides(), "a value is used on the side where it is not");
  }
  if (recording_plan_) {
    for (Var input : node->inputs) {
      if (at(input).producer != nullptr && at(input).block != block) {
        HONE_ASSERT(at(input).block == block - 1, "a value is used beyond the next block");
        plan_.values[static_cast<size_t>(input.id)].crosses = true;
      }
    }
  }
  if (part_ != PartOf::kBackward) run_forward(*node, &TapeWork::forward);
  const bool differentiated =
      std::any_of(node->outputs.begin(), node->outputs.end(), [&](Var v) { return requires_grad(v); });
  if (recording_plan_ && differentiated) {
    for (Var var : node->saved) plan_.values[static_cast<size_t>(var.id)].saved = true;
  }
  blocks_.back().residencies.push_back(residency_);
  blocks_.back().sides.push_back(side_);
  blocks_.back().nodes.push_back(std::move(node));
}

void Tape::expose(Var var) {
  if (recording_plan_) plan_.values[static_cast<size_t>(var.id)].crosses = true;
  HONE_ASSERT(at(var).kept, "the tape differs from its plan");
  HONE_ASSERT(!at(var).packs, "what is exposed is not packed");
}

void Tape::ensure(Var var) {
  Value& value = at(var);
  if (value.data.defined()) return;
  if (value.packs) return unpack(value);
  Node& node = *value.producer;
  for (Var input : node.inputs) ensure(input);
  const OnSide side(*this, value.side);
  for (Var output : node.outputs) {
    if (at(output).data.defined()) continue;
    at(output).data = memory_of(side_).block.take(at(output).shape, at(output).dtype);
  }
  hold(value.residency, true);
  const bool replayed = std::exchange(replaying_, true);
  run_forward(node, &TapeWork::recompute);
  replaying_ = replayed;
}

void Tape::run_forward(Node& node, NodeWork TapeWork::*pass) {
  if (part_) return node.forward(*this);  // in the span of the node whose part this is
  const ProfileScope scope(context(), node.group(), node.kind(), pass == &TapeWork::forward ? "forward" : "recompute");
  node.forward(*this);
  if (scope.profiled()) scope.set_work(node.forward_bytes(*this), node.flops(*this));
  if (context_.dry()) count(pass, node, node.forward_bytes(*this), 1);
}

void Tape::hold(Residency* residency, bool reads_values) {
  if (residency == nullptr) return;
  auto held = std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.residency == residency; });
  if (held == held_.end()) {
    held = held_.insert(held_.end(), {residency, reads_values});
  } else if (held->reads_values || !reads_values) {
    return;
  }
  held->reads_values = reads_values;
  residency->acquire(context_, held->use());
}

GradDest Tape::grad_dest(Var var) {
  Value& value = at(var);
  if (!value.requires_grad) return {};
  if (value.grad_written) return {value.grad, 1.0f};
  if (!value.grad.defined()) {
    const bool of_this_block = value.block == static_cast<int32_t>(blocks_.size()) - 1;
    TapeMemory& memory = memory_of(value.side);
    Arena& arena = of_this_block ? memory.block : memory.boundary[std::max(value.block, 0) % 2];
    value.grad = arena.take(value.shape, value.dtype);
  }
  value.grad_written = true;
  return {value.grad, 0.0f};
}

bool Tape::alias_grad(Var var, Tensor gradient) {
  Value& value = at(var);
  const bool of_this_block = value.block == static_cast<int32_t>(blocks_.size()) - 1;
  if (!value.requires_grad || value.grad_written || !of_this_block) return false;
  HONE_ASSERT(gradient.shape == value.shape && gradient.dtype == value.dtype);
  value.grad = gradient;
  value.grad_written = true;
  return true;
}

void Tape::backward() {
  HONE_ASSERT(training(), "this tape keeps no gradients");
  if (options_.crossing != nullptr) {  // forward's values give way to gradients
    on_each_side([](const Context&, TapeMemory& memory) {
      for (Arena& arena : memory.boundary) arena.release(0);
    });
  }
  while (!blocks_.empty()) {
    const auto block = static_cast<int32_t>(blocks_.size()) - 1;
    if (host_ != nullptr) host_->enter_block();
    on_each_side([&](const Context& context, TapeMemory& memory) {
      memory.block.release(0);
      memory.kept.begin_backward(context, block);
    });
    backward_block(block);
    HONE_ASSERT(held_.empty());
    on_each_side([&](const Context&, TapeMemory& memory) {
      memory.kept.end_backward(block);
      memory.boundary[block % 2].release(0);
    });
    for (int32_t id : blocks_.back().values) at({id}).data = at({id}).grad = {};
    blocks_.pop_back();
    if (!blocks_.empty()) drop_exact(blocks_.back());
  }
}

void Tape::backward(Var output, Tensor gradient) {
  HONE_ASSERT(training() && part_ == PartOf::kBackward);
  Value& value = at(output);
  HONE_ASSERT(value.producer != nullptr && gradient.shape == value.shape && gradient.dtype == value.dtype);
  value.grad = gradient;
  value.grad_written = true;
  const std::vector<std::unique_ptr<Node>>& nodes = blocks_.front().nodes;
  for (size_t i = nodes.size(); i-- > 0;) differentiate(*nodes[i], Side::kDevice, nullptr);
}

void Tape::backward_block(int32_t index) {
  const ProfileScope block_scope(context_, ProfileKind::kBlock, "block", "backward", index);
  Block& block = blocks_[static_cast<size_t>(index)];
  for (size_t i = block.nodes.size(); i-- > 0;) {
    differentiate(*block.nodes[i], block.sides[i], block.residencies[i]);
    release_after(block, i);
  }
}

void Tape::differentiate(Node& node, Side side, Residency* residency) {
  const auto& outputs = node.outputs;
  const bool flows =
      node.starts_gradient() || std::any_of(outputs.begin(), outputs.end(), [&](Var v) { return at(v).grad_written; });
  const bool differentiated = std::any_of(outputs.begin(), outputs.end(), [&](Var v) { return requires_grad(v); });
  if (!flows || !differentiated) return;
  for (Var var : node.saved) ensure(var);
  hold(residency, node.backward_reads_weights());
  const OnSide on_side(*this, side);
  if (part_) return node.backward(*this);
  const ProfileScope scope(context(), node.group(), node.kind(), "backward");
  node.backward(*this);
  if (scope.profiled()) scope.set_work(node.backward_bytes(*this), 0);
  if (!context_.dry()) return;
  const bool input_wants_grad =
      std::any_of(node.inputs.begin(), node.inputs.end(), [&](Var input) { return requires_grad(input); });
  count(&TapeWork::backward, node, node.backward_bytes(*this), int{input_wants_grad} + int{node.weights_want_grad});
}

/// Releases the residency of node `node` unless an earlier node of the block uses it, too. The node and all later ones
/// have been differentiated, and backward of an earlier node never recomputes a later one.
void Tape::release_after(const Block& block, size_t node) {
  Residency* const residency = block.residencies[node];
  const auto held = std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.residency == residency; });
  const auto here = block.residencies.begin() + static_cast<std::ptrdiff_t>(node);
  if (held == held_.end() || std::find(block.residencies.begin(), here, residency) != here) return;
  const Use use = held->use();
  held_.erase(held);
  residency->release(context_, use);
}

}  // namespace hone
