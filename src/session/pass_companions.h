// PassCompanions: what goes beside the passes of a model: the CPU that computes experts, values that come for their
// use, tokens that travel to spread experts, and the ranks that run passes together. Code that queues passes of a model
// has one of these, takes a runner of passes from it, and holds a Pass while it queues one.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dist/exchange/expert_exchange.h"
#include "dist/exchange/weight_ring.h"
#include "dist/transport/mesh.h"
#include "nn/decoder.h"
#include "tape/pass_runner.h"

namespace hone {

/// The ranks that run passes together; all null: there is one.
struct PassRanks {
  Communicator* all = nullptr;      ///< among which micro-batches and prompts are dealt
  Communicator* weights = nullptr;  ///< those that keep parts of the same values
  Communicator* experts = nullptr;  ///< those over which experts are spread

  PassRanks() = default;
  /// Ranks that have formed groups; null or one: there are no others.
  explicit PassRanks(const RankMesh* mesh);
  /// Ranks that are one group, which share no experts; null or one: the same.
  explicit PassRanks(Communicator* ranks);
};

struct CompanionOptions {
  PassRanks ranks = {};
  FetchWay weight_fetch = FetchWay::kAuto;  ///< how values that ranks shard, and tokens for experts, travel
  int64_t expert_round_tokens = ExpertExchange::kRoundTokens;
};

/// A rank's part in a pass.
enum class PassWork {
  kPlanned,   ///< dry passes, which measure memory
  kComputed,  ///< with the rank's tokens; with none of them where other ranks or the host need it
  kIdle,      ///< gives and takes parts of weights and gradients in the order of a pass, and computes nothing
};

/// A pass that all ranks begin together.
struct RankPass {
  PassWork work = PassWork::kComputed;
  std::optional<size_t> batch = {};  ///< the rank's micro-batch among those that deal() got; unset: it has none
  std::vector<int64_t> tokens = {};  ///< where experts are spread: of each rank that has a block of them
};

class PassCompanions final : public GroupObserver {
 public:
  /// The decoder's parameters are in `store`, which is shared among the ranks and allocated before the first pass that
  /// is not planned. Everything given must outlive this. Without the ranks among which the store is shared, passes can
  /// only be planned. Where values come for their use, a store has one of these at a time: they come to one place.
  PassCompanions(const Decoder& decoder, ParameterStore& store, Stream& stream, const CompanionOptions& options = {});

  const Decoder& decoder() const { return decoder_; }
  Stream& stream() const { return stream_; }
  /// Null with one rank.
  Control* control() const { return ranks_.all != nullptr ? &ranks_.all->control() : nullptr; }
  /// This rank among those that passes are dealt to.
  int rank() const { return ranks_.all != nullptr ? ranks_.all->rank() : 0; }
  int ranks() const { return ranks_.all != nullptr ? ranks_.all->size() : 1; }
  bool spreads_experts() const { return exchange_ != nullptr; }

  /// What passes run in, with the host's side if experts are there. Its memory is its own.
  PassRunner runner() const { return PassRunner(stream_, store_.experts_on_host()); }
  /// Whether a pass may be recorded in a graph: it starts no collective, no copy and no work of the host.
  bool recordable() const { return ring_ == nullptr && exchange_ == nullptr && !store_.experts_on_host(); }

  /// The pass in which each rank has at most so many tokens, to plan with.
  RankPass largest(int64_t tokens) const;
  /// Deals micro-batches of so many tokens, the same on all ranks: rank r of n gets r, r + n, … All ranks get as many
  /// passes. Where experts are spread or on the host, a rank without a micro-batch computes without tokens.
  std::vector<RankPass> deal(std::span<const int64_t> tokens) const;
  /// The next pass of ranks that have passes of their own, as in generation, of `tokens` tokens here (0: none); none if
  /// no rank that needs this one has any. Where experts are spread, a rank without tokens takes part with one.
  /// Collective where ranks keep parts of the weights. Throws if a rank was lost.
  std::optional<RankPass> agree(int64_t tokens) const;

  class Pass;

  /// As GroupObserver, during a pass: brings the values of groups for their use. A planned pass needs none, nor does
  /// one on a dry context, unless this rank is idle.
  void acquired(const Context& context, const ParameterGroup& group, Use use) override;
  void released(const Context& context, const ParameterGroup& group, Use use) override;
  /// Whether uses in the pass that has begun need work like this.
  bool serves(const Context& context) const;
  /// Whether this rank is idle in the pass that has begun.
  bool idle() const { return pass_ != nullptr && pass_->work == PassWork::kIdle; }
  /// Call the first before the collective that every rank joins before it changes stored values, the second after they
  /// have changed: copies of them are stale.
  void begin_update(const Context& context);
  void end_update(const Context& context);

  /// Collective, after the dry passes: connects the devices between which tokens travel. Throws UserError, on all
  /// ranks, where that must be by peer copies and is not possible.
  void connect();
  /// Collective, once values are filled: ranks of a host read those that others of it fill.
  void share_values();

  /// Bytes of device memory that connect() takes, for the largest of the dry passes so far.
  int64_t bytes() const;
  /// How values come from other ranks: "peer copies", "all-gathers"; "" before the first pass, and if they do not.
  std::string_view weights_fetched_by() const { return ring_ ? ring_->fetches_by() : std::string_view(); }
  /// How tokens travel to spread experts: "peer copies", "collectives"; "" if they do not.
  std::string_view tokens_exchanged_by() const { return exchange_ ? exchange_->name() : std::string_view(); }

 private:
  const Decoder& decoder_;
  ParameterStore& store_;
  Stream& stream_;
  PassRanks ranks_;
  FetchWay weight_fetch_;
  std::unique_ptr<WeightRing> ring_;          // null if all values are resident
  std::unique_ptr<ExpertExchange> exchange_;  // null if all experts are here
  const RankPass* pass_ = nullptr;            // that has begun
};

/// A pass while it is queued, dry passes included. One at a time. All ranks begin the same passes in the same order.
class PassCompanions::Pass {
 public:
  /// `observer`, if given, is told of the uses of groups in place of the companions, and tells them of those that it
  /// does not keep to itself.
  Pass(PassCompanions& companions, RankPass pass, GroupObserver* observer = nullptr);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  const RankPass& part() const { return part_; }
  /// For Forward::exchange.
  TokenExchange* exchange() const { return companions_.exchange_.get(); }

 private:
  PassCompanions& companions_;
  const RankPass part_;
  const Observing observing_;
};

}  // namespace hone
