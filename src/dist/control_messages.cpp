#include "dist/control_messages.h"

#include "core/untrusted_json.h"

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

}  // namespace hone
