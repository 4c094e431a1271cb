// A node that passes a given gradient to its input, to start the backward pass in benchmarks of ops.
#pragma once

#include "ops/cast/cast.h"
#include "tape/tape.h"

namespace hone {

struct StartGradient : Node {
  Tensor gradient;

  std::string_view kind() const override { return "start_gradient"; }
  bool starts_gradient() const override { return true; }
  void forward(Tape&) override {}
  void backward(Tape& tape) override { copy(tape.context(), gradient, tape.grad_dest(inputs[0]).dst); }

  /// Recorded at the end of a tape's block, for `output`.
  static void record(Tape& tape, Var output, const Tensor& gradient) {
    auto start = std::make_unique<StartGradient>();
    start->gradient = gradient;
    start->inputs = {output};
    tape.add_output(*start, {1}, DType::kF32);
    tape.record(std::move(start));
  }
};

}  // namespace hone
