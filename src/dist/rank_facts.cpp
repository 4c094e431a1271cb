#include "dist/rank_facts.h"

#include <unistd.h>

#include <limits>

#include "core/untrusted_json.h"

namespace hone {

namespace {

constexpr int64_t kMostPid = std::numeric_limits<int32_t>::max();

bool read(const Json& json, const char* name, std::string& into) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) return false;
  into = found->get<std::string>();
  return true;
}

bool read(const Json& json, const char* name, int64_t most, int64_t& into) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_integer()) return false;
  into = found->get<int64_t>();
  return into >= 0 && into <= most;
}

}  // namespace

RankFacts own_facts(int local_rank) { return {host_name(), ::getpid(), local_rank, own_cores(), "", own_place()}; }

Json facts_json(const RankFacts& facts) {
  return {{"host", facts.host},
          {"pid", facts.pid},
          {"local_rank", facts.local_rank},
          {"cores", facts.cores},
          {"address", facts.address},
          {"boot", facts.place.boot},
          {"pid_namespace", facts.place.pid_namespace},
          {"network", facts.place.network},
          {"start_time", facts.place.start_time}};
}

std::optional<RankFacts> facts_of(const Json& json) {
  RankFacts facts;
  int64_t local_rank = 0;
  const bool whole = json.is_object() && read(json, "host", facts.host) && read(json, "pid", kMostPid, facts.pid) &&
                     read(json, "local_rank", kMostPid, local_rank) && read(json, "cores", facts.cores) &&
                     read(json, "address", facts.address) && read(json, "boot", facts.place.boot) &&
                     read(json, "pid_namespace", facts.place.pid_namespace) &&
                     read(json, "network", facts.place.network) &&
                     read(json, "start_time", std::numeric_limits<int64_t>::max(), facts.place.start_time);
  if (!whole) return std::nullopt;
  facts.local_rank = static_cast<int>(local_rank);
  return facts;
}

std::optional<std::vector<RankFacts>> all_facts_of(std::string_view text, size_t count) {
  const Json json = parse_json(text);
  if (!json.is_array() || json.size() != count) return std::nullopt;
  std::vector<RankFacts> all;
  for (const Json& entry : json) {
    const std::optional<RankFacts> facts = facts_of(entry);
    if (!facts) return std::nullopt;
    all.push_back(*facts);
  }
  return all;
}

}  // namespace hone
