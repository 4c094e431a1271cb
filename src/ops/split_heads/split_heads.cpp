#include "ops/split_heads/split_heads.h"

#include <algorithm>

#include "kernels/device_dispatch.h"

namespace hone {

int64_t HeadParts::width() const {
  int64_t total = 0;
  for (const HeadPart& part : list) total += part.width;
  return total;
}

int HeadParts::outputs() const {
  int last = -1;
  for (const HeadPart& part : list) last = std::max(last, part.output);
  return last + 1;
}

int64_t HeadParts::output_width(int output) const {
  int64_t total = 0;
  for (const HeadPart& part : list) total += part.output == output ? heads * part.width : 0;
  return total;
}

int64_t HeadParts::begin_in_output(size_t part) const {
  int64_t begin = 0;
  for (size_t p = 0; p < part; ++p) begin += list[p].output == list[part].output ? heads * list[p].width : 0;
  return begin;
}

void split_heads(const Context& context, const SplitHeadsArgs& args) {
  dispatch(context, args, &cpu::split_heads, HONE_CUDA_OP(split_heads));
}
void split_heads_grad(const Context& context, const SplitHeadsGradArgs& args) {
  dispatch(context, args, &cpu::split_heads_grad, HONE_CUDA_OP(split_heads_grad));
}

namespace {

struct SplitHeadsNode : Node {
  HeadParts parts;

  std::string_view kind() const override { return "split_heads"; }

  void forward(Tape& tape) override {
    SplitHeadsArgs args{.x = tape.data(inputs[0]), .y = {}, .parts = parts};
    for (size_t o = 0; o < outputs.size(); ++o) args.y[o] = tape.data(outputs[o]);
    split_heads(tape.context(), args);
  }

  void backward(Tape& tape) override {
    SplitHeadsGradArgs args{.dy = {}, .dx = tape.grad_dest(inputs[0]), .parts = parts};
    for (size_t o = 0; o < outputs.size(); ++o) args.dy[o] = tape.grad(outputs[o]);
    if (args.dx.wanted()) split_heads_grad(tape.context(), args);
  }
};

}  // namespace

std::vector<Var> split_heads(Tape& tape, Var x, const HeadParts& parts) {
  HONE_ASSERT(!parts.list.empty() && parts.list.size() <= kMaxHeadParts);
  HONE_ASSERT(tape.shape(x).rank() == 2 && tape.shape(x)[1] == parts.heads * parts.width());
  auto node = std::make_unique<SplitHeadsNode>();
  node->parts = parts;
  node->inputs = {x};
  std::vector<Var> result;
  for (int o = 0; o < parts.outputs(); ++o) {
    result.push_back(tape.add_output(*node, {tape.shape(x)[0], parts.output_width(o)}, tape.dtype(x)));
  }
  tape.record(std::move(node));
  return result;
}

}  // namespace hone
