#include "ops/moe_experts/spread_experts.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "kernels/weight_gradient/weight_gradient.h"
#include "ops/add/add.h"
#include "ops/moe_experts/expert_half.h"
#include "ops/unpack_weights/unpacked_weight.h"

namespace hone {

namespace {

/// The most tokens of a rank in a round. It does not depend on the tokens of a pass, so that a pass with fewer of them
/// needs no more memory.
int64_t chunk_of(const TokenExchange& exchange) {
  return (exchange.round_tokens() + exchange.ranks() - 1) / exchange.ranks();
}

/// The rounds of a pass: at least one, which clears the gradients of experts without rows.
int64_t rounds_of(const TokenExchange& exchange) {
  const int64_t most = std::ranges::max(exchange.tokens()), chunk = chunk_of(exchange);
  return std::max<int64_t>(1, (most + chunk - 1) / chunk);
}

/// The tokens of a round.
struct Round {
  std::vector<int64_t> rows;       ///< one number for each rank
  int64_t own_begin = 0, own = 0;  ///< this rank's, among its tokens
  int64_t tokens = 0;              ///< counted over all ranks

  Round(const TokenExchange& exchange, int64_t round) {
    const int64_t chunk = chunk_of(exchange);
    for (int rank = 0; rank < exchange.ranks(); ++rank) {
      const int64_t all = exchange.tokens()[static_cast<size_t>(rank)], begin = std::min(all, round * chunk);
      rows.push_back(std::min(all, begin + chunk) - begin);
      if (rank == exchange.rank()) own_begin = begin;
    }
    own = rows[static_cast<size_t>(exchange.rank())];
    tokens = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  }

  Tensor own_of(const Tensor& tokens_of_rank) const { return tokens_of_rank.rows(own_begin, own); }
};

/// A rank's tokens, or those of a round on all ranks.
struct TokenRows {
  Tensor x;        ///< [T, H]
  Tensor ids;      ///< i32 [T, k]
  Tensor weights;  ///< [T, k]
  Tensor dout;     ///< [T, H]; undefined in forward
  /// Undefined without dropout of adapters.
  Tensor sample_ids, positions;

  std::array<Tensor*, 6> all() { return {&x, &ids, &weights, &dout, &sample_ids, &positions}; }
};

/// One of two slots of scratch memory for a round. The first round is the largest.
struct Slot {
  TokenRows tokens;
  Tensor partial, dweights;  ///< results of the round, as x and weights
  int64_t gathered = 0, gathered_dout = 0, scattered = 0;

  Slot(ArenaScope& scratch, TokenRows own, int64_t most) {
    const auto like = [&](const Tensor& tensor) {
      Shape shape{most};
      for (int i = 1; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
      return scratch.take(shape, tensor.dtype);
    };
    for (size_t i = 0; i < own.all().size(); ++i) {
      if (own.all()[i]->defined()) *tokens.all()[i] = like(*own.all()[i]);
    }
    partial = like(own.x);
    if (own.dout.defined()) dweights = like(own.weights);
  }
};

/// The destination for round i of a gradient that all rounds add to.
GradDest in_round(GradDest dest, int64_t round) { return {dest.dst, round == 0 ? dest.beta : 1.0f}; }

std::vector<ExpertAdapterGrad> in_round(std::vector<ExpertAdapterGrad> grads, int64_t round) {
  for (ExpertAdapterGrad& grad : grads) {
    grad = {in_round(grad.lora_a, round), in_round(grad.lora_b, round)};
  }
  return grads;
}

struct SpreadExpertsNode : Node {
  ExpertHalf gate_up, down;
  MlpActivation function;
  LoraDropoutContext dropout;
  TokenExchange* exchange = nullptr;

  std::string_view kind() const override { return "spread_experts"; }
  OpGroup group() const override { return OpGroup::kExperts; }
  /// The FLOPs of this rank's tokens, wherever they are multiplied.
  double flops(const Tape& tape) const override {
    const int64_t choices = tape.shape(inputs[1]).numel();
    return 2.0 * static_cast<double>(choices * (gate_up.products_of_a_row() + down.products_of_a_row()));
  }

  void forward(Tape& tape) override {
    const Pass pass(*this, tape, {});
    pass.run([&](const Round& round, Slot& slot, int64_t) {
      ArenaScope scratch(tape.context().scratch());
      const Rows rows(pass, scratch, slot.tokens, round.tokens);
      moe_down(tape.context(), {.rows = rows.rows,
                                .activation = rows.activation,
                                .weights = slot.tokens.weights,
                                .weight = pass.down.view,
                                .bias = down.bias_view(),
                                .adapters = down.adapter_views(tape.training()),
                                .dropout = rows.dropout,
                                .out = slot.partial});
      slot.scattered =
          exchange->scatter_sum(tape.context(), slot.partial, round.own_of(tape.data(outputs[0])), round.rows);
    });
  }

