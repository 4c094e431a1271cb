// The messages of control connections. Parsing never throws; it returns nullopt for invalid bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"
#include "dist/control/local_process.h"

namespace hone {

enum class ControlMessage : uint8_t {
  kFacts = 'H',      ///< a rank to rank 0, after both have authenticated: hello_text
  kAccepted = 'A',   ///< rank 0's answer: the rank has joined
  kRefused = 'R',    ///< rank 0's answer: why the run does not start
  kWelcome = 'W',    ///< rank 0 to all, when all have joined: the facts of all ranks as JSON
  kHeartbeat = 'B',  ///< the sender's progress: heartbeat_text
  kText = 'T',       ///< a rank to rank 0: its text of an exchange
  kTexts = 'X',      ///< rank 0 to all: pack_texts of all texts
  kFailed = 'F',     ///< a rank to rank 0: why it cannot continue
  kEnded = 'E',      ///< rank 0 to all: why the group ends and which ranks are lost
  kGoodbye = 'G',    ///< the sender ends normally
};

/// The progress of a rank.
struct RankProgress {
  int64_t step = 0, collectives = 0;
  std::string collective = {};  ///< "" between collectives
  double waited = 0;            ///< seconds in it
};
std::string heartbeat_text(const RankProgress& progress);
std::optional<RankProgress> heartbeat_of(std::string_view text);

/// Why the group ends.
struct GroupEnd {
  std::string reason;
  std::vector<int> lost;
  bool stuck = false;  ///< the processes of the lost ranks may still exist
};
std::string end_text(const GroupEnd& end);
/// The inverse of end_text for a group of `ranks`; nullopt if `text` is invalid.
std::optional<GroupEnd> end_of(std::string_view text, int ranks);

/// Concatenates texts, each after eight bytes of length.
std::string pack_texts(const std::vector<std::string>& texts);
/// The inverse of pack_texts; nullopt if `packed` is invalid.
std::optional<std::vector<std::string>> unpack_texts(std::string_view packed);

// Facts that ranks exchange after they have authenticated.

/// Host and process of a rank.
struct RankFacts {
  std::string host;
  int64_t pid = 0;
  int local_rank = 0;
  std::string cores = {};    ///< the cores it may run on
  std::string address = {};  ///< numeric address at which the reader of these facts reaches the rank's host
  ProcessPlace place = {};
};

/// The number of ranks of each host, if it is the same for all and a host's ranks are consecutive; else 0.
int ranks_of_host(const std::vector<RankFacts>& ranks);

/// The facts of this process.
RankFacts own_facts(int local_rank);

Json facts_json(const RankFacts& facts);
/// The inverse of facts_json; nullopt if `json` is invalid.
std::optional<RankFacts> facts_of(const Json& json);
/// The facts of all ranks from the text of a JSON array; nullopt if it is invalid or does not have `count` elements.
std::optional<std::vector<RankFacts>> all_facts_of(std::string_view text, size_t count);

}  // namespace hone
