#include "dist/control/control_messages.h"

#include <unistd.h>

#include <limits>
#include <set>

#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {
namespace {

constexpr size_t kLengthBytes = 8;

const Json* member(const Json& json, const char* name) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  return found == json.end() ? nullptr : &*found;
}

std::optional<int64_t> count_at(const Json& json, const char* name) {
  const Json* value = member(json, name);
  if (!value || !value->is_number_integer() || value->get<int64_t>() < 0) return std::nullopt;
  return value->get<int64_t>();
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string heartbeat_text(const RankProgress& progress) {
  return dumped({{"step", progress.step},
                 {"collectives", progress.collectives},
                 {"collective", progress.collective},
                 {"waited", progress.waited}});
}

std::optional<RankProgress> heartbeat_of(std::string_view text) {
  const Json json = parse_json(text);
  const std::optional<int64_t> step = count_at(json, "step"), collectives = count_at(json, "collectives");
  const Json *collective = member(json, "collective"), *waited = member(json, "waited");
  if (!step || !collectives || !collective || !collective->is_string() || !waited || !waited->is_number()) {
    return std::nullopt;
  }
  return RankProgress{*step, *collectives, collective->get<std::string>(), waited->get<double>()};
}

std::string end_text(const GroupEnd& end) {
  return dumped({{"reason", end.reason}, {"lost", end.lost}, {"stuck", end.stuck}});
}

std::optional<GroupEnd> end_of(std::string_view text, int ranks) {
  const Json json = parse_json(text);
  const Json *reason = member(json, "reason"), *lost = member(json, "lost"), *stuck = member(json, "stuck");
  if (!reason || !reason->is_string() || !lost || !lost->is_array() || !stuck || !stuck->is_boolean()) {
    return std::nullopt;
  }
  GroupEnd end{reason->get<std::string>(), {}, stuck->get<bool>()};
  for (const Json& rank : *lost) {
    if (!rank.is_number_integer() || rank.get<int64_t>() < 0 || rank.get<int64_t>() >= ranks) return std::nullopt;
    end.lost.push_back(rank.get<int>());
  }
  return end;
}

std::string pack_texts(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    for (size_t i = 0; i < kLengthBytes; ++i) packed += static_cast<char>(text.size() >> (8 * i));
    packed += text;
  }
  return packed;
}

std::optional<std::vector<std::string>> unpack_texts(std::string_view packed) {
  std::vector<std::string> texts;
  while (!packed.empty()) {
    if (packed.size() < kLengthBytes) return std::nullopt;
    uint64_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<unsigned char>(packed[i])} << (8 * i);
    packed.remove_prefix(kLengthBytes);
    if (length > packed.size()) return std::nullopt;
    texts.emplace_back(packed.substr(0, length));
    packed.remove_prefix(length);
  }
  return texts;
}

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

int ranks_of_host(const std::vector<RankFacts>& ranks) {
  std::set<std::string> seen;
  size_t of_first = 0;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin;
    while (end < ranks.size() && ranks[end].host == ranks[begin].host) ++end;
    if (begin == 0) of_first = end;
    if (!seen.insert(ranks[begin].host).second || end - begin != of_first) return 0;
    begin = end;
  }
  return static_cast<int>(of_first);
}

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