  void backward(Tape& tape) override {
    Gradients gradients(*this, tape);
    const Pass pass(*this, tape, tape.grad(outputs[0]));
    pass.run([&](const Round& round, Slot& slot, int64_t number) {
      {
        ArenaScope scratch(tape.context().scratch());
        const Rows rows(pass, scratch, slot.tokens, round.tokens);
        exchange->await(tape.context(), slot.gathered_dout);
        differentiate(tape, pass, slot, rows, gradients, number);
      }
      gradients.scatter(round, slot);
    });
    gradients.store();
  }

 private:
  /// One pass over the rounds, forward or backward.
  struct Pass {
    const SpreadExpertsNode& node;
    Tape& tape;
    TokenRows own;
    UnpackedWeight gate_up, down;

    Pass(const SpreadExpertsNode& of, Tape& on, Tensor dout)
        : node(of),
          tape(on),
          own{on.data(of.inputs[0]), on.data(of.inputs[1]), on.data(of.inputs[2]), dout, {}, {}},
          gate_up(on.context(), *of.gate_up.weight, WeightProduct::kExperts),
          down(on.context(), *of.down.weight, WeightProduct::kExperts) {
      if (!on.training() || !(of.gate_up.drops() || of.down.drops())) return;
      own.sample_ids = of.dropout.sample_ids;
      own.positions = of.dropout.positions;
    }

    /// Gathers the tokens of a round, the gradients of their results last: h is computed meanwhile.
    void start(const Round& round, Slot& slot) const {
      TokenRows mine = own;
      std::vector<TokenExchange::Gathered> tensors, gradients;
      for (size_t i = 0; i < mine.all().size(); ++i) {
        if (!mine.all()[i]->defined()) continue;
        Tensor& all = *slot.tokens.all()[i];
        all = all.rows(0, round.tokens);
        (mine.all()[i] == &mine.dout ? gradients : tensors).push_back({round.own_of(*mine.all()[i]), all});
      }
      slot.gathered = node.exchange->gather(tape.context(), tensors, round.rows);
      if (!gradients.empty()) slot.gathered_dout = node.exchange->gather(tape.context(), gradients, round.rows);
      slot.partial = slot.partial.rows(0, round.tokens);
      if (slot.dweights.defined()) slot.dweights = slot.dweights.rows(0, round.tokens);
    }

    /// Calls work(round, slot, number) for each round, with its tokens in the slot.
    template <class Work>
    void run(const Work& work) const {
      const Context& context = tape.context();
      TokenExchange& exchange = *node.exchange;
      const int64_t rounds = rounds_of(exchange);
      const Round first(exchange, 0);
      ArenaScope scratch(context.scratch());
      std::vector<Slot> slots;
      for (int64_t i = 0; i < std::min<int64_t>(2, rounds); ++i) slots.emplace_back(scratch, own, first.tokens);
      start(first, slots[0]);
      for (int64_t number = 0; number < rounds; ++number) {
        Slot& slot = slots[static_cast<size_t>(number % 2)];
        if (number + 1 < rounds) start(Round(exchange, number + 1), slots[static_cast<size_t>((number + 1) % 2)]);
        exchange.await(context, slot.gathered);  // and the sums before it, of the round that had the slot
        work(Round(exchange, number), slot, number);
      }
      for (const Slot& slot : slots) exchange.await(context, slot.scattered);
    }
  };

  /// The rows of a round's tokens at this rank's experts, after gate_up.
  struct Rows {
    ExpertRows rows;
    Tensor h, activation, xa;
    LoraDropoutContext dropout;

    Rows(const Pass& pass, ArenaScope& scratch, const TokenRows& tokens, int64_t count) {
      const SpreadExpertsNode& node = pass.node;
      const ExpertHalf& half = node.gate_up;
      const Context& context = pass.tape.context();
      const int64_t experts = half.weight->local_shape()[0], k = tokens.ids.shape[1];
      const int64_t most = count * std::min(k, experts), columns = half.weight->shape()[1];
      rows = {.offsets = scratch.take({experts + 1}, DType::kI64),
              .token = scratch.take({most}, DType::kI32),
              .assignment = scratch.take({most}, DType::kI32),
              .row = scratch.take({count, k}, DType::kI32),
              .first_expert = node.exchange->rank() * experts,
              .all_experts = half.weight->shape()[0]};
      h = scratch.take({most, columns}, tokens.x.dtype);
      activation = scratch.take({most, node.function.width(columns)}, tokens.x.dtype);
      if (!half.adapters.empty()) xa = scratch.take({most, half.rank_columns()}, tokens.x.dtype);
      dropout = {node.dropout.scalars, tokens.sample_ids, tokens.positions};
      moe_permutation(context, {.ids = tokens.ids, .rows = rows});
      moe_gate_up(context, {.rows = rows,
                            .x = tokens.x,
                            .weight = pass.gate_up.view,
                            .bias = half.bias_view(),
                            .adapters = half.adapter_views(pass.tape.training()),
                            .dropout = dropout,
                            .function = node.function,
                            .xa = xa,
                            .h = h,
                            .activation = activation});
    }
  };

