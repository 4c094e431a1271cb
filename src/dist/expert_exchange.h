// ExpertExchange: the exchange of tokens among the ranks of an expert group, by collectives of their own communicator.
#pragma once

#include <vector>

#include "dist/communicator.h"
#include "ops/moe_experts/token_exchange.h"

namespace hone {

class ExpertExchange : public TokenExchange {
 public:
  /// Rank `rank` of the `ranks` over which the experts are spread. `group` has these ranks and must outlive this; null:
  /// for dry passes alone.
  ExpertExchange(int rank, int ranks, Communicator* group);

  /// Begins a pass in which rank r of the group has tokens[r] tokens.
  void begin_pass(std::vector<int64_t> tokens);

  int ranks() const override { return ranks_; }
  int rank() const override { return rank_; }
  std::span<const int64_t> tokens() const override { return tokens_; }
  int64_t gather(const Context& context, const Tensor& own, const Tensor& all, std::span<const int64_t> rows) override;
  int64_t scatter_sum(const Context& context, const Tensor& all, const Tensor& own,
                      std::span<const int64_t> rows) override;
  void await(const Context& context, int64_t call) override;

 private:
  Communicator& group() const {
    HONE_ASSERT(group_ != nullptr);
    return *group_;
  }

  int rank_, ranks_;
  Communicator* group_;
  std::vector<int64_t> tokens_;
};

}  // namespace hone
