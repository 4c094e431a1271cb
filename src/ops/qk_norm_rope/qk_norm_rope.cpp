#include "ops/qk_norm_rope/qk_norm_rope.h"

#include "kernels/device_dispatch.h"

namespace hone {

void qk_norm_rope(const Context& context, const QkNormRopeArgs& args) {
  dispatch(context, args, &cpu::qk_norm_rope, HONE_CUDA_OP(qk_norm_rope));
}

void qk_norm_rope_pair(const Context& context, const QkNormRopePairArgs& args) {
  dispatch(context, args, &cpu::qk_norm_rope_pair, HONE_CUDA_OP(qk_norm_rope_pair));
}

void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args) {
  dispatch(context, args, &cpu::qk_norm_rope_backward, &cuda::qk_norm_rope_backward);
}

namespace {

struct QkNormRopeNode : Node {
  Weight* norm = nullptr;
  QkNormRopeArgs constants;

  std::string_view kind() const override { return "qk_norm_rope"; }
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kNorms; }

  QkNormRopeArgs args() const {
    QkNormRopeArgs result = constants;
    if (norm) result.norm = norm->view().dense();
    return result;
  }

  void forward(Tape& tape) override {
    QkNormRopeArgs call = args();
    call.x = tape.data(inputs[0]);
    call.y = tape.data(outputs[0]);
    qk_norm_rope(tape.context(), call);
  }

  void backward(Tape& tape) override {
    QkNormRopeBackwardArgs call{.forward = args(), .dy = tape.grad(outputs[0]), .dx = {}, .dnorm = {}};
    if (norm) call.forward.x = tape.data(inputs[0]);
    call.dx = tape.grad_dest(inputs[0]);
    if (norm && norm->wants_grad()) call.dnorm = norm->grad();
    qk_norm_rope_backward(tape.context(), call);
  }
};

/// For a tape that does not train.
struct QkNormRopePairNode : Node {
  QkNorms norms = {};
  QkNormRopeArgs constants;

  std::string_view kind() const override { return "qk_norm_rope"; }

  void forward(Tape& tape) override {
    const auto args = [&](size_t i) {
      QkNormRopeArgs result = constants;
      if (norms[i] != nullptr) result.norm = norms[i]->view().dense();
      result.x = tape.data(inputs[i]);
      result.y = tape.data(outputs[i]);
      return result;
    };
    qk_norm_rope_pair(tape.context(), {.q = args(0), .k = args(1)});
  }

  void backward(Tape&) override { HONE_ASSERT(false, "a tape that does not train"); }
};

/// The arguments that a node keeps; checks them.
QkNormRopeArgs constants_of(const Shape& shape, const Weight* norm, float eps, const RopeTable& table,
                            const Tensor& positions, int64_t head_dim, const RotaryLayout& layout,
                            NormWeighting weighting) {
  HONE_ASSERT(shape.rank() == 2 && head_dim > 0 && shape[1] % head_dim == 0);
  HONE_ASSERT(positions.shape == Shape{shape[0]} && positions.dtype == DType::kI32);
  HONE_ASSERT(table.cos.shape.rank() == 2 && table.cos.shape == table.sin.shape);
  HONE_ASSERT(layout.offset >= 0 && layout.offset + 2 * table.cos.shape[1] <= head_dim);
  HONE_ASSERT(!norm || norm->shape() == Shape{head_dim});
  return {.x = {},
          .norm = {},
          .eps = eps,
          .table = table,
          .positions = positions,
          .head_dim = head_dim,
          .layout = layout,
          .y = {},
          .weighting = weighting};
}

}  // namespace

Var qk_norm_rope(Tape& tape, Var x, Weight* norm, float eps, const RopeTable& table, Tensor positions, int64_t head_dim,
                 const RotaryLayout& layout, NormWeighting weighting) {
  const Shape& shape = tape.shape(x);
  auto node = std::make_unique<QkNormRopeNode>();
  node->norm = norm;
  node->constants = constants_of(shape, norm, eps, table, positions, head_dim, layout, weighting);
  node->inputs = {x};
  if (norm) {
    node->saved = {x};
    node->weights_want_grad = norm->wants_grad();
  }
  const Var y = tape.add_output(*node, shape, tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

QkVars qk_norm_rope(Tape& tape, QkVars x, QkNorms norms, float eps, const RopeTable& table, Tensor positions,
                    int64_t head_dim, const RotaryLayout& layout, NormWeighting weighting) {
  QkVars results;
  if (tape.training()) {
    for (size_t i = 0; i < x.size(); ++i) {
      results[i] = qk_norm_rope(tape, x[i], norms[i], eps, table, positions, head_dim, layout, weighting);
    }
    return results;
  }
  auto node = std::make_unique<QkNormRopePairNode>();
  node->norms = norms;
  node->inputs = {x[0], x[1]};
  for (size_t i = 0; i < x.size(); ++i) {
    node->constants = constants_of(tape.shape(x[i]), norms[i], eps, table, positions, head_dim, layout, weighting);
    results[i] = tape.add_output(*node, tape.shape(x[i]), tape.dtype(x[i]));
  }
  tape.record(std::move(node));
  return results;
}

}  // namespace hone
