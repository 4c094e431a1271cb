// What ranks say to each other over their control connections.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hone {

enum class ControlMessage : uint8_t {
  kHello = 'H',      ///< a rank to rank 0, JSON: who it is
  kAccepted = 'A',   ///< its answer
  kRefused = 'R',    ///< why the run does not begin
  kWelcome = 'W',    ///< all are there, JSON: who they are
  kHeartbeat = 'B',  ///< JSON: how far the sender is
  kText = 'T',       ///< a rank's part of an exchange
  kTexts = 'X',      ///< pack_texts of all parts
  kFailed = 'F',     ///< the sender cannot go on: why
  kEnded = 'E',      ///< rank 0 to all, JSON: why the group ends and who is lost
  kGoodbye = 'G',    ///< the sender ends, as it should
};

/// Texts as one: eight bytes of length before each.
std::string pack_texts(const std::vector<std::string>& texts);
/// Nothing if it is not what pack_texts makes.
std::optional<std::vector<std::string>> unpack_texts(std::string_view packed);

}  // namespace hone