  /// The destinations of a backward pass: each weight's, which all rounds add to, and those of this rank's tokens.
  struct Gradients {
    const SpreadExpertsNode& node;
    Tape& tape;
    NarrowGradient gate_up, down;
    GradDest gate_up_bias, down_bias;
    std::vector<ExpertAdapterGrad> gate_up_adapters, down_adapters;
    GradDest dx, dweights;

    Gradients(const SpreadExpertsNode& of, Tape& on)
        : node(of),
          tape(on),
          gate_up(on.context(), *of.gate_up.weight),
          down(on.context(), *of.down.weight),
          gate_up_bias(of.gate_up.bias_grad()),
          down_bias(of.down.bias_grad()),
          gate_up_adapters(of.gate_up.adapter_grads()),
          down_adapters(of.down.adapter_grads()),
          dx(on.grad_dest(of.inputs[0])),
          dweights(on.grad_dest(of.inputs[2])) {}

    /// Sums the gradients of a round's tokens at their owners.
    void scatter(const Round& round, Slot& slot) const {
      for (const auto& [dest, partial] : {std::pair(&dx, &slot.partial), std::pair(&dweights, &slot.dweights)}) {
        if (dest->wanted()) slot.scattered = scatter(round, *partial, *dest);
      }
    }
    void store() const {
      gate_up.store();
      down.store();
    }

   private:
    int64_t scatter(const Round& round, const Tensor& partial, const GradDest& dest) const {
      const Context& context = tape.context();
      const Tensor own = round.own_of(dest.dst);
      if (dest.beta == 0.0f) return node.exchange->scatter_sum(context, partial, own, round.rows);
      ArenaScope scratch(context.scratch());
      const Tensor sum = scratch.take(own.shape, own.dtype);
      const int64_t call = node.exchange->scatter_sum(context, partial, sum, round.rows);
      node.exchange->await(context, call);
      add(context, {.a = sum, .b = {}, .y = own, .beta = 1.0f});
      return call;
    }
  };

  void differentiate(Tape& tape, const Pass& pass, const Slot& slot, const Rows& rows, const Gradients& gradients,
                     int64_t number) const {
    moe_down_grad(tape.context(), {.rows = rows.rows,
                                   .h = rows.h,
                                   .weights = slot.tokens.weights,
                                   .weight = pass.down.view,
                                   .bias = down.bias_view(),
                                   .adapters = down.adapter_views(tape.training()),
                                   .dropout = rows.dropout,
                                   .function = function,
                                   .dout = slot.tokens.dout,
                                   .dh = {rows.h, 0.0f},
                                   .dweights = gradients.dweights.wanted() ? GradDest{slot.dweights, 0.0f} : GradDest{},
                                   .dweight = in_round(gradients.down.dest, number),
                                   .dbias = in_round(gradients.down_bias, number),
                                   .dadapters = in_round(gradients.down_adapters, number)});
    moe_gate_up_grad(tape.context(), {.rows = rows.rows,
                                      .x = slot.tokens.x,
                                      .weight = pass.gate_up.view,
                                      .adapters = gate_up.adapter_views(tape.training()),
                                      .dropout = rows.dropout,
                                      .function = function,
                                      .xa = rows.xa,
                                      .dh = rows.h,
                                      .dx = gradients.dx.wanted() ? GradDest{slot.partial, 0.0f} : GradDest{},
                                      .dweight = in_round(gradients.gate_up.dest, number),
                                      .dbias = in_round(gradients.gate_up_bias, number),
                                      .dadapters = in_round(gradients.gate_up_adapters, number)});
  }
};

}  // namespace

Var spread_experts(Tape& tape, Var x, const RoutedTokens& routed, const ExpertWeights& weights,
                   const ExpertAdapters& adapters, const LoraDropoutContext& dropout, TokenExchange& exchange) {
  const Shape up = weights.gate_up->shape();  // [E, C, H]
  const Shape here{up[0] / exchange.ranks(), up[1], up[2]};
  HONE_ASSERT(weights.gate_up->local_shape() == here);
  HONE_ASSERT(weights.down->local_shape() == (Shape{here[0], up[2], weights.function.width(up[1])}));
  HONE_ASSERT(tape.shape(routed.weights) == tape.shape(routed.ids) && tape.dtype(routed.weights) == tape.dtype(x));
  HONE_ASSERT(tape.shape(x)[0] == exchange.tokens()[static_cast<size_t>(exchange.rank())]);
  auto node = std::make_unique<SpreadExpertsNode>();
  node->gate_up = {weights.gate_up, weights.gate_up_bias, adapters.gate_up};
  node->down = {weights.down, weights.down_bias, adapters.down};
  for (const ExpertHalf* half : {&node->gate_up, &node->down}) {
    half->check(tape.training(), dropout);
    node->weights_want_grad |= half->wants_grad();
  }
  node->function = weights.function;
  node->dropout = dropout;
  node->exchange = &exchange;
  node->inputs = node->saved = {x, routed.ids, routed.weights};
  const Var out = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return out;
}

}  // namespace hone
