// What ranks tell each other of themselves once they have proved that they belong together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_fwd.h"
#include "dist/local_process.h"

namespace hone {

/// Of a rank.
struct RankFacts {
  std::string host;
  int64_t pid = 0;
  int local_rank = 0;
  std::string cores = {};    ///< that it may run on
  std::string address = {};  ///< in numbers: where this rank reaches its host
  ProcessPlace place = {};
};

/// Of this process.
RankFacts own_facts(int local_rank);

Json facts_json(const RankFacts& facts);
/// Nothing if it is not what facts_json makes.
std::optional<RankFacts> facts_of(const Json& json);
/// Of all ranks, from the text of an array of facts_json; nothing if it is not that, or not of `count`.
std::optional<std::vector<RankFacts>> all_facts_of(std::string_view text, size_t count);

}  // namespace hone
