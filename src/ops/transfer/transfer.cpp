#include "ops/transfer/transfer.h"

#include <memory>
#include <utility>

#include "ops/add/add.h"
#include "tape/host_side.h"

namespace hone {

namespace {

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

/// Both directions: they differ in the side on which the node is recorded, that of its outputs.
struct TransferNode : Node {
  Side to = Side::kHost;

  std::string_view kind() const override { return to == Side::kHost ? "to_host" : "to_device"; }
  OpGroup group() const override { return OpGroup::kExperts; }
  double flops(const Tape&) const override { return 0; }
  bool crosses_sides() const override { return true; }

  void forward(Tape& tape) override {
    std::vector<HostSide::Crossing> values;
    for (size_t i = 0; i < inputs.size(); ++i) values.push_back({tape.data(outputs[i]), tape.data(inputs[i])});
    tape.host().cross(to, values);
  }

  void backward(Tape& tape) override {
    const Side back = other_side(to);
    const Context& context = back == Side::kHost ? tape.host().context() : tape.device_context();
    ArenaScope scratch(context.scratch());
    std::vector<HostSide::Crossing> gradients;
    std::vector<std::pair<GradDest, Tensor>> added;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor dy = tape.grad(outputs[i]);
      if (!dy.defined() || !tape.requires_grad(inputs[i])) continue;
      const GradDest dx = tape.grad_dest(inputs[i]);
      Tensor arrived = dx.dst;
      if (dx.beta != 0) added.emplace_back(dx, arrived = scratch.take(dx.dst.shape, dx.dst.dtype));
      gradients.push_back({arrived, dy});
    }
    if (!gradients.empty()) tape.host().cross(back, gradients);
    for (const auto& [dx, arrived] : added) add(context, {.a = arrived, .b = {}, .y = dx.dst, .beta = dx.beta});
  }
};

std::vector<Var> record(Tape& tape, Side to, const std::vector<Var>& values) {
  auto node = std::make_unique<TransferNode>();
  node->to = to;
  for (Var value : values) {
    // An output asks for a gradient if its own input does.
    if (is_float(tape.dtype(value))) node->inputs = {value};
    tape.add_output(*node, tape.shape(value), tape.dtype(value));
    node->inputs.clear();
  }
  node->inputs = values;
  std::vector<Var> outputs = node->outputs;
  tape.record(std::move(node));
  return outputs;
}

}  // namespace

std::vector<Var> to_host(Tape& tape, const std::vector<Var>& values) {
  std::vector<Var> outputs;
  tape.on_host([&] { outputs = record(tape, Side::kHost, values); });
  return outputs;
}

Var to_device(Tape& tape, Var value) { return record(tape, Side::kDevice, {value}).front(); }

}  // namespace hone
