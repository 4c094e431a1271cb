// What comes over a connection of ranks: the bytes as a stream of messages, before and after they have proved who they
// are, and as the text of each kind of message.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "dist/control/control_messages.h"
#include "dist/control/run_secret.h"
#include "dist/control/socket.h"
#include "fuzz_input.h"

namespace {

void as_text(std::string_view text) {
  constexpr int kRanks = 4;
  if (const auto progress = hone::heartbeat_of(text)) hone::heartbeat_of(hone::heartbeat_text(*progress));
  if (const auto end = hone::end_of(text, kRanks)) {
    for (const int rank : end->lost) {
      if (rank < 0 || rank >= kRanks) std::abort();
    }
  }
  if (const auto texts = hone::unpack_texts(text); texts && hone::pack_texts(*texts) != text) std::abort();
  if (const auto facts = hone::facts_of(hone::parse_json(text))) hone::facts_json(*facts);
  hone::all_facts_of(text, kRanks);
  if (const auto claims = hone::claims_of(std::string(text))) hone::claims_of(hone::claims_text(*claims));
}

/// `longest`: of a message.
void as_stream(std::string_view bytes, uint32_t longest, bool proves) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  const hone::Socket reading(ends[0]);
  hone::Socket writing(ends[1]);
  if (::send(ends[1], bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 && !bytes.empty()) return;
  ::shutdown(ends[1], SHUT_WR);
  hone::MessageReader reader;
  reader.set_longest(longest);
  hone::ListenersProof proof("what the ranks of a run know", {"", "control", hone::run_digest("", 1), 1, 0, 4});
  while (reader.read(reading) == hone::MessageReader::State::kOpen) {
    while (const auto message = reader.next()) {
      if (message->bytes.size() > longest) std::abort();
      if (!proves) {
        as_text(message->bytes);
      } else if (proof.take(reading, *message) == hone::ListenersProof::State::kProven) {
        std::abort();  // nobody guesses the secret
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMost = size_t{64} << 10;  // what a connection holds without a reader
  const std::string_view bytes = hone::text_of(data, std::min(size, kMost));
  as_text(bytes);
  as_stream(bytes, hone::kLongestProof, true);
  as_stream(bytes, hone::kLongestMessage, false);
  return 0;
}
