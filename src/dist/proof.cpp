#include "dist/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <array>
#include <limits>

#include "core/error.h"
#include "core/untrusted_json.h"
#include "dist/deadline.h"

namespace hone {

namespace {

enum class Step : uint8_t {
  kCall = 'h',       ///< the caller's random bytes
  kChallenge = 'c',  ///< the listener's, and the first bytes of its run_digest
  kProof = 'p',      ///< the caller's MAC and claims
  kProven = 'a',     ///< the listener's MAC
  kNotProven = 'n',
};

constexpr size_t kRandomBytes = 32, kMacBytes = SHA256_DIGEST_LENGTH, kTagBytes = 16;
/// Changes with what is said here.
constexpr const char* kProtocol = "hone-proof-1";

bool say(const Socket& socket, Step step, const std::string& bytes = {}) {
  return send_message(socket, static_cast<uint8_t>(step), bytes);
}

bool is(const std::optional<Message>& message, Step step) {
  return message && message->type == static_cast<uint8_t>(step);
}

std::optional<int> small_number(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  const int64_t value = found->get<int64_t>();
  if (value < 0 || value > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(value);
}

std::optional<std::string> text_of(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

/// `role`: "caller" or "listener", so that nobody can be answered with its own words.
std::string mac(const std::string& secret, const std::string& role, const std::string& callers_bytes,
                const std::string& listeners_bytes, const std::string& claims) {
  const std::string text = std::string(kProtocol) + '\0' + role + '\0' + callers_bytes + listeners_bytes + claims;
  std::array<unsigned char, kMacBytes> bytes{};
  unsigned int size = 0;
  const bool formed = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                           reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes.data(), &size);
  HONE_ASSERT(formed && size == bytes.size());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool are_equal(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string tag_of(const Claims& claims) { return claims.run.substr(0, kTagBytes); }

}  // namespace

std::string claims_text(const Claims& claims) {
  return Json{{"hone", claims.version}, {"purpose", claims.purpose}, {"run", claims.run},
              {"port", claims.port},    {"rank", claims.rank},       {"world_size", claims.world_size}}
      .dump();
}

std::optional<Claims> claims_of(const std::string& text) {
  const Json json = parse_json(std::string_view(text));
  if (!json.is_object()) return std::nullopt;
  const auto version = text_of(json, "hone"), purpose = text_of(json, "purpose"), run = text_of(json, "run");
  const auto port = small_number(json, "port"), rank = small_number(json, "rank"),
             world_size = small_number(json, "world_size");
  if (!version || !purpose || !run || !port || !rank || !world_size) return std::nullopt;
  return Claims{*version, *purpose, *run, *port, *rank, *world_size};
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1) {
    throw Error(ExitCode::kDeviceFailed, "this system gives no random bytes", "/dev/urandom", "look at its log");
  }
  return bytes;
}

std::string hexadecimal(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

std::string run_digest(const std::string& run, int port) {
  const std::string text = run + '\0' + std::to_string(port);
  std::array<unsigned char, SHA256_DIGEST_LENGTH> bytes{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes.data());
  return hexadecimal({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

ListenersProof::State ListenersProof::take(const Socket& socket, const Message& message) {
  const std::string& bytes = message.bytes;
  if (callers_bytes_.empty()) {
    if (message.type != static_cast<uint8_t>(Step::kCall) || bytes.size() != kRandomBytes) return State::kFailed;
    callers_bytes_ = bytes;
    own_bytes_ = random_bytes(kRandomBytes);
    return say(socket, Step::kChallenge, own_bytes_ + tag_of(expected_)) ? State::kOpen : State::kFailed;
  }
  if (message.type != static_cast<uint8_t>(Step::kProof) || bytes.size() <= kMacBytes) return State::kFailed;
  // Nothing of it is looked at before its MAC is right.
  const std::string claims = bytes.substr(kMacBytes);
  if (!are_equal(bytes.substr(0, kMacBytes), mac(secret_, "caller", callers_bytes_, own_bytes_, claims))) {
    other_secret_ = true;
    say(socket, Step::kNotProven);
    return State::kFailed;
  }
  const std::optional<Claims> parsed = claims_of(claims);
  if (!parsed || parsed->purpose != expected_.purpose || parsed->port != expected_.port) return State::kFailed;
  claims_ = *parsed;
  const bool told = say(socket, Step::kProven, mac(secret_, "listener", callers_bytes_, own_bytes_, claims));
  return told ? State::kProven : State::kFailed;
}

ProofAnswer prove(const Socket& socket, MessageReader& reader, const Claims& claims,
                  const std::function<std::optional<std::string>()>& secret) {
  const Deadline deadline(kProofSeconds);
  const std::string own_bytes = random_bytes(kRandomBytes), text = claims_text(claims);
  reader.set_longest(kLongestProof);
  say(socket, Step::kCall, own_bytes);
  const std::optional<Message> challenge = receive_message(socket, reader, deadline.left());
  if (!is(challenge, Step::kChallenge) || challenge->bytes.size() != kRandomBytes + kTagBytes ||
      challenge->bytes.substr(kRandomBytes) != tag_of(claims)) {
    return ProofAnswer::kNoAnswer;
  }
  const std::optional<std::string> known = secret();
  if (!known) return ProofAnswer::kNoSecret;
  const std::string listeners_bytes = challenge->bytes.substr(0, kRandomBytes);
  say(socket, Step::kProof, mac(*known, "caller", own_bytes, listeners_bytes, text) + text);
  const std::optional<Message> answer = receive_message(socket, reader, deadline.left());
  if (is(answer, Step::kNotProven)) return ProofAnswer::kOtherSecret;
  if (!is(answer, Step::kProven)) return ProofAnswer::kNoAnswer;
  const bool proven = are_equal(answer->bytes, mac(*known, "listener", own_bytes, listeners_bytes, text));
  return proven ? ProofAnswer::kProven : ProofAnswer::kOtherSecret;
}

}  // namespace hone
