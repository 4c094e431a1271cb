// HTTP calls to the hub and to the stores that it redirects to, on one thread. Follows redirects by a policy of its
// own, bounds what an answer may take, and repeats calls that a server may answer later.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "hub/hub_settings.h"

namespace hone {

/// A call that was not answered as it should be. Its text is for people, and has no token.
class HubError : public std::runtime_error {
 public:
  enum class Kind {
    kRetry,    ///< no answer, a cut connection, 408, 429 or 5xx: the call may succeed later
    kAnswer,   ///< an answer with another status
    kRefused,  ///< the server does what it may not: a forbidden redirect, an endless answer
    kTrust,    ///< its certificate is not trusted
  };
  HubError(Kind of, const std::string& what, int answered = 0) : std::runtime_error(what), kind(of), status(answered) {}

  Kind kind;
  int status;                ///< what the server answered; 0: nothing
  bool of_store = false;     ///< the answer is of the store that the hub redirects to, not of the hub
  double after = 0;          ///< seconds that the server asks to wait (Retry-After)
  std::string code = {};     ///< X-Error-Code: RepoNotFound, RevisionNotFound, EntryNotFound, GatedRepo
  std::string message = {};  ///< X-Error-Message
};

/// Headers of an answer; names in lower case.
using HttpHeaders = std::map<std::string, std::string>;

class HubHttp {
 public:
  explicit HubHttp(HubSettings settings);
  ~HubHttp();
  HubHttp(const HubHttp&) = delete;
  HubHttp& operator=(const HubHttp&) = delete;

  struct Answer {
    int status = 0;
    Url url;  ///< after redirects
    HttpHeaders headers;
    std::string body;
  };

  /// The body of an answer 200, up to `most_bytes`; repeats the call `tries` times where that may help. Throws
  /// HubError.
  Answer get(const Url& url, size_t most_bytes, int tries = 4);

  /// What the answers on the way to a file say of it.
  struct FileHead {
    std::string commit, etag;  ///< "": not said; the etag without quotes, that of the linked file if there is one
    std::optional<uint64_t> size;
  };
  /// Bytes [first, first + count) of a file, once. `seen` receives what the answers of the hub itself say, before any
  /// byte. `sink` receives the bytes in order, never more than asked for. A server that ignores ranges sends all, of
  /// which the asked ones are passed on; the result is whether it did. Returns the address that had the bytes in
  /// `location`. Throws HubError; bytes that `sink` has received are then right as far as the server was.
  bool get_range(const Url& url, uint64_t first, uint64_t count, uint64_t size,
                 const std::function<void(const FileHead&)>& seen, const std::function<void(std::string_view)>& sink,
                 Url& location);

  /// Makes a waiting call of another thread fail soon, and all calls after it.
  void cancel();

 private:
  struct Connection;
  struct Request;

  /// The headers of the last answer, after redirects; sets request.url to where it came from.
  HttpHeaders exchange(Request& request);
  HttpHeaders exchange_once(Request& request);
  Connection& connection_to(const Url& url);

  const HubSettings settings_;
  std::mutex mutex_;                                                // guards the map for cancel()
  std::map<std::string, std::unique_ptr<Connection>> connections_;  // by origin
  std::atomic<bool> cancelled_ = false;
};

/// Calls `call` up to `tries` times while it throws a HubError of kRetry; waits longer each time, at least as long as
/// the server asks for. Throws the last error, or one that asks to wait for more than five minutes. `pause` sleeps, and
/// returns false to give up.
void repeat_call(int tries, const std::function<void()>& call, const std::function<bool(double seconds)>& pause);

/// Seconds to wait before try `number` (1: the second one), if the server asked for `after`.
double pause_before(int number, double after);

}  // namespace hone
