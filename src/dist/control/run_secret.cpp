#include "dist/control/run_secret.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <system_error>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "dist/control/socket.h"

namespace hone {

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}
namespace {

namespace fs = std::filesystem;

constexpr size_t kShortest = 16, kLongest = 4096;
constexpr const char* kWayOut =
    "set HONE_RUN_SECRET to the same random text on all ranks, or HONE_RUN_SECRET_FILE to "
    "a file that contains it";

/// The whole file, up to the greatest length of a secret.
std::optional<std::string> read_bounded(int descriptor) {
  std::string text;
  std::array<char, 512> chunk;
  while (text.size() <= kLongest) {
    const ssize_t count = ::read(descriptor, chunk.data(), chunk.size());
    if (count == 0) return text;
    if (count < 0 && errno != EINTR) return std::nullopt;
    if (count > 0) text.append(chunk.data(), static_cast<size_t>(count));
  }
  return std::nullopt;
}

std::string without_line_end(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

std::string checked_length(std::string secret, const char* variable) {
  if (secret.size() < kShortest) {
    throw UserError(fmt::format("the run's secret has {} characters", secret.size()), variable,
                    fmt::format("give it at least {} that nobody can guess: openssl rand -hex 32", kShortest));
  }
  if (secret.size() > kLongest) {
    throw UserError("the run's secret is too long", variable, fmt::format("give it at most {} characters", kLongest));
  }
  return secret;
}

std::string secret_in(const std::string& path) {
  const Socket file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  const bool there = file.open() && ::fstat(file.descriptor(), &facts) == 0;
  if (!there || !S_ISREG(facts.st_mode)) {
    throw UserError(
        fmt::format("the run's secret cannot be read: {}", there ? "this is not a file" : std::strerror(errno)), path,
        fmt::format("check the path in {}", kSecretFileVariable));
  }
  const std::optional<std::string> text = read_bounded(file.descriptor());
  return checked_length(without_line_end(text.value_or(std::string(kLongest + 1, ' '))), kSecretFileVariable);
}

bool is_private(const struct stat& facts) { return (facts.st_mode & 077) == 0; }

/// Whether `folder` is a folder of this user that other users cannot access.
bool is_private_folder(const fs::path& folder) {
  struct stat facts {};
  return ::lstat(folder.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == ::geteuid() &&
         is_private(facts);
}

/// Folders that this user's processes on this host share. Another user may own an existing one: check before use.
std::vector<fs::path> folders_of_this_host(const std::function<const char*(const char*)>& variable) {
  const std::string user = std::to_string(::geteuid());
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& folder) {
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
  };
  // Not all ranks may have this variable.
  if (const char* runtime = variable("XDG_RUNTIME_DIR"); runtime && *runtime) add(runtime);
  add(fs::path("/run/user") / user);
  std::erase_if(folders, [](const fs::path& folder) { return !is_private_folder(folder); });
  std::error_code error;
  if (const fs::path temporary = fs::temp_directory_path(error); !error) add(temporary / ("hone-" + user));
  add(fs::path("/tmp") / ("hone-" + user));
  return folders;
}

}  // namespace

std::string new_secret() {
  constexpr size_t kBytes = 32;
  return hexadecimal(random_bytes(kBytes));
}

std::string stated_secret(const std::function<const char*(const char*)>& variable) {
  if (const char* path = variable(kSecretFileVariable); path && *path) return secret_in(path);
  const char* secret = variable(kSecretVariable);
  return secret && *secret ? checked_length(secret, kSecretVariable) : "";
}

SecretPlaces secret_places(const LaunchEnvironment& environment, const std::function<std::string()>& output_dir,
                           const std::function<const char*(const char*)>& variable) {
  SecretPlaces places{.stated = stated_secret(variable), .folders = {}};
  if (!places.stated.empty()) return places;
  if (environment.one_host) {
    places.folders = folders_of_this_host(variable);
    places.of_this_host = true;
  } else if (const std::string folder = output_dir(); !folder.empty()) {
    places.folders = {folder};
  } else {
    throw UserError("the ranks may be on several hosts and have no common secret", kSecretVariable, kWayOut);
  }
  return places;
}

SecretPlaces secret_places(const LaunchEnvironment& environment, const std::function<std::string()>& output_dir) {
  return secret_places(environment, output_dir, [](const char* name) { return std::getenv(name); });
}

std::string secret_file_name(const std::string& run, int port) {
  constexpr size_t kLongestRun = 64;
  std::string name = run.substr(0, kLongestRun);
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!plain) c = '_';
  }
  return fmt::format(".hone-{}{}{}.secret", name, name.empty() ? "" : "-", port);
}

