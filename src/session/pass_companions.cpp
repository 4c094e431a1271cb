#include "session/pass_companions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dist/exchange/host_sharing.h"

namespace hone {

PassRanks::PassRanks(const RankMesh* mesh) {
  if (mesh == nullptr || mesh->world().size() == 1) return;
  all = &mesh->world();
  weights = &mesh->weights();
  experts = mesh->experts();
}

PassRanks::PassRanks(Communicator* ranks) {
  if (ranks != nullptr && ranks->size() > 1) all = weights = ranks;
}

PassCompanions::PassCompanions(const Decoder& decoder, ParameterStore& store, Stream& stream,
                               const CompanionOptions& options)
    : decoder_(decoder),
      store_(store),
      stream_(stream),
      ranks_(options.ranks),
      weight_fetch_(options.weight_fetch),
      ring_(store.brings_values() ? std::make_unique<WeightRing>(ranks_.weights, weight_fetch_, store,
                                                                 decoder.placement(), stream.device())
                                  : nullptr),
      exchange_(store.expert_ranks() > 1 ? std::make_unique<ExpertExchange>(store.expert_rank(), store.expert_ranks(),
                                                                            ranks_.experts, options.expert_round_tokens)
                                         : nullptr) {}

RankPass PassCompanions::largest(int64_t tokens) const {
  return {.work = PassWork::kPlanned,
          .tokens = std::vector<int64_t>(static_cast<size_t>(exchange_ ? exchange_->ranks() : 0), tokens)};
}

std::vector<RankPass> PassCompanions::deal(std::span<const int64_t> tokens) const {
  const auto each = static_cast<size_t>(ranks()), own = static_cast<size_t>(rank());
  const auto group = static_cast<size_t>(exchange_ ? exchange_->ranks() : 0);
  const bool others_need_it = exchange_ != nullptr || store_.experts_on_host();
  std::vector<RankPass> passes;
  for (size_t first = 0; first < tokens.size(); first += each) {
    RankPass& pass = passes.emplace_back();
    if (first + own < tokens.size()) pass.batch = first + own;
    if (!pass.batch && !others_need_it) pass.work = PassWork::kIdle;
    for (size_t i = 0; i < group; ++i) {
      const size_t of_rank = first + own / group * group + i;
      pass.tokens.push_back(of_rank < tokens.size() ? tokens[of_rank] : 0);
    }
  }
  return passes;
}

std::optional<RankPass> PassCompanions::agree(int64_t tokens) const {
  if (control() != nullptr) control()->check();  // a lost rank would leave its part undone
  RankPass pass{.work = tokens > 0 ? PassWork::kComputed : PassWork::kIdle};
  bool on_any = tokens > 0;
  if (exchange_) {
    HONE_ASSERT(control() != nullptr, "experts are spread over ranks");
    pass.work = PassWork::kComputed;
    std::vector<int64_t> all;
    for (const std::string& text : control()->exchange(std::to_string(tokens))) {
      const int64_t of_rank = std::stoll(text);
      on_any |= of_rank > 0;
      all.push_back(std::max<int64_t>(of_rank, 1));
    }
    const auto group = all.begin() + rank() - exchange_->rank();
    pass.tokens = {group, group + exchange_->ranks()};
  } else if (ring_ && control() != nullptr) {
    on_any = control()->any(tokens > 0);
  }
  if (!on_any) return std::nullopt;
  return pass;
}

bool PassCompanions::serves(const Context& context) const {
  HONE_ASSERT(pass_ != nullptr, "no pass has begun (PassCompanions::Pass)");
  return pass_->work == PassWork::kIdle || (pass_->work == PassWork::kComputed && !context.dry());
}

void PassCompanions::acquired(const Context& context, const ParameterGroup& group, Use use) {
  if (ring_ && serves(context)) ring_->acquire(context, group, use);
}

void PassCompanions::released(const Context& context, const ParameterGroup& group, Use) {
  if (ring_ && serves(context)) ring_->release(group);
}

void PassCompanions::begin_update(const Context& context) {
  if (ring_) ring_->begin_update(context);
}

void PassCompanions::end_update(const Context& context) {
  if (ring_) ring_->end_update(context);
}

void PassCompanions::connect() {
  if (exchange_) exchange_->connect(weight_fetch_, stream_);
}

void PassCompanions::share_values() {
  if (control() != nullptr) hone::share_values(*control(), store_);
}

int64_t PassCompanions::bytes() const {
  return exchange_ ? static_cast<int64_t>(exchange_->bytes(weight_fetch_, stream_.device())) : 0;
}

PassCompanions::Pass::Pass(PassCompanions& companions, RankPass pass, GroupObserver* observer)
    : companions_(companions),
      part_(std::move(pass)),
      observing_(companions.decoder_.placement(), observer != nullptr ? *observer : companions) {
  HONE_ASSERT(companions_.pass_ == nullptr, "one pass at a time");
  if (companions_.exchange_) companions_.exchange_->begin_pass(part_.tokens);
  companions_.pass_ = &part_;
}

PassCompanions::Pass::~Pass() {
  companions_.pass_ = nullptr;
  if (companions_.exchange_) companions_.exchange_->end_pass();
}

}  // namespace hone
