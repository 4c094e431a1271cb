// What ranks say to each other over their control connections. Whatever the bytes are, reading them throws nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace hone
