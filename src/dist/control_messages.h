// What ranks say to each other over their control connections. Whatever the bytes are, reading them throws nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_fwd.h"
#include "dist/local_process.h"

namespace hone {

enum class ControlMessage : uint8_t {
  kFacts = 'H',      ///< a rank to rank 0, when both have proved who they are: hello_text
  kAccepted = 'A',   ///< its answer: from here on the rank is there
  kRefused = 'R',    ///< why the run does not begin
  kWelcome = 'W',    ///< all are there, JSON: who they are
  kHeartbeat = 'B',  ///< how far the sender is
  kText = 'T',       ///< a rank's part of an exchange, to rank 0
  kTexts = 'X',      ///< rank 0 to all: pack_texts of all parts
  kFailed = 'F',     ///< a rank to rank 0: it cannot go on, and why
  kEnded = 'E',      ///< rank 0 to all: why the group ends and who is lost
  kGoodbye = 'G',    ///< the sender ends, as it should
};

/// How far a rank is.
struct RankProgress {
  int64_t step = 0, collectives = 0;
  std::string collective = {};  ///< "" between two
  double waited = 0;            ///< seconds in it
};
std::string heartbeat_text(const RankProgress& progress);
std::optional<RankProgress> heartbeat_of(std::string_view text);

/// Why the group ends.
struct GroupEnd {
  std::string reason;
  std::vector<int> lost;
  bool stuck = false;  ///< the lost ranks may be processes that neither go on nor end
};
std::string end_text(const GroupEnd& end);
/// Nothing if it is not what end_text makes of a group of `ranks`.
std::optional<GroupEnd> end_of(std::string_view text, int ranks);

/// Texts as one: eight bytes of length before each.
std::string pack_texts(const std::vector<std::string>& texts);
/// Nothing if it is not what pack_texts makes.
std::optional<std::vector<std::string>> unpack_texts(std::string_view packed);

// What ranks tell each other of themselves once they have proved that they belong together.

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
