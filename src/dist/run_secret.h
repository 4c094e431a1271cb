// What the ranks of a run know and nobody else does: where it is found, the file that rank 0 makes for the others
// where no launcher has given it to all, and how two processes prove that they know it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/launch_environment.h"
#include "dist/socket.h"

namespace hone {

inline constexpr const char* kSecretVariable = "HONE_RUN_SECRET";
inline constexpr const char* kSecretFileVariable = "HONE_RUN_SECRET_FILE";

/// 32 random bytes as hexadecimal digits.
std::string new_secret();

/// What the file that HONE_RUN_SECRET_FILE names holds (whatever its mode: a container's secrets are often readable for
/// all of the container), or HONE_RUN_SECRET; "" if neither is set. Throws UserError: shorter than 16 characters,
/// longer than 4096, a file that cannot be read.
std::string stated_secret(const std::function<const char*(const char*)>& variable);

/// Where a rank finds the secret.
struct SecretPlaces {
  std::string stated = {};  ///< "": rank 0 makes a file
  /// In the first of these; the others look in all.
  std::vector<std::filesystem::path> folders = {};
  bool of_this_host = false;  ///< the folders are this user's alone, or are not used
};

/// `output_dir` is asked for only where ranks may be on several hosts and nothing is stated; it gives "" where the verb
/// has none. Throws as stated_secret does, and UserError where there is no place at all that all ranks see.
SecretPlaces secret_places(const LaunchEnvironment& environment, const std::function<std::string()>& output_dir);
SecretPlaces secret_places(const LaunchEnvironment& environment, const std::function<std::string()>& output_dir,
                           const std::function<const char*(const char*)>& variable);

/// "hone-JOB-29500.secret": of the run and the port at which its rank 0 listens.
std::string secret_file_name(const std::string& run, int port);

/// The file of a new secret, which only this user may read; gone with it, as are folders that it had to make for an
/// output_dir. One of that name that a killed run has left is replaced. Throws UserError where none can be
/// made that is private.
class SecretFile {
 public:
  SecretFile(const SecretPlaces& places, const std::string& name);
  ~SecretFile();
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  const std::string& secret() const { return secret_; }

 private:
  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // folders, the outermost first
  std::string secret_ = new_secret();
};

/// What such a file holds; nothing if it is not there (yet). Throws UserError if others may read it or have made it.
std::optional<std::string> read_secret_file(const SecretPlaces& places, const std::string& name);

// How two processes prove to each other that they know a run's secret, before either says anything of itself: each
// sends random bytes, and then a MAC (HMAC-SHA256) of both sides' bytes and of what is claimed. Who listens proves it
// only to a caller that has proved it, so a stranger learns nothing. Not against who can change what is on the wire.

/// What a caller says it is. All of it is in the MAC.
struct Claims {
  std::string version;  ///< of the program
  std::string purpose;  ///< "control" or "data": a proof for one is none for the other
  std::string run;      ///< run_digest
  int port = 0;         ///< at which the other side listens
  int rank = 0, world_size = 0;
};

/// As they are sent; nothing if it is not what claims_text makes.
std::string claims_text(const Claims& claims);
std::optional<Claims> claims_of(const std::string& text);

/// 64 hexadecimal digits that tell runs apart and say nothing of them: of what the launcher calls the run, and of the
/// port that it was given.
std::string run_digest(const std::string& run, int port);

/// So many random bytes from the system. Throws Error(kDeviceFailed) if it has none.
std::string random_bytes(size_t count);
std::string hexadecimal(const std::string& bytes);

/// Bytes of the longest message, and seconds, that somebody who has proved nothing is given.
constexpr uint32_t kLongestProof = 1024;
constexpr double kProofSeconds = 5;

/// The listening side of one connection.
class ListenersProof {
 public:
  /// `expected`: version, rank and world size are those that the caller claims, all else must be the same.
  ListenersProof(std::string secret, Claims expected) : secret_(std::move(secret)), expected_(std::move(expected)) {}

  enum class State { kOpen, kProven, kFailed };
  /// The caller's next message; answers it.
  State take(const Socket& socket, const Message& message);
  /// What was claimed, once it is proven. Another run's rank that has the same secret is proven, too: look at `run`.
  const Claims& claims() const { return claims_; }
  /// Whether the caller spoke as a rank does, and had another secret.
  bool other_secret() const { return other_secret_; }

 private:
  std::string secret_;
  Claims expected_, claims_;
  std::string callers_bytes_, own_bytes_;
  bool other_secret_ = false;
};

enum class ProofAnswer {
  kProven,
  kNoAnswer,     ///< nobody there that speaks like this, or another run
  kOtherSecret,  ///< this run, as it says, but it does not know the secret that we know
  kNoSecret,     ///< this run, as it says, and we know no secret
};

/// The calling side: blocks for kProofSeconds at most. `secret` is asked for when somebody answers. After kProven the
/// connection is the caller's and `reader` may have read ahead.
ProofAnswer prove(const Socket& socket, MessageReader& reader, const Claims& claims,
                  const std::function<std::optional<std::string>()>& secret);

}  // namespace hone
