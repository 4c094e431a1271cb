// The kinds of adapters: one row for each.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "core/text/json_fwd.h"
#include "params/adapter.h"

namespace hone {

struct AdapterKind {
  std::string_view name;                ///< in messages: "DoRA"
  std::string_view key = {};            ///< the configuration key that chooses it; "": the default
  bool LoraOptions::*chosen = nullptr;  ///< the option that the key sets
  bool adapts_experts = true;           ///< routed experts, whose op (ops/moe_experts) supports low-rank factors only
  bool adapts_head = true;              ///< the head, as above (ops/linear_cross_entropy)
  bool adapts_router = true;            ///< as PEFT's target_parameters, which are for low-rank factors only
  bool for_servers = true;              ///< the layouts kt and sglang can hold its tensors
  std::string_view reads_whole_rows =
      {};  ///< its use of whole rows of stored weights, for a message (ZeRO-3 shards them); or ""
  std::unique_ptr<AttachedAdapter> (*attach)(const AdapterSite& site) = nullptr;
  void (*describe)(const LoraOptions& options, Json& config) = nullptr;  ///< its keys of adapter_config.json
  void (*read)(const Json& config, LoraOptions& options) = nullptr;      ///< sets what those say
};

/// The table.
std::span<const AdapterKind> adapter_kinds();

/// The kind that options choose.
const AdapterKind& adapter_kind(const LoraOptions& options);

}  // namespace hone
