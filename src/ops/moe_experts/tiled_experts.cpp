#include "ops/moe_experts/tiled_experts.h"

#include <algorithm>
#include <utility>

#include "ops/moe_experts/expert_parts.h"

namespace hone {

namespace {

struct TiledExpertsNode : Node {
  LayerExperts experts;
  int64_t tile = 0;

  std::string_view kind() const override { return "tiled_experts"; }
  OpGroup group() const override { return OpGroup::kExperts; }
  double flops(const Tape& tape) const override { return experts.flops(tape.shape(inputs[1]).numel()); }

  void forward(Tape& tape) override {
    const Tensor out = tape.data(outputs[0]);
    for_each_tile(tape, {}, [&](const ExpertsPass& pass, const PartRows& rows, const TokenRows& part, int64_t begin) {
      pass.down(rows, part, out.rows(begin, part.count()));
    });
  }

  void backward(Tape& tape) override {
    PartGradients gradients(tape.context(), experts);
    const GradDest dx = tape.grad_dest(inputs[0]), dweights = tape.grad_dest(inputs[2]);
    for_each_tile(tape, tape.grad(outputs[0]),
                  [&](const ExpertsPass& pass, const PartRows& rows, const TokenRows& part, int64_t begin) {
                    const auto of_tile = [&](const GradDest& all) {
                      return all.wanted() ? GradDest{all.dst.rows(begin, part.count()), all.beta} : all;
                    };
                    pass.differentiate(rows, part, of_tile(dx), of_tile(dweights), gradients);
                  });
    gradients.store();
  }

 private:
  /// Calls work(pass, rows, part, begin) for each tile, whose first token is `begin`: at least once, which clears the
  /// gradients of experts without rows.
  template <class Work>
  void for_each_tile(Tape& tape, const Tensor& dout, const Work& work) const {
    const ExpertsPass pass(tape, experts, true);
    TokenRows all = pass.tokens(tape.data(inputs[0]), tape.data(inputs[1]), tape.data(inputs[2]), dout);
    int64_t begin = 0;
    do {
      const int64_t count = std::min(tile, all.count() - begin);
      TokenRows part = all;
      for (Tensor* tensor : part.all()) {
        if (tensor->defined()) *tensor = tensor->rows(begin, count);
      }
      ArenaScope scratch(tape.context().scratch());
      work(pass, pass.rows(scratch, part), std::as_const(part), begin);
      begin += count;
    } while (begin < all.count());
  }
};

}  // namespace

Var tiled_experts(Tape& tape, Var x, const RoutedTokens& routed, const ExpertWeights& weights,
                  const ExpertAdapters& adapters, const LoraDropoutContext& dropout, int64_t token_tile) {
  HONE_ASSERT(token_tile > 0);
  auto node = std::make_unique<TiledExpertsNode>();
  node->experts = layer_experts(tape, x, routed, weights, adapters, dropout);
  node->weights_want_grad = node->experts.wants_grad();
  node->tile = token_tile;
  node->inputs = node->saved = {x, routed.ids, routed.weights};
  const Var out = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return out;
}

}  // namespace hone
