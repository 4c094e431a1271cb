#include "params/adapter_kind.h"

#include "params/adapters/dora.h"
#include "params/adapters/lora.h"

namespace hone {

namespace {

template <class Kind>
std::unique_ptr<AttachedAdapter> attach(const AdapterSite& site) {
  return std::make_unique<Kind>(site);
}

constexpr AdapterKind kKinds[] = {
    {.name = "LoRA", .attach = attach<LoraAdapter>, .describe = describe_lora, .read = read_lora},
    {.name = "DoRA",
     .key = "use_dora",
     .chosen = &LoraOptions::use_dora,
     .adapts_experts = false,
     .adapts_head = false,
     .adapts_router = false,
     .for_servers = false,
     .reads_whole_rows = "takes norms of whole rows of weights",
     .attach = attach<DoraAdapter>,
     .describe = describe_dora,
     .read = read_dora},
};

}  // namespace

std::span<const AdapterKind> adapter_kinds() { return kKinds; }

const AdapterKind& adapter_kind(const LoraOptions& options) {
  const AdapterKind* found = nullptr;
  for (const AdapterKind& kind : kKinds) {
    if (kind.chosen == nullptr ? found == nullptr : options.*kind.chosen) found = &kind;
  }
  return *found;
}

}  // namespace hone