SecretFile::SecretFile(const SecretPlaces& places, const std::string& name) {
  const fs::path folder = places.folders.front();
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path path = folder; !path.empty() && !fs::exists(path, error); path = path.parent_path()) {
    missing.insert(missing.begin(), path);
    if (path == path.parent_path()) break;
  }
  for (const fs::path& path : missing) {
    if (::mkdir(path.c_str(), places.of_this_host ? 0700 : 0777) == 0 && !places.of_this_host) made_.push_back(path);
  }
  if (places.of_this_host && !is_private_folder(folder)) {
    throw UserError("other users can access this folder, so the run's secret is not written there", folder.string(),
                    fmt::format("remove it, or {}", kWayOut));
  }
  path_ = folder / name;
  const std::string text = secret_ + "\n";
  for (int tries = 0; tries < 100; ++tries) {
    const Socket file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.open() && errno == EEXIST && ::unlink(path_.c_str()) == 0) continue;
    struct stat facts {};
    const bool made = file.open() && ::fstat(file.descriptor(), &facts) == 0;
    const bool whole = made && is_private(facts) &&
                       ::write(file.descriptor(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (whole) return;
    const int problem = errno;
    if (made) ::unlink(path_.c_str());
    throw UserError(made && !is_private(facts)
                        ? "this file system lets other users read private files"
                        : fmt::format("the run's secret cannot be written: {}", std::strerror(problem)),
                    path_.string(), kWayOut);
  }
  throw UserError("the run's secret cannot be written: another process is writing the same file", path_.string(),
                  kWayOut);
}

SecretFile::~SecretFile() {
  ::unlink(path_.c_str());
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) ::rmdir(folder->c_str());
}

std::optional<std::string> read_secret_file(const SecretPlaces& places, const std::string& name) {
  for (const fs::path& folder : places.folders) {
    if (places.of_this_host && !is_private_folder(folder)) continue;
    const fs::path path = folder / name;
    const Socket file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat facts {};
    if (!file.open() || ::fstat(file.descriptor(), &facts) != 0) continue;
    // Network file systems may map root's files to the user nobody.
    const bool own = facts.st_uid == ::geteuid() || ::geteuid() == 0;
    if (!S_ISREG(facts.st_mode) || !own || !is_private(facts)) {
      throw UserError("others may read the run's secret, or another user has written it", path.string(),
                      fmt::format("remove it, or {}", kWayOut));
    }
    const std::optional<std::string> text = read_bounded(file.descriptor());
    // An incomplete file is still being written; the caller tries again.
    if (text && text->ends_with('\n') && text->size() > kShortest) return without_line_end(*text);
  }
  return std::nullopt;
}

namespace {

enum class Step : uint8_t {
  kCall = 'h',       ///< the caller's random bytes
  kChallenge = 'c',  ///< the listener's random bytes, and the first bytes of its run_digest
  kProof = 'p',      ///< the caller's MAC and claims
  kProven = 'a',     ///< the listener's MAC
  kNotProven = 'n',
};

constexpr size_t kRandomBytes = 32, kMacBytes = SHA256_DIGEST_LENGTH, kTagBytes = 16;
/// Changes with the protocol.
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

/// The MAC of an exchange. `role` ("caller" or "listener") prevents replay of a side's own MAC to it.
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
    throw Error(ExitCode::kDeviceFailed, "the system does not provide random bytes", "/dev/urandom",
                "look at the system log");
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
  // The claims are parsed only if the MAC is correct.
  const std::string claims = bytes.substr(kMacBytes);
  if (!same_secret(bytes.substr(0, kMacBytes), mac(secret_, "caller", callers_bytes_, own_bytes_, claims))) {
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
  const bool proven = same_secret(answer->bytes, mac(*known, "listener", own_bytes, listeners_bytes, text));
  return proven ? ProofAnswer::kProven : ProofAnswer::kOtherSecret;
}

}  // namespace hone
