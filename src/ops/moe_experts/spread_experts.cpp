#include "ops/moe_experts/spread_experts.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "ops/add/add.h"
#include "ops/moe_experts/expert_parts.h"

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

struct SpreadExpertsNode : Node {
  LayerExperts experts;
  TokenExchange* exchange = nullptr;

  std::string_view kind() const override { return "spread_experts"; }
  OpGroup group() const override { return OpGroup::kExperts; }
  /// The FLOPs of this rank's tokens, wherever they are multiplied.
  double flops(const Tape& tape) const override { return experts.flops(tape.shape(inputs[1]).numel()); }

  void forward(Tape& tape) override {
    const Pass pass(*this, tape, {});
    pass.run([&](const Round& round, Slot& slot) {
      ArenaScope scratch(tape.context().scratch());
      pass.experts.down(pass.experts.rows(scratch, slot.tokens), slot.tokens, slot.partial);
      slot.scattered =
          exchange->scatter_sum(tape.context(), slot.partial, round.own_of(tape.data(outputs[0])), round.rows);
    });
  }

  void backward(Tape& tape) override {
    Gradients gradients(*this, tape);
    const Pass pass(*this, tape, tape.grad(outputs[0]));
    pass.run([&](const Round& round, Slot& slot) {
      {
        ArenaScope scratch(tape.context().scratch());
        const PartRows rows = pass.experts.rows(scratch, slot.tokens);
        exchange->await(tape.context(), slot.gathered_dout);
        pass.experts.differentiate(rows, slot.tokens, gradients.of_round(gradients.dx, slot.partial),
                                   gradients.of_round(gradients.dweights, slot.dweights), gradients.weights);
      }
      gradients.scatter(round, slot);
    });
    gradients.weights.store();
  }

 private:
  /// One pass over the rounds, forward or backward.
  struct Pass {
    const SpreadExpertsNode& node;
    Tape& tape;
    ExpertsPass experts;
    TokenRows own;

    Pass(const SpreadExpertsNode& of, Tape& on, Tensor dout)
        : node(of),
          tape(on),
          experts(on, of.experts, false),
          own(experts.tokens(on.data(of.inputs[0]), on.data(of.inputs[1]), on.data(of.inputs[2]), dout)) {}

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

    /// Calls work(round, slot) for each round, with its tokens in the slot.
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
        work(Round(exchange, number), slot);
      }
      for (const Slot& slot : slots) exchange.await(context, slot.scattered);
    }
  };

  /// The destinations of a backward pass: each weight's, which all rounds add to, and those of this rank's tokens.
  struct Gradients {
    const SpreadExpertsNode& node;
    Tape& tape;
    PartGradients weights;
    GradDest dx, dweights;

    Gradients(const SpreadExpertsNode& of, Tape& on)
        : node(of),
          tape(on),
          weights(on.context(), of.experts),
          dx(on.grad_dest(of.inputs[0])),
          dweights(on.grad_dest(of.inputs[2])) {}

    /// The part of a round in the gradient of this rank's tokens, if that is wanted.
    static GradDest of_round(const GradDest& own, const Tensor& partial) {
      return own.wanted() ? GradDest{partial, 0.0f} : GradDest{};
    }

    /// Sums the gradients of a round's tokens at their owners.
    void scatter(const Round& round, Slot& slot) const {
      for (const auto& [dest, partial] : {std::pair(&dx, &slot.partial), std::pair(&dweights, &slot.dweights)}) {
        if (dest->wanted()) slot.scattered = scatter(round, *partial, *dest);
      }
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
};

}  // namespace

Var spread_experts(Tape& tape, Var x, const RoutedTokens& routed, const ExpertWeights& weights,
                   const ExpertAdapters& adapters, const LoraDropoutContext& dropout, TokenExchange& exchange) {
  const Shape up = weights.gate_up->shape();  // [E, C, H]
  const Shape here{up[0] / exchange.ranks(), up[1], up[2]};
  HONE_ASSERT(weights.gate_up->local_shape() == here);
  HONE_ASSERT(weights.down->local_shape() == (Shape{here[0], up[2], weights.function.width(up[1])}));
  HONE_ASSERT(tape.shape(x)[0] == exchange.tokens()[static_cast<size_t>(exchange.rank())]);
  auto node = std::make_unique<SpreadExpertsNode>();
  node->experts = layer_experts(tape, x, routed, weights, adapters, dropout);
  node->experts.first_expert = exchange.rank() * here[0];
  node->weights_want_grad = node->experts.wants_grad();
  node->exchange = &exchange;
  node->inputs = node->saved = {x, routed.ids, routed.weights};
  const Var out = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return out;
}

}  // namespace hone
