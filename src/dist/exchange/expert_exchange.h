// ExpertExchange: the exchange of tokens among the ranks of an expert group, by copies between the GPUs of a host
// (dist/exchange/peer_exchange.h), else by collectives of the group's own communicator.
#pragma once

#include <memory>
#include <vector>

#include "dist/exchange/peer_exchange.h"
#include "dist/exchange/weight_fetcher.h"
#include "dist/transport/communicator.h"
#include "ops/moe_experts/token_exchange.h"

namespace hone {

class ExpertExchange : public TokenExchange {
 public:
  /// Experts need enough rows to multiply at full speed: 16,384 tokens, of which each chooses 8 of 128 experts, give an
  /// expert 1,024. More need memory, and wait longer for the first tokens of a pass.
  static constexpr int64_t kRoundTokens = 16384;

  /// Rank `rank` of the `ranks` over which the experts are spread. `group` has these ranks and must outlive this; null:
  /// for dry passes alone.
  ExpertExchange(int rank, int ranks, Communicator* group, int64_t round_tokens = kRoundTokens);

  /// Bytes of device memory that connect() will take, for the largest calls of the dry passes so far.
  size_t bytes(FetchWay way, Device device) const;
  /// Collective of all ranks, after dry passes: connects the devices of the ranks for passes of at most the sizes of
  /// the dry ones. Until then, and where it is not possible, collectives are used. Throws UserError, on all ranks, if
  /// the way is kPeers and not possible in some group.
  void connect(FetchWay way, Stream& stream);
  /// "peer copies", "collectives"
  std::string_view name() const { return peers_ ? "peer copies" : "collectives"; }

  /// Begins a pass in which rank r of the group has tokens[r] tokens, and ends it. A pass that has not begun is an
  /// error (std::logic_error): ranks would exchange the rows of another one.
  void begin_pass(std::vector<int64_t> tokens);
  void end_pass() { tokens_.clear(); }

  int ranks() const override { return ranks_; }
  int rank() const override { return rank_; }
  std::span<const int64_t> tokens() const override {
    HONE_ASSERT(!tokens_.empty(), "no pass has begun, whose tokens go to spread experts");
    return tokens_;
  }
  int64_t round_tokens() const override { return round_tokens_; }
  int64_t gather(const Context& context, std::span<const Gathered> tensors, std::span<const int64_t> rows) override;
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
  int64_t round_tokens_;
  std::vector<int64_t> tokens_;
  PeerExchange::Sizes largest_;  // what the calls of dry passes need at most
  std::unique_ptr<PeerExchange> peers_;
};

}  // namespace hone
