#include "ops/add/add.h"

#include "kernels/device_dispatch.h"

namespace hone {

void add(const Context& context, const AddArgs& args) { dispatch(context, args, &cpu::add, HONE_CUDA_OP(add)); }

void hand_down_sum(Tape& tape, Var a, Var b, float scale, const Tensor& dy) {
  bool given = false;
  for (const auto& [input, factor] : {std::pair<Var, float>{a, 1.0f}, {b, scale}}) {
    if (!tape.requires_grad(input)) continue;
    if (!given && factor == 1.0f && tape.alias_grad(input, dy)) {
      given = true;
      continue;
    }
    const GradDest dest = tape.grad_dest(input);
    add(tape.context(), {.a = dy, .b = {}, .y = dest.dst, .beta = dest.beta, .scale = factor});
  }
}

namespace {

struct AddNode : Node {
  float scale = 1.0f;

  std::string_view kind() const override { return "add"; }

  void forward(Tape& tape) override {
    add(tape.context(),
        {.a = tape.data(inputs[0]), .b = tape.data(inputs[1]), .y = tape.data(outputs[0]), .scale = scale});
  }

  void backward(Tape& tape) override { hand_down_sum(tape, inputs[0], inputs[1], scale, tape.grad(outputs[0])); }
};

struct ScaleNode : Node {
  float factor = 1.0f;
  const Weight* weight = nullptr;  // multiplies `factor`; may be null

  std::string_view kind() const override { return "scale"; }

  void forward(Tape& tape) override {
    add(tape.context(),
        {.a = tape.data(inputs[0]), .b = {}, .y = tape.data(outputs[0]), .scale = factor, .factor = view()});
  }

  void backward(Tape& tape) override {
    const GradDest dx = tape.grad_dest(inputs[0]);
    if (!dx.wanted()) return;
    add(tape.context(),
        {.a = tape.grad(outputs[0]), .b = {}, .y = dx.dst, .beta = dx.beta, .scale = factor, .factor = view()});
  }

  Tensor view() const { return weight ? weight->view().dense() : Tensor{}; }
};

Var record_scale(Tape& tape, Var x, float factor, const Weight* weight) {
  auto node = std::make_unique<ScaleNode>();
  node->inputs = {x};
  node->factor = factor;
  node->weight = weight;
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

}  // namespace

Var add(Tape& tape, Var a, Var b, float scale) {
  HONE_ASSERT(tape.shape(a) == tape.shape(b) && tape.dtype(a) == tape.dtype(b));
  auto node = std::make_unique<AddNode>();
  node->inputs = {a, b};
  node->scale = scale;
  const Var y = tape.add_output(*node, tape.shape(a), tape.dtype(a));
  tape.record(std::move(node));
  return y;
}

Var scale(Tape& tape, Var x, float factor) { return factor == 1.0f ? x : record_scale(tape, x, factor, nullptr); }

Var scale(Tape& tape, Var x, const Weight& factor) {
  HONE_ASSERT(factor.shape() == Shape{1});
  return record_scale(tape, x, 1.0f, &factor);
}

}  // namespace hone
