#include "ops/add/add.h"

#include "ops/device_dispatch.h"

namespace hone {

void add(const Context& context, const AddArgs& args) { dispatch(context, args, &cpu::add, HONE_CUDA_OP(add)); }

namespace {

struct AddNode : Node {
  std::string_view kind() const override { return "add"; }

  void forward(Tape& tape) override {
    add(tape.context(), {.a = tape.data(inputs[0]), .b = tape.data(inputs[1]), .y = tape.data(outputs[0])});
  }

  void backward(Tape& tape) override {
    const Tensor dy = tape.grad(outputs[0]);
    bool given = false;
    for (Var input : inputs) {
      if (!tape.requires_grad(input)) continue;
      if (!given && tape.alias_grad(input, dy)) {
        given = true;
        continue;
      }
      const GradDest dest = tape.grad_dest(input);
      add(tape.context(), {.a = dy, .b = {}, .y = dest.dst, .beta = dest.beta});
    }
  }
};

}  // namespace

Var add(Tape& tape, Var a, Var b) {
  HONE_ASSERT(tape.shape(a) == tape.shape(b) && tape.dtype(a) == tape.dtype(b));
  auto node = std::make_unique<AddNode>();
  node->inputs = {a, b};
  const Var y = tape.add_output(*node, tape.shape(a), tape.dtype(a));
  tape.record(std::move(node));
  return y;
}

}  // namespace hone
